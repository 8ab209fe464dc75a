#include "host_program.h"

#include <torch/csrc/autograd/python_variable.h>

#include <cfloat>
#include <cmath>
#include <cstring>

namespace opq
{

// ---- numbers, as Python computes

std::optional<HostProgram::Op> HostProgram::operation(const std::string &name)
{
#define X(op)                                                                                                          \
    if (name == #op)                                                                                                   \
        return Op::op;
    OPQ_HOST_OPERATIONS(X)
    OPQ_HOST_COMPARISONS(X)
#undef X
    return std::nullopt;
}

namespace
{

bool floor_integers(int64_t a, int64_t b, bool remainder, int64_t &out)
{
    if (b == 0 || (b == -1 && a == INT64_MIN))
        return false;
    int64_t q = a / b, r = a % b;
    if (r != 0 && (r < 0) != (b < 0)) {
        r += b;
        --q;
    }
    out = remainder ? r : q;
    return true;
}

// CPython's float_rem and float_floor_div.
bool floor_reals(double a, double b, bool remainder, double &out)
{
    if (b == 0)
        return false;
    double mod = std::fmod(a, b), div = (a - mod) / b;
    if (mod != 0) {
        if ((b < 0) != (mod < 0)) {
            mod += b;
            div -= 1.0;
        }
    } else {
        mod = std::copysign(0.0, b);
    }
    double floored = std::copysign(0.0, a / b);
    if (div != 0) {
        floored = std::floor(div);
        if (div - floored > 0.5)
            floored += 1.0;
    }
    out = remainder ? mod : floored;
    return true;
}

constexpr int64_t kExact = int64_t{1} << 53;

bool power_integers(int64_t a, int64_t b, int64_t &out)
{
    int64_t result = 1;
    if (b < 0 || b > 64)
        return false;
    for (int64_t i = 0; i < b; ++i)
        if (__builtin_mul_overflow(result, a, &result))
            return false;
    out = result;
    return true;
}

} // namespace

bool HostProgram::compute(Op op, const Register &a, const Register &b, Register &out)
{
    const bool integers = a.integer && b.integer;
    int64_t i = 0;
    double f = 0;
    const auto integer = [&](bool fine) { return fine && (out = Register::of(i), true); };
    const auto real = [&](double value) { return out = Register::of(value), true; };
    switch (op) {
    case Op::add: return integers ? integer(!__builtin_add_overflow(a.i, b.i, &i)) : real(a.real() + b.real());
    case Op::sub: return integers ? integer(!__builtin_sub_overflow(a.i, b.i, &i)) : real(a.real() - b.real());
    case Op::mul: return integers ? integer(!__builtin_mul_overflow(a.i, b.i, &i)) : real(a.real() * b.real());
    case Op::truediv:
        if (b.real() == 0 || (integers && (std::abs(a.i) > kExact || std::abs(b.i) > kExact)))
            return false;
        return real(a.real() / b.real());
    case Op::floordiv:
    case Op::mod:
        if (integers)
            return integer(floor_integers(a.i, b.i, op == Op::mod, i));
        return floor_reals(a.real(), b.real(), op == Op::mod, f) && real(f);
    case Op::pow:
        if (integers)
            return integer(power_integers(a.i, b.i, i));
        if ((a.real() < 0 && b.real() != std::floor(b.real())) || (a.real() == 0 && b.real() < 0))
            return false;
        f = std::pow(a.real(), b.real());
        return (std::isfinite(f) || !std::isfinite(a.real()) || !std::isfinite(b.real())) && real(f);
    case Op::neg: return a.integer ? integer(!__builtin_sub_overflow(int64_t{0}, a.i, &i)) : real(-a.f);
    case Op::abs: return a.integer ? (a.i != INT64_MIN && (i = std::abs(a.i), integer(true))) : real(std::fabs(a.f));
    default: return false;
    }
}

bool HostProgram::holds(Op op, const Register &a, const Register &b)
{
    const auto test = [op](const auto &x, const auto &y) {
        switch (op) {
        case Op::lt: return x < y;
        case Op::le: return x <= y;
        case Op::gt: return x > y;
        case Op::ge: return x >= y;
        case Op::eq: return x == y;
        default: return x != y;
        }
    };
    return a.integer && b.integer ? test(a.i, b.i) : test(a.real(), b.real());
}

// ---- recording

int HostProgram::add_register(Register now)
{
    registers_.push_back(now);
    return static_cast<int>(registers_.size()) - 1;
}

int HostProgram::constant(Register value) { return add_register(value); }

int HostProgram::argument(size_t leaf, Register now)
{
    const int result = add_register(now);
    steps_.push_back({.op = Op::argument, .result = result, .leaf = leaf});
    return result;
}

int HostProgram::dict_item(py::dict dict, py::object key, Register now)
{
    const int result = add_register(now);
    steps_.push_back({.op = Op::dict_item, .result = result, .leaf = items_.size()});
    items_.push_back({std::move(dict), std::move(key)});
    return result;
}

int HostProgram::outer(int number, Register now)
{
    const int result = add_register(now);
    steps_.push_back({.op = Op::outer, .a = number, .result = result});
    return result;
}

int HostProgram::traverse(visitproc visit, void *arg) const
{
    for (const DictItem &item : items_) {
        Py_VISIT(item.dict.ptr());
        Py_VISIT(item.key.ptr());
    }
    for (const HostCall &call : calls_)
        Py_VISIT(call.function.ptr());
    return 0;
}

bool HostProgram::same_as(const HostProgram &other) const
{
    if (steps_.size() != other.steps_.size() || registers_.size() != other.registers_.size() ||
        calls_.size() != other.calls_.size())
        return false;
    std::vector<char> computed(registers_.size(), 0);
    for (size_t i = 0; i < steps_.size(); ++i) {
        const Step &a = steps_[i], &b = other.steps_[i];
        if (a.op != b.op || a.a != b.a || a.b != b.b || a.result != b.result || a.leaf != b.leaf || a.outcome != b.outcome)
            return false;
        if (a.result >= 0)
            computed[static_cast<size_t>(a.result)] = 1;
    }
    for (size_t i = 0; i < registers_.size(); ++i)
        if (!computed[i] && !registers_[i].same(other.registers_[i]))
            return false;
    return true;
}

bool HostProgram::guards() const
{
    return std::any_of(steps_.begin(), steps_.end(),
                       [](const Step &one) { return one.op != Op::outer && one.op != Op::item; });
}

bool HostProgram::writes() const
{
    return std::any_of(calls_.begin(), calls_.end(), [](const HostCall &call) { return !call.written.empty(); });
}

int HostProgram::item(int slot, Register now)
{
    const int result = add_register(now);
    steps_.push_back({.op = Op::item, .a = slot, .result = result});
    return result;
}

int HostProgram::operate(const std::string &name, int a, int b)
{
    const auto op = operation(name);
    Register result{};
    if (!op || !compute(*op, now(a), now(b < 0 ? a : b), result))
        return -1;
    const int made = add_register(result);
    steps_.push_back({.op = *op, .a = a, .b = b, .result = made});
    return made;
}

bool HostProgram::compare(const std::string &name, int a, int b)
{
    const auto op = operation(name);
    TORCH_CHECK(op, "no comparison ", name);
    const bool outcome = holds(*op, now(a), now(b));
    steps_.push_back({.op = *op, .a = a, .b = b, .outcome = outcome});
    return outcome;
}

void HostProgram::guard(int number) { steps_.push_back({.op = Op::guard, .a = number}); }

void HostProgram::guard_finite_f32(int number) { steps_.push_back({.op = Op::guard_finite_f32, .a = number}); }

int HostProgram::slot_of(const at::Tensor &tensor) const
{
    for (size_t i = example_.size(); i-- > 0;)
        if (example_[i].is_same(tensor))
            return static_cast<int>(i);
    return -1;
}

int HostProgram::argument_slot(const at::Tensor &tensor, size_t leaf)
{
    example_.push_back(tensor);
    kept_.emplace_back();
    argument_leaf_.push_back(static_cast<int>(leaf));
    return static_cast<int>(example_.size()) - 1;
}

int HostProgram::kept_slot(const at::Tensor &tensor)
{
    example_.push_back(tensor);
    kept_.push_back(tensor);
    argument_leaf_.push_back(-1);
    return static_cast<int>(example_.size()) - 1;
}

void HostProgram::call(py::object function, std::optional<HostOperator> op, std::vector<int> tensors,
                       std::vector<int> numbers, const std::vector<at::Tensor> &results, std::vector<int> written)
{
    HostCall made{std::move(function), std::move(op), std::move(tensors), std::move(numbers), {}, std::move(written)};
    for (const at::Tensor &tensor : results) {
        int slot = slot_of(tensor);
        if (slot < 0) {
            slot = argument_slot(tensor, 0);
            argument_leaf_.back() = -1;
        }
        made.results.push_back(slot);
    }
    steps_.push_back({.op = Op::call, .call = static_cast<int>(calls_.size())});
    calls_.push_back(std::move(made));
}

int HostProgram::upload(int slot, const Order &order)
{
    const at::Tensor &tensor = example_[static_cast<size_t>(slot)];
    steps_.push_back({.op = Op::upload, .a = slot, .leaf = uploads_.size()});
    uploads_.push_back({slot, order, tensor.scalar_type(), Dims(tensor.sizes().begin(), tensor.sizes().end())});
    return static_cast<int>(uploads_.size()) - 1;
}

// A tensor that Python has seen and that somebody in C++ has, has a reference from its Python object, which it has one of itself.
bool are_all_references(const at::Tensor &tensor, size_t references)
{
    PyObject *const object = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
    return tensor.use_count() == references || (tensor.use_count() == references + 1 && object && Py_REFCNT(object) == 1);
}

bool HostProgram::escapes(const std::vector<at::Tensor> &results)
{
    for (size_t i = example_.size(); i-- > 0;) { // views go before what they are views of
        if (kept_[i].defined() || argument_leaf_[i] >= 0)
            continue;
        if (std::any_of(results.begin(), results.end(), [&](const auto &r) { return r.is_same(example_[i]); }))
            continue;
        if (!are_all_references(example_[i], 1))
            return true;
        example_[i].reset();
    }
    return false;
}

void HostProgram::finish()
{
    bool wrote = false;
    for (const Step &one : steps_) {
        wrote = wrote || (one.op == Op::call && !calls_[static_cast<size_t>(one.call)].written.empty());
        undoes_ = undoes_ || (wrote && one.op != Op::call && one.op != Op::upload);
    }
    example_.clear();
}

// ---- a call

void HostProgram::remember(const at::Tensor &tensor, Run &run)
{
    Before made{tensor, {}, 0};
    if (tensor.numel() == 1 && tensor.itemsize() <= sizeof made.bytes && !tensor.is_neg() && !tensor.is_conj())
        std::memcpy(&made.bytes, tensor.const_data_ptr(), tensor.itemsize());
    else
        made.copy = tensor.detach().clone();
    run.before.push_back(std::move(made));
}

void HostProgram::call_python(const HostCall &call, Run &run, std::vector<at::Tensor> &results)
{
    py::list tensors, numbers;
    for (const int slot : call.tensors)
        tensors.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(run.slots[static_cast<size_t>(slot)])));
    for (const int number : call.numbers)
        numbers.append(run.registers[static_cast<size_t>(number)].python());
    const py::sequence given = call.function(tensors, numbers);
    for (const py::handle one : given)
        results.push_back(THPVariable_Unpack(one.ptr()));
}

