/* Generated code as tools outside of the process see it: perf's map of symbols and GDB's JIT interface. Both are off by default. */
#ifndef OPAQUE_CODEGEN_DEBUG_H
#define OPAQUE_CODEGEN_DEBUG_H

#include <stdbool.h>
#include <stddef.h>

typedef struct opq_debug_entry opq_debug_entry;

bool opq_debug_wanted(void);

/* OPAQUE_PERF_MAP=1: a line in /tmp/perf-PID.map. OPAQUE_GDB_JIT=1: the object is registered with GDB. `address` is where the function
 * `symbol` of the ELF object was loaded. NULL: nothing has to be removed. What fails is left out: this is no reason not to run. */
opq_debug_entry *opq_debug_add(const char *object, size_t size, const char *symbol, const void *address);
/* Before its memory goes. NULL is nothing. A line of the map stays: one written later for the same address counts. */
void opq_debug_remove(opq_debug_entry *entry);

#endif
