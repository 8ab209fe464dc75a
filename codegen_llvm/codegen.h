/* From a kernel to a function pointer. The JIT object cache is keyed by the kernel's canonical bytes. */
#ifndef OPAQUE_CODEGEN_CODEGEN_H
#define OPAQUE_CODEGEN_CODEGEN_H

#include "codegen_llvm/jit.h"
#include "fusion/loop.h"

/* Runs units [begin, end) of the kernel (see opq_loops_units). `scratch` is per thread, opq_loops_scratch bytes, 64-byte aligned.
 * An index out of range stores {1 + the statement, the index} into error[0..1] (error[0] is 0 before) and goes on with index 0. */
typedef void (*opq_kernel_fn)(void *const *buffers, const int64_t *dims, const opq_number *scalars, int64_t begin,
                              int64_t end, void *scratch, int64_t *error);

typedef struct opq_code {
    opq_kernel_fn fn;
    double seconds; /* spent compiling, or loading; of kernels that were compiled at once a share of what they took together */
    size_t bytes; /* of memory, in whole pages */
    bool loaded;  /* from disk, not compiled */
} opq_code;

/* From the cache or compiled now: a reference, given back by opq_code_release. `out_fresh`: was it compiled or loaded by this call? Thread-safe. */
opq_status opq_codegen(opq_jit *jit, const opq_loops *loops, const opq_code **out_code, bool *out_fresh) OPQ_MUST_CHECK;
/* Is its code in memory? Thread-safe. */
bool opq_codegen_has(opq_jit *jit, const opq_loops *loops);
/* One of several kernels: its loops, and what opq_codegen gives for them. */
typedef struct opq_code_job {
    const opq_loops *loops;
    const opq_code *code; /* NULL: there is none */
    bool fresh;
} opq_code_job;
/* opq_codegen for each, whose results are NULL and false before. Those that have to be compiled are, at once, by the host's threads; by this thread alone,
 * one after the other, if the host (NULL: there is none) has no others, or if a profiler looks or nobody waits for it (graph/progress.h).
 * On failure *out_failed is the first job that failed, the message is its, and others may have their code all the same; -1: it was no job's.
 * The host's loop is called without a lock. Thread-safe. */
opq_status opq_codegen_all(opq_jit *jit, const opq_host *host, opq_code_job *jobs, int count,
                           int *out_failed) OPQ_MUST_CHECK;
/* Code without references may go, when other code is released too. Not with a lock held that compiling takes. Thread-safe. */
void opq_code_release(opq_jit *jit, const opq_code *code);
/* Code without references goes. Likewise. */
void opq_code_drop_idle(opq_jit *jit);
/* Kernels in memory, used or not, and their bytes. */
void opq_code_usage(opq_jit *jit, int64_t *out_kernels, int64_t *out_bytes);
/* Object files for a linker, for a processor that need not be this one, which outlives the compiler. Equal kernels give equal bytes. */
struct opq_compiler;
struct opq_cpu;
opq_status opq_compiler_create(const struct opq_cpu *cpu, struct opq_compiler **out_compiler) OPQ_MUST_CHECK;
void opq_compiler_destroy(struct opq_compiler *compiler);
/* Its function is called `symbol`. */
opq_status opq_codegen_object(struct opq_compiler *compiler, const opq_loops *loops, const char *symbol,
                              const char *path) OPQ_MUST_CHECK;
/* LLVM IR ("llvm") or assembly ("asm") of a kernel, for the compiler's processor. */
opq_status opq_codegen_text(struct opq_compiler *compiler, const opq_loops *loops, const char *stage,
                            opq_text *out_text) OPQ_MUST_CHECK;
/* The same for the host. */
opq_status opq_codegen_print(opq_jit *jit, const opq_loops *loops, const char *stage, opq_text *out_text) OPQ_MUST_CHECK;

/* For reports: members of a JSON object, each with a comma before it. */
void opq_codegen_describe(const opq_jit *jit, opq_text *text);

/* How much independent work a launch has: units for begin/end. Any split of [0, units) gives the same bits, if there is one phase. */
int64_t opq_loops_units(const opq_loops *loops, const int64_t *dims);
/* The phases and their units, which are numbered through: those of one phase are all done before the next begins. */
int opq_loops_phases(const opq_loops *loops, const int64_t *dims, int64_t out_units[OPQ_PHASE_MAX]);
int64_t opq_loops_scratch(const opq_loops *loops, const int64_t *dims);

#endif