bool HostProgram::call_now(const HostCall &call, Run &run) const
{
    for (const int slot : call.written)
        if (undoes_ || run.trial)
            remember(run.slots[static_cast<size_t>(slot)], run);
    std::vector<at::Tensor> results;
    if (call.op) {
        const c10::NoGradGuard off;
        call.op->call(run.slots, run.registers, results);
    } else {
        call_python(call, run, results);
    }
    if (results.size() != call.results.size())
        return false;
    for (size_t i = 0; i < call.results.size(); ++i)
        run.slots[static_cast<size_t>(call.results[i])] = std::move(results[i]);
    return true;
}

void HostProgram::undo(Run &run)
{
    const c10::NoGradGuard off;
    for (auto it = run.before.rbegin(); it != run.before.rend(); ++it) {
        if (it->copy.defined())
            it->tensor.detach().copy_(it->copy);
        else
            std::memcpy(it->tensor.mutable_data_ptr(), &it->bytes, it->tensor.itemsize());
    }
    run.before.clear();
}

namespace
{

bool read_number(PyObject *object, bool integer, Register &out)
{
    if (object && PyFloat_CheckExact(object) && !integer)
        return out = Register::of(PyFloat_AS_DOUBLE(object)), true;
    if (!object || !PyLong_CheckExact(object) || !integer)
        return false;
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0 && (out = Register::of(static_cast<int64_t>(value)), true);
}

Register item_of(const at::Tensor &tensor)
{
    const bool integer = at::isIntegralType(tensor.scalar_type(), true);
    switch (tensor.scalar_type()) { // those of optimizers' counters, without the dispatcher
    case at::kFloat: return Register::of(static_cast<double>(*static_cast<const float *>(tensor.const_data_ptr())));
    case at::kDouble: return Register::of(*static_cast<const double *>(tensor.const_data_ptr()));
    case at::kLong: return Register::of(*static_cast<const int64_t *>(tensor.const_data_ptr()));
    default: return integer ? Register::of(tensor.item<int64_t>()) : Register::of(tensor.item<double>());
    }
}

} // namespace

