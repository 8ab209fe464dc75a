/* LLVM's targets besides the host's, as far as the program is linked with them: opq-opt and tests are, the extension is not (CMakeLists.txt).
 * In a file of its own, because a name that may be missing does not bring what it names from an archive.
 */
#include "codegen_llvm/module.h"

#define LLVM_TARGET(name)                                                                                              \
    __attribute__((weak)) void LLVMInitialize##name##TargetInfo(void);                                                 \
    __attribute__((weak)) void LLVMInitialize##name##Target(void);                                                     \
    __attribute__((weak)) void LLVMInitialize##name##TargetMC(void);                                                   \
    __attribute__((weak)) void LLVMInitialize##name##AsmPrinter(void);
#include <llvm/Config/Targets.def>

static void start(void)
{
#define LLVM_TARGET(name)                                                                                              \
    if (LLVMInitialize##name##TargetInfo && LLVMInitialize##name##Target && LLVMInitialize##name##TargetMC &&          \
        LLVMInitialize##name##AsmPrinter) {                                                                            \
        LLVMInitialize##name##TargetInfo();                                                                            \
        LLVMInitialize##name##Target();                                                                                \
        LLVMInitialize##name##TargetMC();                                                                              \
        LLVMInitialize##name##AsmPrinter();                                                                            \
    }
#include <llvm/Config/Targets.def>
}

void opq_llvm_start_others(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
}
