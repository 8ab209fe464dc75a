#include "capturing.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/python_symnode.h>

#include "lines.h"
#include "modes.h"

namespace opq
{

std::atomic<int> open_capturings{0};

Capturing *find_capturing()
{
    inherit_modes();
    const opq_capturing *const here = opq_capturing_here(context());
    return here ? static_cast<Capturing *>(opq_capturing_host(here)) : nullptr;
}

Capturing::Capturing()
{
    inherit_modes();
    const auto begin = [this] {
        const PythonUnlocked unlocked; // what is pending runs first
        return opq_capturing_begin(context(), this, &core);
    };
    check(begin());
    ++open_capturings;
}

void Capturing::end()
{
    if (ended_)
        return;
    ended_ = true;
    for (const Reached &one : reached)
        if (one.node)
            one.node->del_post_hook(one.hook);
    --open_capturings;
    opq_capturing_end(core);
}

Capturing::~Capturing()
{
    end();
    opq_capturing_drop(core);
}

namespace
{

// Of what a tensor that was there before was made of, another call knows nothing.
struct GoesThrough : torch::autograd::FunctionPostHook {
    explicit GoesThrough(Capturing &capturing) : capturing_(capturing) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list &made,
                                              const torch::autograd::variable_list &) override
    {
        capturing_.refuse("a gradient goes through what was computed before it");
        return made;
    }

  private:
    Capturing &capturing_;
};

} // namespace

void Capturing::reach(const Tensor &tensor)
{
    const OpaqueImpl *const impl = impl_or_null(tensor);
    if (!impl || impl->made_in() == opq_capturing_id(core) || opq_capturing_made_it(core, impl->cell()))
        return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!seen_.emplace(impl, reached.size()).second)
        return;
    Reached one{WeakImpl(tensor.getIntrusivePtr()),
                tensor.requires_grad(),
                torch::autograd::impl::grad_fn_unsafe(tensor),
                {},
                false,
                {},
                0};
    if (one.grad_fn && !forward_ && !replays) {
        one.node = tensor.grad_fn();
        one.hook = one.node->add_post_hook(std::make_unique<GoesThrough>(*this));
    } else if (one.requires_grad && !one.grad_fn) {
        one.grad = tensor.grad();
    }
    reached.push_back(std::move(one));
}

void Capturing::reach_gradient(const Tensor &tensor)
{
    reach(tensor);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = seen_.find(tensor.unsafeGetTensorImpl()); found != seen_.end())
        reached[found->second].asked = true;
}

void Capturing::refuse(const std::string &why)
{
    const std::lock_guard<std::mutex> lock(mutex_);
    if (refused.empty())
        refused = why + ", at " + line_here();
}

std::pair<Value, Value> Capturing::draw(const at::Generator &generator, uint64_t seed, uint64_t offset)
{
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t which = 0;
    while (which < draws.size() && !(draws[which].generator == generator))
        ++which;
    if (which == draws.size()) {
        draws.push_back({generator, offset, static_cast<int>(numbers.size())});
        numbers.push_back({NumberSource::Kind::seed, which, 0});
    }
    const auto make = [](uint64_t now, int id) {
        opq_number bits{};
        bits.i = static_cast<int64_t>(now);
        opq_value *out = nullptr;
        check(opq_value_number(context(), OPQ_i64, bits, false, id, &out));
        return Value::take(out);
    };
    const int id = static_cast<int>(numbers.size());
    numbers.push_back({NumberSource::Kind::offset, which, offset - draws[which].base});
    return {make(seed, draws[which].seed_id), make(offset, id)};
}

Value Capturing::number(int reg, opq_dtype dtype, bool weak)
{
    const py::gil_scoped_acquire lock;
    const Register &now = program.now(reg);
    opq_number bits{};
    const bool real = is_float(dtype);
    if (real)
        bits.f = now.real();
    else
        bits.i = now.i;
    if (!real) // whether a division by it fails is asked when it is recorded
        program.compare(now.i == 0 ? "eq" : "ne", reg, program.constant(Register::of(int64_t{0})));
    opq_value *out = nullptr;
    check(opq_value_number(context(), dtype, bits, weak, static_cast<int>(numbers.size()), &out));
    numbers.push_back({real ? NumberSource::Kind::real : NumberSource::Kind::integer, static_cast<size_t>(reg), 0});
    return Value::take(out);
}

bool Capturing::is_fresh(const Tensor &tensor) const
{
    return std::any_of(fresh.begin(), fresh.end(), [&](const Tensor &one) { return one.is_same(tensor); });
}

int Capturing::slot(const Tensor &tensor)
{
    const int known = program.slot_of(tensor);
    if (known >= 0)
        return known;
    for (size_t i = 0; i < host_arguments.size(); ++i)
        if (host_arguments[i].is_same(tensor))
            return program.argument_slot(tensor, i);
    return program.kept_slot(tensor);
}

