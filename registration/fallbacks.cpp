// Operators that run through PyTorch's CPU kernels: counted, told of once, and forbidden in strict mode.
//
// What of a call is the reason is found by trying: the same call with one thing changed (f32 in place of its dtype, an argument's default) is
// recorded on tensors without values, in a mode in which what has no native kernel raises, and dropped.
#include <map>
#include <set>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "adapter.h"
#include "below.h"
#include "fallbacks.h"
#include "modes.h"
#include "opaque/fork_mutex.h"
#include "opaque/log.h"

namespace opq
{

namespace
{

struct Counts {
    ForkMutex mutex;
    std::unordered_map<c10::OperatorName, int64_t> by_op; // their texts are dear to make
    std::unordered_set<c10::OperatorName> warned;
};
Counts &counts()
{
    static auto *const instance = new Counts;
    return *instance;
}

bool from_environment(const char *name, bool otherwise)
{
    const char *const text = std::getenv(name);
    return text && *text ? std::string_view(text) != "0" : otherwise;
}

thread_local bool trying = false;

// ---- the reason

class Trial
{
  public:
    Trial() : modes_(opq_modes_get())
    {
        trying = true;
        opq_modes_set(OPQ_MODE_STRICT);
    }
    ~Trial()
    {
        trying = false;
        opq_modes_set(modes_);
    }
    Trial(const Trial &) = delete;
    Trial &operator=(const Trial &) = delete;

  private:
    const unsigned modes_;
    const Below below_;
};

bool is_native(const OperatorHandle &op, Stack stack)
{
    try {
        op.callBoxed(stack);
        return true;
    } catch (const std::exception &) { // also a Decline
        return false;
    }
}

// As Python calls it.
std::string dtype_name(at::ScalarType dtype) { return std::string(c10::getDtypeNames(dtype).first); }

// Another dtype for a tensor's; none: as it is.
using Change = std::optional<at::ScalarType> (*)(at::ScalarType dtype);

std::optional<at::ScalarType> keep(at::ScalarType) { return std::nullopt; }
std::optional<at::ScalarType> floating_to_f32(at::ScalarType dtype)
{
    const bool other = (at::isFloatingType(dtype) || at::isComplexType(dtype)) && dtype != at::kFloat;
    return other ? std::optional(at::kFloat) : std::nullopt;
}
std::optional<at::ScalarType> integers_to_f32(at::ScalarType dtype)
{
    return at::isIntegralType(dtype, true) ? std::optional(at::kFloat) : std::nullopt;
}

// Tensors without values in place of those of this device; `changed` gets the dtypes that are others now.
Tensor stand_in(const Tensor &tensor, Change change, std::set<std::string> &changed)
{
    if (!tensor.defined() || !on_device(tensor))
        return tensor;
    const auto dtype = change(tensor.scalar_type());
    if (dtype)
        changed.insert(dtype_name(tensor.scalar_type()));
    return at::empty(tensor.sizes(), tensor.options().dtype(dtype.value_or(tensor.scalar_type())));
}

IValue stand_in(const c10::Argument &argument, const IValue &value, Change change, std::set<std::string> &changed)
{
    if (value.isTensor())
        return stand_in(value.toTensor(), change, changed);
    if (!is_list_of_tensors(value))
        return value;
    std::vector<std::optional<Tensor>> elements;
    for (const IValue &element : value.toListRef())
        elements.push_back(element.isTensor() ? std::optional(stand_in(element.toTensor(), change, changed))
                                              : std::nullopt);
    return list_for(argument, elements);
}

bool is_plain(const IValue &value)
{
    return value.isBool() || value.isInt() || value.isDouble() || value.isString() || value.isIntList() ||
           value.isDoubleList();
}

std::string shown(const IValue &value)
{
    if (value.isBool())
        return value.toBool() ? "True" : "False";
    if (value.isString())
        return "'" + value.toStringRef() + "'";
    std::ostringstream text;
    text << value;
    return text.str();
}

// As the caller would write it: "antialias=True"; of what is no plain value the name.
std::string shown(const c10::Argument &argument, const IValue &value)
{
    if (!is_plain(value))
        return argument.name();
    const bool is_dtype = argument.name() == "dtype" && value.isInt();
    return argument.name() + "=" + (is_dtype ? dtype_name(value.toScalarType()) : shown(value));
}

std::string shown(const Tensor &tensor)
{
    std::ostringstream text;
    text << dtype_name(tensor.scalar_type()) << tensor.sizes();
    return text.str();
}

// All of them, but for defaults.
std::string all_arguments(const OperatorHandle &op, c10::ArrayRef<IValue> values)
{
    const auto &arguments = op.schema().arguments();
    std::string text;
    for (size_t i = 0; i < values.size(); ++i) {
        const auto standard = arguments[i].default_value();
        std::string word;
        if (values[i].isTensor() && values[i].toTensor().defined())
            word = shown(values[i].toTensor());
        else if (is_plain(values[i]) && !(standard && *standard == values[i]))
            word = shown(arguments[i], values[i]);
        if (!word.empty())
            text += (text.empty() ? "" : ", ") + word;
    }
    return text;
}

// The values as stand-ins, of which the dtypes may be changed.
Stack stand_ins(const OperatorHandle &op, c10::ArrayRef<IValue> values, Change change, std::set<std::string> &changed)
{
    Stack stack;
    for (size_t i = 0; i < values.size(); ++i)
        stack.push_back(stand_in(op.schema().arguments()[i], values[i], change, changed));
    return stack;
}

// What stands in the default's place if the default is the reason as well.
std::vector<IValue> instead_of(const c10::Argument &argument, const IValue &value)
{
    std::vector<IValue> others;
    const auto standard = argument.default_value();
    if (standard && !(*standard == value))
        others.push_back(*standard);
    if (value.isBool())
        others.emplace_back(!value.toBool());
    else if (argument.type()->kind() == c10::TypeKind::OptionalType && !value.isNone())
        others.emplace_back();
    return others;
}

std::string found_reason(const OperatorHandle &op, c10::ArrayRef<IValue> values)
{
    std::set<std::string> dtypes;
    for (const Change change : {&floating_to_f32, &integers_to_f32}) {
        dtypes.clear();
        const Stack stack = stand_ins(op, values, change, dtypes);
        if (dtypes.empty() || !is_native(op, stack))
            continue;
        std::string text;
        for (const std::string &dtype : dtypes)
            text += (text.empty() ? "for " : " and ") + dtype;
        return text;
    }
    const Stack same = stand_ins(op, values, &keep, dtypes);
    if (is_native(op, same))
        return "for operands that lie in memory as these do";
    for (size_t i = 0; i < values.size(); ++i)
        for (const IValue &other : instead_of(op.schema().arguments()[i], values[i])) {
            Stack stack = same;
            stack[i] = other;
            if (!is_native(op, stack))
                continue;
            return "with " + shown(op.schema().arguments()[i], values[i]);
        }
    return "";
}

// Only of what records nothing but its results.
bool may_try(const OperatorHandle &op)
{
    return !op.schema().is_mutable() && !op.hasTag(at::Tag::nondeterministic_seeded);
}

std::string reason_of(const OperatorHandle &given, c10::ArrayRef<IValue> values)
{
    const auto target = functional_of(given);
    const OperatorHandle &op = target ? target->functional : given;
    const size_t count = op.schema().arguments().size();
    if (!op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) || has_no_kernel(op) || values.size() < count)
        return "has no native kernel";
    values = values.slice(0, count);
    for (const IValue &value : values)
        if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_nested())
            return "has no native kernel for nested tensors";
    std::string reason;
    if (may_try(op)) {
        const Trial trial;
        reason = found_reason(op, values);
    }
    note_line(); // the trial was no op of the program
    return "has no native kernel " + (reason.empty() ? "for these arguments: " + all_arguments(op, values) : reason);
}

