// Operators that go to CPU kernels although PyTorch has some way of its own for this device: convolutions, and structured
// operators, whose default path (a meta call, an empty result, the out overload) costs three times a direct extern node.
#include <unordered_set>

#include "adapter.h"
#include "fallbacks.h"

namespace opq
{

namespace
{

bool always_extern(Call &) { return false; }

// convolution_overrideable has convolution's arguments.
void convolution(const OperatorHandle &, Stack *stack)
{
    static const OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
    fallback(op, stack);
}

// (grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask); theirs has the sizes
// of the bias behind the weight.
void convolution_backward(const OperatorHandle &, Stack *stack)
{
    static const OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
    const auto args = stack->end() - 10;
    const Tensor &grad = args[0].toTensor(), &weight = args[2].toTensor();
    const int64_t channels = grad.size(grad.dim() == weight.dim() ? 1 : 0);
    stack->insert(args + 3, c10::List<int64_t>({channels}));
    fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("convolution_overrideable", boxed_kernel<&convolution>());
    library.impl("convolution_backward_overrideable", boxed_kernel<&convolution_backward>());
    adapt(library, "_masked_softmax", &always_extern);
    // One kernel of theirs serves every device and reads the memory of its operands.
    for (const char *name : {"_grid_sampler_2d_cpu_fallback", "_grid_sampler_2d_cpu_fallback_backward",
                             "mkldnn_convolution", "_nnpack_spatial_convolution", "conj_physical_", "mode.values"})
        library.impl(name, boxed_kernel<&fallback>());
    // And theirs reads or writes it even where there are no values, as on the meta device: they run at once.
    for (const char *name :
         {"kaiser_window", "kaiser_window.periodic", "kaiser_window.beta", "range.out_", "choose_qparams_optimized",
          "_sobol_engine_draw", "_sobol_engine_ff_", "_sobol_engine_initialize_state_", "_sobol_engine_scramble_"})
        library.impl(name, boxed_kernel<&extern_now>());
}

} // namespace

namespace
{

std::unordered_set<c10::OperatorName> &without_kernel()
{
    static auto *const names = new std::unordered_set<c10::OperatorName>; // filled while the module is loaded
    return *names;
}

} // namespace

bool has_no_kernel(const OperatorHandle &op) { return without_kernel().count(op.operator_name()) > 0; }

void register_structured()
{
    static auto *const library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1,
                                                    __FILE__, __LINE__); // for the process
    for (const auto &name : c10::Dispatcher::singleton().getAllOpNamesForDispatchKey(
             c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
        const auto op = c10::Dispatcher::singleton().findSchema(name);
        if (!op || name.name.rfind("aten::", 0) != 0 || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
            !op->hasKernelForDispatchKey(c10::DispatchKey::CPU))
            continue;
        const auto target = functional_of(*op);
        if (!target || target->form != Form::functional)
            continue;
        adapt_functional(*library, toString(name).substr(6).c_str(), &always_extern);
        without_kernel().insert(name);
    }
}

// ---- operators of other libraries in programs of CPU tensors

namespace
{

thread_local bool as_on_cpu = false;

// One kernel of theirs serves every device. A user who compiled a program of CPU tensors expects it to see such.
void run_as_on_cpu(const OperatorHandle &op, Stack *stack)
{
    if (as_on_cpu)
        fallback(op, stack);
    else
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse3), stack); // which has no kernel but that one
}

} // namespace

void take_as_on_cpu(const std::string &name, const std::string &overload)
{
    const OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
    if (op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
        !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))
        return;
    auto *const library = new torch::Library(torch::Library::IMPL, name.substr(0, name.find(':')),
                                             c10::DispatchKey::PrivateUse1, __FILE__, __LINE__); // for the process
    library->impl(toString(op.operator_name()).c_str(), boxed_kernel<&run_as_on_cpu>());
}

bool set_as_on_cpu(bool value) { return std::exchange(as_on_cpu, value); }

} // namespace opq