bool HostProgram::step(const Step &s, const Leaves &leaves, Run &run, std::string *why) const
{
    const auto fails = [&](const std::string &what) {
        if (why)
            *why = what;
        return false;
    };
    auto &r = run.registers;
    const auto at = [](int i) { return static_cast<size_t>(i); };
    switch (s.op) {
    case Op::argument:
        return read_number(leaves.numbers[s.leaf], r[at(s.result)].integer, r[at(s.result)]) ||
               fails("a number of another type");
    case Op::dict_item:
        return read_number(PyDict_GetItem(items_[s.leaf].dict.ptr(), items_[s.leaf].key.ptr()), r[at(s.result)].integer,
                           r[at(s.result)]) ||
               fails("an option of another type");
    case Op::outer: r[at(s.result)] = (*run.outer)[at(s.a)]; return true;
    case Op::item: r[at(s.result)] = item_of(run.slots[at(s.a)]); return true;
    case Op::guard: {
        if (r[at(s.a)].same(registers_[at(s.a)]))
            return true;
        return fails(
            c10::str("a number that Python looked at is ", r[at(s.a)].real(), ", not ", registers_[at(s.a)].real()));
    }
    case Op::guard_finite_f32: return std::abs(r[at(s.a)].real()) <= FLT_MAX || fails("a number that f32 cannot hold");
    case Op::call: return call_now(calls_[at(s.call)], run) || fails("an operator of the CPU gave other results");
    case Op::upload: {
        const Upload &upload = uploads_[s.leaf];
        const at::Tensor &tensor = run.slots[at(upload.slot)];
        if (tensor.scalar_type() != upload.dtype || tensor.sizes() != IntArrayRef(upload.sizes))
            return fails("a tensor of the CPU has another shape");
        run.uploads[s.leaf] = opq::upload(tensor, upload.order);
        return true;
    }
    case Op::lt:
    case Op::le:
    case Op::gt:
    case Op::ge:
    case Op::eq:
    case Op::ne:
        return holds(s.op, r[at(s.a)], r[at(s.b)]) == s.outcome ||
               fails("a comparison of numbers that Python made comes out otherwise");
    default: break;
    }
    const Register &a = r[at(s.a)];
    return (compute(s.op, a, s.b < 0 ? a : r[at(s.b)], r[at(s.result)]) &&
            r[at(s.result)].integer == registers_[at(s.result)].integer) ||
           fails("a number of Python's cannot be computed");
}

bool HostProgram::run(const Leaves &leaves, Run &run, std::string *why, const std::vector<Register> *outer) const
{
    run.outer = outer;
    run.registers = registers_;
    run.slots = kept_;
    run.uploads.resize(uploads_.size());
    for (size_t i = 0; i < run.slots.size(); ++i)
        if (argument_leaf_[i] >= 0)
            run.slots[i] = THPVariable_Unpack(leaves.hosts[static_cast<size_t>(argument_leaf_[i])]);
    for (const Step &one : steps_)
        if (!step(one, leaves, run, why)) {
            undo(run);
            return false;
        }
    return true;
}

} // namespace opq
