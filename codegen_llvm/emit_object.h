/* The code generator on one module, for jit.c. */
#ifndef OPAQUE_CODEGEN_LLVM_EMIT_OBJECT_H
#define OPAQUE_CODEGEN_LLVM_EMIT_OBJECT_H

#include <llvm-c/TargetMachine.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C"
#endif
    /* An object, or assembly, of the module. False: the machine makes no such file. */
    bool opq_emit_object(LLVMTargetMachineRef machine, LLVMModuleRef module, LLVMCodeGenFileType type,
                         LLVMMemoryBufferRef *out_buffer);

#endif
