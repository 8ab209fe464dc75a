// The code generator on one module. LLVM's C interface has this too, but not the means to leave a pass out other than an option of the
// process, which would be one of everybody's LLVM where a program shares it.
#include "codegen_llvm/emit_object.h"

#include <cstring>
#include <llvm/ADT/SmallString.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/Pass.h>
#include <llvm/PassInfo.h>
#include <llvm/PassRegistry.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>

namespace
{

// Loop strength reduction takes half of the compile time (four fifths of it for unrolled loops) and gains nothing: emitters address
// memory as x86 does, by base, index and constant. What prepares loops for it takes 8 % more.
class Passes final : public llvm::legacy::PassManager
{
  public:
    void add(llvm::Pass *pass) override
    {
        for (const char *const name : {"loop-reduce", "canon-freeze"}) {
            const llvm::PassInfo *const left_out =
                llvm::PassRegistry::getPassRegistry()->getPassInfo(llvm::StringRef(name));
            if (left_out && pass->getPassID() == left_out->getTypeInfo()) {
                delete pass;
                return;
            }
        }
        PassManager::add(pass);
    }
};

} // namespace

bool opq_emit_object(LLVMTargetMachineRef machine, LLVMModuleRef module, LLVMCodeGenFileType type,
                     LLVMMemoryBufferRef *out_buffer)
{
    llvm::Module &code = *llvm::unwrap(module);
    const auto kind = type == LLVMAssemblyFile ? llvm::CodeGenFileType::AssemblyFile : llvm::CodeGenFileType::ObjectFile;
    llvm::SmallString<0> bytes;
    llvm::raw_svector_ostream stream(bytes);
    Passes passes;
    if (reinterpret_cast<llvm::TargetMachine *>(machine)->addPassesToEmitFile(passes, stream, nullptr, kind))
        return false;
    passes.run(code);
    *out_buffer = llvm::wrap(llvm::MemoryBuffer::getMemBufferCopy(bytes).release());
    return true;
}
