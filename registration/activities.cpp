// Runs, plans, compilations and launches as PyTorch's profiler sees them: one RecordFunction for each.
#include <ATen/EmptyTensor.h>
#include <ATen/record_function.h>

#include "lines.h"
#include "activities.h"

namespace opq
{

unsigned char watching = 1;

namespace
{

using Arguments = std::unordered_map<std::string, at::IValue>;

struct Open {
    at::RecordFunction function{at::RecordScope::FUNCTION};
    std::vector<at::IValue> inputs;
};

// Kernels of one plan have numbers, "add_relu_0"; in a profile equal ones are added up.
std::string name_of(const opq_activity &activity)
{
    switch (activity.kind) {
    case OPQ_ACTIVITY_run: return "opaque::run";
    case OPQ_ACTIVITY_plan: return "opaque::plan";
    case OPQ_ACTIVITY_compile: return "opaque::compile";
    case OPQ_ACTIVITY_kernel: break;
    }
    const std::string name = activity.name;
    const size_t end = name.find_last_not_of("0123456789");
    const bool numbered = end != std::string::npos && end > 0 && end + 1 < name.size() && name[end] == '_';
    return "opaque::" + (numbered ? name.substr(0, end) : name);
}

// The line that asks for a run; of a launch, those that recorded its ops.
Arguments arguments_of(const opq_activity &activity)
{
    Arguments result;
    if (activity.kind == OPQ_ACTIVITY_run) {
        result["reason"] = std::string(activity.name);
        result["line"] = line_here();
    } else if (activity.name) {
        result["kernel"] = std::string(activity.name);
    }
    if (activity.kind != OPQ_ACTIVITY_kernel)
        return result;
    result["shape"] = std::string(activity.shape);
    result["line"] = std::string(activity.lines);
    result["kernels"] = activity.rows;
    result["bytes_read"] = activity.bytes_read;
    result["bytes_written"] = activity.bytes_written;
    result["flops"] = activity.flops;
    return result;
}

// What the profiler asks a tensor for, and nothing else: type and shape.
std::vector<at::IValue> inputs_of(const opq_activity &activity)
{
    std::vector<at::IValue> result;
    for (int i = 0; i < activity.operand_count; ++i) {
        const opq_type &type = activity.operands[i];
        const at::ScalarType dtype = torch_dtype(static_cast<opq_dtype>(type.dtype));
        result.emplace_back(at::Tensor(at::detail::empty_meta(IntArrayRef(type.size, type.rank),
                                                              dtype == at::ScalarType::Undefined ? at::kByte : dtype)));
    }
    return result;
}

} // namespace

void set_watched(bool on) { __atomic_store_n(&watching, on, __ATOMIC_RELAXED); }

bool watched(void *) { return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value(); }

void *activity_begin(void *, const opq_activity *activity) noexcept
{
    try {
        auto open = std::make_unique<Open>();
        if (!open->function.isActive())
            return nullptr;
        Arguments arguments;
        if (open->function.needsInputs()) {
            open->inputs = inputs_of(*activity);
            arguments = arguments_of(*activity);
        }
        open->function.before(name_of(*activity), &open->inputs, &arguments);
        return open.release();
    } catch (const std::exception &) { // a profile with a gap is better than no run
        return nullptr;
    }
}

void activity_end(void *, void *open) noexcept
{
    try {
        const std::unique_ptr<Open> owner(static_cast<Open *>(open));
        owner->function.end();
    } catch (const std::exception &) { // of an observer
    }
}

} // namespace opq
