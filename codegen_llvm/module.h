/* LLVM modules: made by a callback, checked, compiled to an object or printed. Thread-safe: several threads compile at once, each in an LLVM
 * context and with a target machine of its own. */
#ifndef OPAQUE_CODEGEN_LLVM_MODULE_H
#define OPAQUE_CODEGEN_LLVM_MODULE_H

#include "graph/graph.h"

#include <llvm-c/TargetMachine.h>
#include <pthread.h>

struct opq_cpu;
struct opq_emitter;

enum { OPQ_MACHINES_IDLE = 4 };
typedef struct opq_compiler {
    const struct opq_cpu *cpu;
    pthread_rwlock_t compiling; /* read while a thread is inside LLVM: a fork waits for that */
    pthread_mutex_t lock;       /* everything below */
    LLVMTargetMachineRef idle[OPQ_MACHINES_IDLE];
    int idle_count;
} opq_compiler;

/* What a module is made by: `build` defines a function called `name`, or a constant. */
typedef struct opq_module {
    const char *name;
    opq_status (*build)(struct opq_emitter *e, void *data);
    void *data;
} opq_module;

void opq_llvm_start(void);        /* once per process, because LLVM's targets are global to it; what follows does it */
void opq_llvm_start_others(void); /* LLVM's targets of other hosts, those that the program is linked with */
void opq_compiler_init(opq_compiler *compiler, const struct opq_cpu *cpu);
void opq_compiler_drop(opq_compiler *compiler);
void opq_compiler_lock(opq_compiler *compiler); /* around a fork */
void opq_compiler_unlock(opq_compiler *compiler, bool in_child);
/* An object whose function is called `symbol`. OPQ_CODEGEN if LLVM's verifier objects. */
opq_status opq_compiler_object(opq_compiler *compiler, const opq_module *module, const char *symbol,
                               LLVMMemoryBufferRef *out_object) OPQ_MUST_CHECK;
/* OPQ_CODEGEN where an object has an undefined symbol: LLVM made a call of an instruction. */
opq_status opq_object_check(LLVMMemoryBufferRef object, const char *name) OPQ_MUST_CHECK;
/* An object as a file, checked. OPQ_INVALID: it cannot be written. */
opq_status opq_compiler_write(opq_compiler *compiler, const opq_module *module, const char *symbol,
                              const char *path) OPQ_MUST_CHECK;
/* "llvm" or "asm". malloc'd. */
opq_status opq_compiler_text(opq_compiler *compiler, const opq_module *module, const char *stage,
                             char **out_text) OPQ_MUST_CHECK;

#endif
