/* The compiler's last step, which the linker's --wrap gives to a test. */
#ifndef OPAQUE_TESTS_CODEGEN_WRAPPED_COMPILER_H
#define OPAQUE_TESTS_CODEGEN_WRAPPED_COMPILER_H

#include "codegen_llvm/module.h"

opq_status __real_opq_compiler_object(opq_compiler *c, const opq_module *module, const char *symbol,
                                      LLVMMemoryBufferRef *out_object);
opq_status __wrap_opq_compiler_object(opq_compiler *c, const opq_module *module, const char *symbol,
                                      LLVMMemoryBufferRef *out_object);

#endif