// ---- telling of it

void forbid_if_strict(const OperatorHandle &op, c10::ArrayRef<IValue> values)
{
    static const bool strict = from_environment("OPAQUE_STRICT", false);
    if (!strict && (opq_modes_get() & OPQ_MODE_STRICT) == 0)
        return;
    TORCH_CHECK_NOT_IMPLEMENTED(!trying, "no native kernel");
    TORCH_CHECK_NOT_IMPLEMENTED(false, toString(op.operator_name()), " ", reason_of(op, values), " on device ",
                                device(), ", and strict mode forbids running it through the CPU kernel");
}

bool is_told(const c10::OperatorName &name)
{
    static const bool warn = from_environment("OPAQUE_FALLBACK_WARN", true);
    const std::lock_guard<std::mutex> lock(counts().mutex);
    return !warn || counts().warned.count(name) > 0;
}

} // namespace

bool tries_fallback() { return trying; }

std::string about_fallback(const OperatorHandle &op, c10::ArrayRef<IValue> values)
{
    forbid_if_strict(op, values);
    return is_told(op.operator_name()) ? "" : reason_of(op, values);
}

void count_fallback(const OperatorHandle &op, const std::string &about)
{
    bool first = false;
    {
        const std::lock_guard<std::mutex> lock(counts().mutex);
        ++counts().by_op[op.operator_name()];
        first = !about.empty() && counts().warned.insert(op.operator_name()).second;
    }
    if (!first && !opq_logs(OPQ_LOG_fallback, OPQ_LOG_INFO))
        return;
    const std::string name = toString(op.operator_name());
    const std::string line = line_of_op();
    if (opq_logs(OPQ_LOG_fallback, OPQ_LOG_INFO))
        opq_log("fallback: %s at %s", name.c_str(), line.c_str());
    if (first)
        fprintf(stderr,
                "[opaque] %s: %s %s; it runs through PyTorch's CPU kernel (OPAQUE_FALLBACK_WARN=0 silences this)\n",
                line.c_str(), name.c_str(), about.c_str());
}

std::map<std::string, int64_t> fallback_counts()
{
    const std::lock_guard<std::mutex> lock(counts().mutex);
    std::map<std::string, int64_t> by_text;
    for (const auto &[name, count] : counts().by_op)
        by_text[toString(name)] = count;
    return by_text;
}

void reset_fallback_counts()
{
    const std::lock_guard<std::mutex> lock(counts().mutex);
    counts().by_op.clear();
}

} // namespace opq
