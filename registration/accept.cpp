// Whether the CPU kernel takes a call that a kernel of ours would compute.
//
// PyTorch's kernels differ in the dtypes they have code for, and refuse the others in words of their own. A table of that would be
// a copy of PyTorch. Instead the first call of a kind also goes to the CPU kernel, with operands of a single element where shapes
// are free, and a generator of our own. Calls whose tensors are all of one floating dtype are not looked at: kernels exist for these,
// and they are most.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <unordered_set>

#include "adapter.h"
#include "below.h"
#include "quiet.h"

namespace opq
{

namespace
{

constexpr int64_t kFewElements = 4096;
constexpr size_t kKindLimit = 65536;

bool usual(at::ScalarType dtype)
{
    return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16;
}

bool all_of_one_floating_dtype(const IValue *args, size_t count)
{
    at::ScalarType first = at::ScalarType::Undefined;
    for (size_t i = 0; i < count; ++i) {
        if (args[i].isTensorList()) // joining has no arithmetic
            continue;
        if (!args[i].isTensor() || !args[i].toTensor().defined())
            continue;
        const at::ScalarType dtype = args[i].toTensor().scalar_type();
        if (first == at::ScalarType::Undefined)
            first = dtype;
        if (dtype != first || !usual(dtype))
            return false;
    }
    return true;
}

// What a call has in common with others, as a number.
struct Kind {
    const bool elementwise, parameters; // numbers are parameters: their values count
    uint64_t hash = 0xcbf29ce484222325U;
    int64_t elements = 0;
    Dims sizes{};
    bool known = true; // every argument was understood

    void mix(uint64_t word) { hash = (hash ^ word) * 0x100000001b3U + (hash >> 29); }

    void add_tensor(const Tensor &tensor)
    {
        mix(static_cast<uint64_t>(tensor.scalar_type()) * 8 + 1);
        mix(static_cast<uint64_t>(tensor.dim()) * 2 + tensor.unsafeGetTensorImpl()->is_wrapped_number());
        if (elementwise)
            return;
        elements += tensor.numel();
        sizes.append(tensor.sizes().begin(), tensor.sizes().end());
    }

    // Sizes count as they compare with each other, and by being 0 or 1: a program whose lengths change tries each operator a few times.
    void add_sizes()
    {
        for (const int64_t size : sizes) {
            const auto below = std::count_if(sizes.begin(), sizes.end(), [&](int64_t other) { return other < size; });
            mix(size <= 1 ? static_cast<uint64_t>(size) : 2 + static_cast<uint64_t>(below));
        }
    }

    void add_number(const IValue &value)
    {
        mix(value.isDouble() ? 2 : value.isInt() ? 3 : value.isBool() ? 4 : 5);
        const bool counts = parameters || !elementwise;
        if (counts && value.isDouble())
            mix(c10::bit_cast<uint64_t>(value.toDouble()));
        else if (counts && value.isInt())
            mix(static_cast<uint64_t>(value.toInt()));
        else if (value.isBool())
            mix(value.toBool());
    }

    void add(const IValue &value)
    {
        if (value.isTensor() && value.toTensor().defined()) {
            add_tensor(value.toTensor());
        } else if (value.isScalar() || value.isBool()) {
            add_number(value);
        } else if (value.isNone() || value.isTensor()) {
            mix(6);
        } else if (value.isString()) {
            mix(std::hash<std::string>()(value.toStringRef()));
        } else if (value.isIntList()) {
            for (const int64_t element : value.toDimVector())
                mix(static_cast<uint64_t>(element));
            mix(7);
        } else {
            known = false;
        }
    }
};

// Nobody's numbers: a trial must not advance a generator that a program draws from.
const at::Generator &trial_generator()
{
    static thread_local const at::Generator generator = at::detail::createCPUGenerator(0);
    return generator;
}

bool is_generator(const c10::Argument &argument) { return argument.name() == "generator"; }

// The CPU's default generator is all that it can draw from.
bool draws_from_default(const c10::FunctionSchema &schema, c10::ArrayRef<at::Tag> tags)
{
    return std::find(tags.begin(), tags.end(), at::Tag::nondeterministic_seeded) != tags.end() &&
           std::none_of(schema.arguments().begin(), schema.arguments().end(), is_generator);
}

// The arguments, each tensor replaced by one of ones or zeros: of one element where shapes are free, of none where it is written.
Stack stand_ins(const Call &call, size_t total, bool elementwise, bool ones)
{
    Stack stack(call.args, call.args + total);
    for (size_t i = 0; i < total; ++i) {
        if (i < call.count && is_generator(call.op.schema().arguments()[i]))
            stack[i] = trial_generator();
        if (!stack[i].isTensor() || !stack[i].toTensor().defined())
            continue;
        const Tensor tensor = stack[i].toTensor();
        const Dims one(static_cast<size_t>(tensor.dim()), 1), none{0};
        const IntArrayRef sizes = i >= call.count ? IntArrayRef(none) : elementwise ? IntArrayRef(one) : tensor.sizes();
        const auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(c10::kCPU);
        Tensor made = ones ? at::ones(sizes, options) : at::zeros(sizes, options);
        if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
            made.unsafeGetTensorImpl()->set_wrapped_number(true);
        stack[i] = std::move(made);
    }
    return stack;
}

std::unordered_set<uint64_t> &accepted_kinds()
{
    static thread_local std::unordered_set<uint64_t> kinds;
    return kinds;
}

} // namespace

bool accepted(const OperatorHandle &op, const Call &call, size_t total, uint64_t &out_kind)
{
    out_kind = 0;
    const bool tests_into = total > call.count && opq_op_info_of(call.row)->rule == OPQ_RULE_BOOL;
    if (!tests_into && all_of_one_floating_dtype(call.args, total))
        return true;
    const bool elementwise = opq_op_info_of(call.row)->class_ == OPQ_CLASS_EWISE;
    Kind kind{elementwise, op.operator_name().overload_name.find("Scalar") == std::string::npos};
    kind.mix(reinterpret_cast<uintptr_t>(&op.schema()));
    kind.mix(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));
    kind.mix(at::globalContext().deterministicAlgorithms());
    for (size_t i = 0; i < total; ++i)
        kind.add(call.args[i]);
    kind.add_sizes();
    if (!kind.known || kind.elements > kFewElements || accepted_kinds().count(kind.hash) != 0 ||
        (opq_modes_get() & (OPQ_MODE_FORBID_SYNC | OPQ_MODE_STRICT)) != 0 ||
        draws_from_default(op.schema(), op.getTags()))
        return true;
    const Below below;
    const Quiet quiet;
    for (const bool ones :
         {elementwise, !elementwise}) // a divisor must not be 0; 1 may be no index, and not every kernel looks
        try {
            Stack stack = stand_ins(call, total, elementwise, ones);
            op.callBoxed(stack);
            accept_kind(kind.hash);
            return true;
        } catch (const std::exception &) { // the call itself raises what this means to the user
        }
    out_kind = kind.hash;
    return false;
}

void accept_kind(uint64_t kind)
{
    if (kind == 0)
        return;
    if (accepted_kinds().size() >= kKindLimit)
        accepted_kinds().clear();
    accepted_kinds().insert(kind);
}

} // namespace opq
