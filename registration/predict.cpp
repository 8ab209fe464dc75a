// What an extern call will give, before it runs.
//
// Result types come from running the operator once on meta tensors; predictions are cached by a text that spells operator,
// constant arguments and operand geometries. Of many operators the meta kernel is Python, and the first call of one imports sympy for a
// quarter of a second, of some all of the compiler of torch.compile for one second. So their CPU kernels are asked, as in a rehearsal (below),
// for as long as that took less than such an import.
//
// Meta kernels let much pass that CPU kernels refuse, above all dtypes for which these have no code, and predict other results for
// some arguments. So that errors come where the call is written, the first call of a kind also runs on the CPU, with operands that
// hold harmless values: it is rehearsed. A call of few elements is of a kind with those of its shapes and numbers, a larger one with
// all of its dtypes.
//
// Both take longer than most operators do on few elements. One that comes with new shapes most of the time runs now instead, where its
// arguments are.
#include <ATen/ops/empty_strided.h>
#include <chrono>
#include <functional>
#include <numeric>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "capturing.h"
#include "below.h"
#include "extern_call.h"
#include "opaque/fork_mutex.h"
#include "quiet.h"

namespace opq
{

namespace
{

struct Known {
    std::shared_ptr<const Prediction> prediction; // NULL: has to run now
    bool proven;
};

// How often calls of an operator were among those that were predicted, and were not. The first ones are predicted in any case.
struct Asked {
    int known = 0, unknown = 0;

