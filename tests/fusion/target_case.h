/* Launches of kernels in a file, which target_test.c writes and target_runner.c reads: 64-bit words, and bytes padded to such.
 *
 *   kernel (-1: the file ends), memories, buffers, dims, scalars, phases, bytes of scratch memory
 *   each memory     its bytes, by how many it begins behind a multiple of 64; what it holds before; what it holds behind
 *   each buffer     a target_buffer
 *   the dims, the scalars, the units of each phase
 *
 * Buffers that overlap are in one memory.
 */
#ifndef OPAQUE_TESTS_TARGET_CASE_H
#define OPAQUE_TESTS_TARGET_CASE_H

#include <stdint.h>

enum { TARGET_HEAD = 7, TARGET_ALIGN = 64 };
enum { TARGET_READ, TARGET_WRITTEN, TARGET_OWN };

typedef struct target_buffer {
    int64_t memory, first, bytes; /* where in it */
    int64_t use;                  /* TARGET_WRITTEN: its elements are compared */
    int64_t dtype, element_bytes;
} target_buffer;

#endif
