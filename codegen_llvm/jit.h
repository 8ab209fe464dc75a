/* LLVM as a service: module in, address out. One LLJIT per context; objects are relocatable and hold no absolute pointer.
 *
 * Nothing of LLVM starts before the first opq_jit_function call.
 */
#ifndef OPAQUE_CODEGEN_JIT_H
#define OPAQUE_CODEGEN_JIT_H

#include "graph/graph.h"

struct opq_emitter;
struct opq_cpu;
struct LLVMOrcOpaqueResourceTracker;

typedef struct opq_jit opq_jit;
/* Compiled code that can be removed. */
typedef struct opq_jit_module {
    struct LLVMOrcOpaqueResourceTracker *tracker;
    size_t bytes; /* of its pages */
    bool loaded;  /* from disk */
    struct opq_debug_entry *debug;
} opq_jit_module;

opq_status opq_jit_create(opq_jit **out_jit) OPQ_MUST_CHECK;
void opq_jit_destroy(opq_jit *jit);
/* Whose profiler is told of compilations; NULL: nobody's. */
void opq_jit_set_host(opq_jit *jit, const opq_host *host);
void opq_jit_lock(opq_jit *jit); /* around a fork: nobody is inside LLVM */
void opq_jit_unlock(opq_jit *jit, bool in_child);
const struct opq_cpu *opq_jit_cpu(const opq_jit *jit);
/* Builds a module with `build` (it must define a function called `name`), compiles and links it. The address lives until
 * the module is removed; if `out_module` is NULL, as long as the jit. Debuggers, profilers and the log call it `title`, with a number
 * where it must be unique. key: all that the object depends on but for the processor, under which it is kept on disk; NULL: it is not.
 * Thread-safe. OPQ_CODEGEN if LLVM's verifier or an undefined symbol objects. */
opq_status opq_jit_function(opq_jit *jit, const char *name, const char *title,
                            opq_status (*build)(struct opq_emitter *e, void *data), void *data, const opq_text *key,
                            opq_jit_module *out_module, void **out_address) OPQ_MUST_CHECK;
/* Gives the memory of the module back. Nobody runs it any more. Before the jit is destroyed. Thread-safe. */
void opq_jit_remove(opq_jit *jit, const opq_jit_module *module);
/* The same module as text: "llvm" or "asm". malloc'd. */
opq_status opq_jit_text(opq_jit *jit, const char *name, opq_status (*build)(struct opq_emitter *e, void *data),
                        void *data, const char *stage, char **out_text) OPQ_MUST_CHECK;

#endif