// What no operator was given that Python called is made by a kernel, or of a list (torch.tensor([..], device=..)).
bool Capturing::is_constant(const Tensor &tensor)
{
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number() || is_fresh(tensor))
        return true;
    if (std::any_of(given.begin(), given.end(), [&](const Tensor &one) { return one.is_same(tensor); }))
        return false;
    if (!std::all_of(given.begin(), given.end(), [&](const Tensor &one) { return is_fresh(one); }))
        refuse("a tensor of the CPU is converted on its way to the device");
    return true;
}

void Capturing::follow(Capturing &forward)
{
    forward_ = &forward;
    fresh = forward.fresh;
}

int Capturing::outer(int reg)
{
    const auto [found, is_new] = outer_.emplace(reg, -1);
    if (is_new)
        found->second = program.outer(reg, forward_->program.now(reg));
    return found->second;
}

int64_t Capturing::reads(const Tensor &tensor) const
{
    const auto found = reads_.find(tensor.unsafeGetTensorImpl());
    return found == reads_.end() ? 0 : found->second;
}

std::optional<int> Capturing::item(const Tensor &tensor)
{
    const py::gil_scoped_acquire lock;
    ++reads_[tensor.unsafeGetTensorImpl()];
    if (forward_) {
        if (const int slot = forward_->program.slot_of(tensor); slot >= 0 && !forward_->program.is_kept(slot))
            refuse("its gradient reads a tensor of the CPU");
    }
    if (is_constant(tensor))
        return std::nullopt;
    const bool integer = at::isIntegralType(tensor.scalar_type(), true);
    if (!integer && !at::isFloatingType(tensor.scalar_type())) {
        refuse("a complex number is read from a tensor of the CPU");
        return std::nullopt;
    }
    const c10::impl::ExcludeDispatchKeyGuard off(c10::DispatchKeySet(c10::DispatchKey::Python));
    return program.item(slot(tensor),
                        integer ? Register::of(tensor.item<int64_t>()) : Register::of(tensor.item<double>()));
}

void Capturing::note_upload(const Tensor &tensor, const Order &order, const Value &leaf)
{
    const py::gil_scoped_acquire lock;
    ++reads_[tensor.unsafeGetTensorImpl()];
    if (is_constant(tensor))
        return;
    if (is_wide(tensor))
        return refuse("a tensor of the CPU with many dims is copied to the device");
    opq_capturing_upload(core, leaf.get(), program.upload(slot(tensor), order));
}

std::optional<int> register_of(const at::Scalar &number)
{
    Capturing *const here = number.isSymbolic() ? capturing_here() : nullptr;
    if (!here)
        return std::nullopt;
    const c10::SymNode node =
        number.isFloatingPoint() ? number.toSymFloat().toSymNodeImpl() : number.toSymInt().toSymNode();
    const auto *const python = dynamic_cast<torch::impl::PythonSymNodeImpl *>(node.get());
    if (!python)
        return std::nullopt;
    const py::gil_scoped_acquire lock;
    const py::handle object = python->getPyObj();
    if (!py::hasattr(object, "register_in"))
        return std::nullopt;
    const py::object found = object.attr("register_in")(py::cast(here, py::return_value_policy::reference));
    return found.is_none() ? std::nullopt : std::optional(found.cast<int>());
}

Real::Real(const at::Scalar &number) : value(0)
{
    if (const auto found = register_of(number)) {
        reg = *found;
        value = capturing_here()->program.now(reg).real();
    } else {
        value = number.toDouble();
    }
}

namespace
{

Real operate(const char *name, const Real &a, const Real &b, double value)
{
    Real result(value);
    if (a.reg < 0 && b.reg < 0)
        return result;
    const py::gil_scoped_acquire lock;
    HostProgram &program = capturing_here()->program;
    const auto place = [&](const Real &real) {
        return real.reg < 0 ? program.constant(Register::of(real.value)) : real.reg;
    };
    result.reg = program.operate(name, place(a), place(b));
    return result;
}

} // namespace

Real operator*(const Real &a, const Real &b) { return operate("mul", a, b, a.value * b.value); }
Real operator-(const Real &a, const Real &b) { return operate("sub", a, b, a.value - b.value); }

Value number(const Real &real, opq_dtype dtype)
{
    return real.reg < 0 ? number(real.value, dtype) : capturing_here()->number(real.reg, dtype, false);
}

void forbid_capturing(const char *what)
{
    if (!capturing_here())
        return;
    TORCH_CHECK(
        false, line_here(), " needs a value (", what,
        ") in a captured function, whose operations are computed after it, at each call without Python. Return the "
        "tensor and look at it outside, or leave this part out of the captured function");
}

} // namespace opq