    void note(bool found)
    {
        constexpr int kForget = 256;
        ++(found ? known : unknown);
        if (known + unknown >= kForget)
            known /= 2, unknown /= 2;
    }
    bool varies() const
    {
        constexpr int kFirst = 8;
        return unknown > kFirst && unknown > known;
    }
};

struct Predictions {
    ForkMutex mutex;
    std::unordered_map<c10::OperatorName, bool> prefers_cpu;
    double asking = 0; // seconds that CPU kernels were asked in place of meta kernels
    std::unordered_map<std::string, Known> by_key;
    std::unordered_map<c10::OperatorName, Asked> asked;
    std::unordered_set<c10::OperatorName> unreliable; // whose CPU kernel gave something else than predicted
    std::unordered_set<std::string> proven;           // kinds of calls that the CPU kernel is known to accept
};
constexpr size_t kPredictionLimit = 4096;

Predictions &predictions()
{
    static auto *const instance = new Predictions;
    return *instance;
}

constexpr int64_t kFewElements = 4096, kManyElements = int64_t{1} << 26;

int64_t elements_of(const ExternCall &call)
{
    int64_t elements = 0;
    for (const Hole &hole : call.holes)
        elements += c10::multiply_integers(hole.sizes);
    return elements;
}

bool may_run_now() { return (opq_modes_get() & (OPQ_MODE_FORBID_SYNC | OPQ_MODE_STRICT)) == 0 && !capturing_here(); }

std::shared_ptr<const Prediction> prediction_of(const Stack &stack, c10::DeviceType device)
{
    auto result = std::make_shared<Prediction>();
    for (const IValue &value : stack) {
        const Tensor &tensor = value.toTensor();
        if (!tensor.defined()) {
            result->push_back({false, at::ScalarType::Undefined, {}, {}});
            continue;
        }
        if (tensor.layout() != c10::kStrided || tensor.is_quantized() || tensor.dim() > OPQ_RANK_MAX ||
            tensor.device().type() != device)
            return nullptr;
        result->push_back({true, tensor.scalar_type(), Dims(tensor.sizes().begin(), tensor.sizes().end()),
                           dense_order(tensor.sizes(), tensor.strides()).value_or(Order{})});
    }
    return result;
}

std::shared_ptr<const Prediction> run_meta(const ExternCall &call)
{
    const Below below;
    const Quiet quiet;
    Stack stack = filled(call, c10::DeviceType::Meta, [&](size_t i) {
        const Hole &hole = call.holes[i];
        // PyTorch takes a number for one on the CPU only, and asserts that before Python meta kernels. Its value decides no type.
        if (hole.wrapped) {
            Tensor number = at::ones(hole.sizes, at::TensorOptions().dtype(hole.dtype).device(c10::kCPU));
            set_bits(number, hole);
            return number;
        }
        Tensor meta =
            at::empty_strided(hole.sizes, hole.strides, at::TensorOptions().dtype(hole.dtype).device(c10::kMeta));
        set_bits(meta, hole);
        return meta;
    });
    call.op.callBoxed(stack);
    return prediction_of(stack, c10::DeviceType::Meta);
}

Tensor harmless(const Hole &hole)
{
    Tensor tensor = at::empty_strided(hole.sizes, hole.strides, at::TensorOptions().dtype(hole.dtype).device(c10::kCPU));
    const size_t rank = hole.sizes.size();
    const bool real = at::isFloatingType(hole.dtype) && !is_raw(core_dtype(hole.dtype));
    if (rank >= 2 && (real || at::isComplexType(hole.dtype)) && hole.sizes[rank - 1] == hole.sizes[rank - 2])
        tensor.copy_(at::eye(hole.sizes[rank - 1])); // a factorisation wants more than any numbers
    else if (real)
        tensor.fill_(0.5);
    else
        tensor.zero_();
    set_bits(tensor, hole);
    return tensor;
}

// ---- in place of a meta kernel in Python

// Is its meta kernel Python, and may the CPU kernel be asked instead? Whether a number fits a dtype some see only at an element that takes it.
bool prefers_cpu(const OperatorHandle &op)
{
    for (const c10::Argument &argument : op.schema().arguments())
        if (argument.type()->kind() == c10::TypeKind::NumberType)
            return false;
    std::istringstream lines(op.dumpState());
    for (std::string line; std::getline(lines, line);)
        if (line.rfind("Meta: registered at ", 0) == 0)
            return line.find(".py:") != std::string::npos;
    return false;
}

bool may_ask(const ExternCall &call)
{
    constexpr double kImport = 0.25;
    constexpr int64_t kElements = int64_t{1} << 20;
    for (const Hole &hole : call.holes)
        if (hole.sizes.empty()) // it may be taken for a number
            return false;
    const c10::OperatorName &name = call.op.operator_name();
    Predictions &all = predictions();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (elements_of(call) > kElements || all.asking > kImport)
        return false;
    const auto found = all.prefers_cpu.find(name);
    return found != all.prefers_cpu.end() ? found->second : (all.prefers_cpu[name] = prefers_cpu(call.op));
}

Stack rehearsed(const ExternCall &call)
{
    const Below below;
    const Quiet quiet;
    Stack stack = filled(call, c10::DeviceType::CPU, [&](size_t i) { return harmless(call.holes[i]); });
    call.op.callBoxed(stack);
    return stack;
}

// NULL: the CPU kernel does not say, or refuses such values.
std::shared_ptr<const Prediction> ask_cpu(const ExternCall &call)
{
    const auto start = std::chrono::steady_clock::now();
    std::shared_ptr<const Prediction> result;
    try {
        result = prediction_of(rehearsed(call), c10::DeviceType::CPU);
    } catch (const std::exception &) {
    }
    const std::lock_guard<std::mutex> lock(predictions().mutex);
    predictions().asking += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
}

} // namespace

std::shared_ptr<const Prediction> predict(const ExternCall &call, const std::string &key, bool &out_proven)
{
    Predictions &all = predictions();
    {
        const std::lock_guard<std::mutex> lock(all.mutex);
        const auto found = all.by_key.find(key);
        Asked &asked = all.asked[call.op.operator_name()];
        asked.note(found != all.by_key.end());
        if (found != all.by_key.end()) {
            out_proven = found->second.proven;
            return found->second.prediction;
        }
        if (asked.varies() && elements_of(call) <= kFewElements && may_run_now() && !seen_halves())
            return nullptr;
    }
    std::shared_ptr<const Prediction> result = may_ask(call) ? ask_cpu(call) : nullptr;
    out_proven = result != nullptr;
    try {
        if (!result)
            result = run_meta(call);
    } catch (const c10::NotImplementedError &) {
    } catch (const c10::Error &) {
        if (!may_run_now())
            throw;
        return nullptr;
    } catch (const std::exception &) { // a meta kernel written in Python refused: the CPU kernel decides
    }
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.unreliable.count(call.op.operator_name()))
        result = nullptr;
    if (all.by_key.size() >= kPredictionLimit)
        all.by_key.clear();
    all.by_key.emplace(key, Known{result, out_proven});
    return result;
}

