/* A function on its way to an address, in steps, so that several can be compiled at once. Private to this folder. */
#ifndef OPAQUE_CODEGEN_JIT_JOB_H
#define OPAQUE_CODEGEN_JIT_JOB_H

#include "codegen_llvm/jit.h"
#include "codegen_llvm/module.h"
#include "codegen_llvm/store.h"

/* Zeroed, but for: */
typedef struct opq_jit_job {
    opq_module module;
    const char *title;
    const opq_text *key;        /* NULL: the object is not kept on disk */
    bool found;                 /* on disk: it is not to be compiled */
    double price, seconds;      /* foreseen, and paid by the allowance; that compiling it took */
    LLVMMemoryBufferRef object; /* there to be linked */
    char symbol[OPQ_STORE_SYMBOL_MAX];
} opq_jit_job;

/* The steps in their order, each under OPQ_FP_DEFAULT, the first and the last on the thread whose allowance it is.
 *
 * Looks on disk; what is not there is paid for. OPQ_CODEGEN if the allowance is too little. */
opq_status opq_jit_job_find(opq_jit *jit, opq_jit_job *job) OPQ_MUST_CHECK;
/* Unless it was found. On any thread. */
opq_status opq_jit_job_compile(opq_jit *jit, opq_jit_job *job) OPQ_MUST_CHECK;
/* Takes the object, also on failure. share: of the seconds that compiling it took, those that the allowance's thread lost by it. */
opq_status opq_jit_job_link(opq_jit *jit, opq_jit_job *job, double share, opq_jit_module *out_module,
                            void **out_address) OPQ_MUST_CHECK;
/* seconds: of all steps. Of a failure the message is this thread's last. */
void opq_jit_job_log(const opq_jit_job *job, double seconds, opq_status status);
/* Does a profiler look at this thread, so that it is told of each function as it is made? */
bool opq_jit_is_watched(const opq_jit *jit);

#endif