void mispredicted(const Predicted &expected, const Tensor &given, const OperatorHandle &op)
{
    const std::string name = toString(op.operator_name());
    const std::string promised = expected.defined ? c10::str(expected.dtype, IntArrayRef(expected.sizes)) : "nothing";
    const std::string got = given.defined() ? c10::str(given.scalar_type(), given.sizes()) : "nothing";
    Predictions &all = predictions();
    {
        const std::lock_guard<std::mutex> lock(all.mutex);
        all.unreliable.insert(op.operator_name());
        for (auto &[key, known] : all.by_key)
            if (key.rfind(name + "(", 0) == 0)
                known.prediction = nullptr;
    }
    TORCH_CHECK(false, "the CPU kernel gave ", got, " where the meta kernel of ", name, " promised ", promised,
                ". The tensor that was promised cannot be had; the next call of the operator will not be deferred");
}

// ---- rehearsing

namespace
{

bool as_predicted(const Prediction &prediction, const Stack &results)
{
    if (prediction.size() != results.size())
        return false;
    for (size_t i = 0; i < prediction.size(); ++i) {
        const Tensor &given = results[i].toTensor();
        if (given.defined() != prediction[i].defined)
            return false;
        if (given.defined() &&
            (given.scalar_type() != prediction[i].dtype || given.sizes() != IntArrayRef(prediction[i].sizes)))
            return false;
    }
    return true;
}

bool is_proven(const std::string &kind)
{
    const std::lock_guard<std::mutex> lock(predictions().mutex);
    return predictions().proven.count(kind) != 0;
}

} // namespace

void prove(const std::string &kind)
{
    if (kind.empty())
        return;
    const std::lock_guard<std::mutex> lock(predictions().mutex);
    if (predictions().proven.size() >= kPredictionLimit)
        predictions().proven.clear();
    predictions().proven.insert(kind);
}

bool rehearse(const ExternCall &call, const std::string &constants, const std::string &types, std::string &out_kind)
{
    const int64_t elements = elements_of(call);
    std::string dtypes;
    for (const Hole &hole : call.holes)
        dtypes += std::string(c10::toString(hole.dtype)) + ";";
    double results = 0; // sizes that a user asks for may overflow an integer
    for (const Predicted &result : *call.prediction)
        results += std::accumulate(result.sizes.begin(), result.sizes.end(), 1.0, std::multiplies<>());
    if (elements > kManyElements || results > static_cast<double>(kManyElements))
        return true;
    std::string kind = elements <= kFewElements ? constants + types : toString(call.op.operator_name()) + dtypes;
    if (!is_proven(kind)) {
        try {
            if (!as_predicted(*call.prediction, rehearsed(call)))
                return !may_run_now();
        } catch (const std::exception &) {
            out_kind = std::move(kind);
            return !may_run_now();
        }
        prove(kind);
    }
    const std::lock_guard<std::mutex> lock(predictions().mutex);
    const auto known = predictions().by_key.find(constants + types);
    if (known != predictions().by_key.end())
        known->second.proven = true;
    return true;
}

} // namespace opq
