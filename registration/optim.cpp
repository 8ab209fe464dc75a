// Fused optimizer steps: for each parameter one value per tensor written. Numbers that change from step to step are run-time
// slots; bias corrections are computed from the step tensor, which may still be pending.
#include <cmath>

#include "adapter.h"
#include "capturing.h"

namespace opq
{

namespace
{

struct Lists {
    std::vector<Tensor> parameters, grads, averages, squares, maxima, steps;
};

bool plain_float(const std::vector<Tensor> &tensors)
{
    for (const Tensor &tensor : tensors)
        if (!on_device(tensor) || tensor.scalar_type() != at::kFloat)
            return false;
    return true;
}

bool undefined(const IValue &value) { return value.isNone() || (value.isTensor() && !value.toTensor().defined()); }

Value slot(const Real &value) { return number(value, OPQ_f32); }

Value binary(opq_op op, const Value &a, const Value &b) { return record(op, {a, b}); }

struct AdamOptions {
    Value rate, shrink, decay, add_m, keep_v, add_v, log_beta1, log_beta2,
        eps; // shrink, decay: none if there is nothing to decay
    bool amsgrad, maximize;
};

Value step_of(const Tensor &step)
{
    return on_device(step) ? cast(read(step), OPQ_f32) : cast(scalar_of(step), OPQ_f32);
}

// In place; operands and the tensor are of one type. What is not simple takes the way of all values.
void update(opq_op op, const Tensor &tensor, std::initializer_list<Plain> others)
{
    c10::SmallVector<Plain, PLAIN_MAX> operands{tensor};
    operands.append(others.begin(), others.end());
    if (plain_write(op, operands))
        return;
    std::vector<Value> values;
    for (const Plain &operand : operands) {
        if (operand.tensor) {
            values.push_back(read(*operand.tensor));
            continue;
        }
        opq_value_retain(operand.value);
        values.push_back(Value::take(operand.value));
    }
    write(tensor, record_list(op, values));
}

void adam_step(const Lists &lists, size_t i, const AdamOptions &options)
{
    const Tensor &p = lists.parameters[i], &m = lists.averages[i], &v = lists.squares[i], &grad = lists.grads[i];
    Value changed; // gradient
    if (options.maximize)
        changed = record(OPQ_OP_neg, {read(grad)});
    if (options.shrink)
        update(OPQ_OP_mul, p, {options.shrink});
    if (options.decay)
        changed = binary(OPQ_OP_add, changed ? changed : read(grad), binary(OPQ_OP_mul, read(p), options.decay));
    const Plain g = changed ? Plain(changed) : Plain(grad);
    const Value step = step_of(lists.steps[i]);
    update(OPQ_OP_adam_m, m, {g, options.add_m});
    update(OPQ_OP_adam_v, v, {g, options.keep_v, options.add_v});
    if (options.amsgrad)
        update(OPQ_OP_maximum, lists.maxima[i], {v});
    update(OPQ_OP_adam_p, p,
           {m, options.amsgrad ? lists.maxima[i] : v, step, options.rate, options.log_beta1, options.log_beta2,
            options.eps});
}

// (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize,
//  grad_scale, found_inf); lr is a number or a 0-d tensor
bool adam(IValue *args, bool decoupled)
{
    Lists lists{args[0].toTensorVector(), args[1].toTensorVector(), args[2].toTensorVector(),
                args[3].toTensorVector(), args[4].toTensorVector(), args[5].toTensorVector()};
    const bool amsgrad = args[11].toBool();
    if (!undefined(args[13]) || !undefined(args[14]) || !plain_float(lists.parameters) || !plain_float(lists.grads) ||
        !plain_float(lists.averages) || !plain_float(lists.squares) || (amsgrad && !plain_float(lists.maxima)))
        return false;
    Value rate;
    if (args[6].isTensor())
        rate = on_device(args[6].toTensor()) ? cast(read(args[6].toTensor()), OPQ_f32)
                                             : cast(scalar_of(args[6].toTensor()), OPQ_f32);
    else
        rate = slot(Real(args[6].toScalar()));
    const double beta1 = args[7].toDouble(), beta2 = args[8].toDouble();
    const Real decay(args[9].toScalar());
    AdamOptions options{rate,
                        {},
                        {},
                        slot(1 - beta1),
                        slot(beta2),
                        slot(1 - beta2),
                        slot(std::log(beta1)),
                        slot(std::log(beta2)),
                        slot(args[10].toDouble()),
                        amsgrad,
                        args[12].toBool()};
    if (decay.value != 0 && decoupled)
        options.shrink = args[6].isTensor() ? binary(OPQ_OP_sub, slot(1), binary(OPQ_OP_mul, rate, slot(decay)))
                                            : slot(Real(1.0) - Real(args[6].toScalar()) * decay);
    else if (decay.value != 0)
        options.decay = slot(decay);
    for (size_t i = 0; i < lists.parameters.size(); ++i)
        adam_step(lists, i, options);
    return true;
}

// decay, keep: none if there is nothing to decay, no momentum; add: none if it is 1
struct SgdOptions {
    Value rate, decay, keep, add, minus;
    bool nesterov, maximize, first;
};

void sgd_step(const Tensor &p, const Tensor &grad, const Tensor *buffer, const SgdOptions &options)
{
    Value changed; // gradient
    if (options.maximize)
        changed = record(OPQ_OP_neg, {read(grad)});
    if (options.decay)
        changed = record(OPQ_OP_sgd_m, {read(p), changed ? changed : read(grad), options.decay});
    if (options.keep && options.first) {
        write(*buffer, changed ? changed : read(grad));
    } else if (options.keep) {
        const Value share = options.add ? binary(OPQ_OP_mul, changed ? changed : read(grad), options.add) : changed;
        update(OPQ_OP_sgd_m, *buffer, {share ? Plain(share) : Plain(grad), options.keep});
    }
    if (options.keep && options.nesterov)
        changed = record(OPQ_OP_sgd_m, {read(*buffer), changed ? changed : read(grad), options.keep});
    const Plain step = options.keep && !options.nesterov ? Plain(*buffer) : changed ? Plain(changed) : Plain(grad);
    update(OPQ_OP_addcmul, p, {step, options.rate, options.minus}); // p - step * rate, as one node
}

// (self, grads, momentum_buffer_list, *, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step, grad_scale, found_inf)
bool sgd(IValue *args)
{
    const auto parameters = args[0].toTensorVector(), grads = args[1].toTensorVector(),
               buffers = args[2].toTensorVector();
    const double decay = args[3].toDouble(), momentum = args[4].toDouble(), dampening = args[6].toDouble();
    if (!undefined(args[10]) || !undefined(args[11]) || !plain_float(parameters) || !plain_float(grads) ||
        (momentum != 0 && !plain_float(buffers)))
        return false;
    const Value rate =
        args[5].isTensor()
            ? cast(on_device(args[5].toTensor()) ? read(args[5].toTensor()) : scalar_of(args[5].toTensor()), OPQ_f32)
            : slot(Real(args[5].toScalar()));
    const SgdOptions options{rate,
                             decay == 0 ? Value() : slot(decay),
                             momentum == 0 ? Value() : slot(momentum),
                             dampening == 0 ? Value() : slot(1 - dampening),
                             slot(-1),
                             args[7].toBool(),
                             args[8].toBool(),
                             args[9].toBool()};
    for (size_t i = 0; i < parameters.size(); ++i)
        sgd_step(parameters[i], grads[i], momentum == 0 ? nullptr : &buffers[i], options);
    return true;
}

// (self, found_inf, inv_scale): unscales all gradients, notes whether any was not finite
bool unscale(IValue *args)
{
    const auto grads = args[0].toTensorVector();
    const Tensor found = args[1].toTensor(), inverse = args[2].toTensor();
    if (!plain_float({found, inverse}))
        return false;
    for (const Tensor &grad : grads)
        if (!on_device(grad) || is_raw(grad) || !at::isFloatingType(grad.scalar_type()))
            return false;
    Value any = read(found);
    const Value factor = read(inverse);
    for (const Tensor &grad : grads) {
        const Value g = read(grad);
        const Value difference = binary(OPQ_OP_sub, g, g); // NaN exactly where g is not finite
        const Dims axes = normal_axes({}, g.rank());
        Value bad = record(OPQ_OP_isnan, {difference});
        if (!axes.empty())
            bad = reduce(OPQ_OP_any, {bad}, axes, false);
        any = binary(OPQ_OP_maximum, any, cast(bad, OPQ_f32));
        write(grad, binary(OPQ_OP_mul, g, cast(factor, g.dtype())));
    }
    write(found, any);
    return true;
}

template <class Body> void step(const OperatorHandle &op, Stack *stack, Body body)
{
    note_line();
    const size_t count = op.schema().arguments().size();
    bool done = false;
    try {
        done = body(stack->data() + (stack->size() - count));
    } catch (const Decline &why) {
        raise(why.status);
    }
    if (!done)
        return extern_now(op, stack);
    torch::jit::drop(*stack, count);
}

void fused_adam(const OperatorHandle &op, Stack *stack)
{
    step(op, stack, [](IValue *args) { return adam(args, false); });
}
void fused_adamw(const OperatorHandle &op, Stack *stack)
{
    step(op, stack, [](IValue *args) { return adam(args, true); });
}
void fused_sgd(const OperatorHandle &op, Stack *stack) { step(op, stack, &sgd); }
void amp_unscale(const OperatorHandle &op, Stack *stack) { step(op, stack, &unscale); }

// The same with a rate and a decay that a captured function may have anew at each call: `float` parameters take numbers as they are now.
TORCH_LIBRARY_FRAGMENT(opaque, library)
{
    const std::string adam_arguments = "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] "
                                       "exp_avg_sqs, Tensor(e!)[] max_exp_avg_sqs, "
                                       "Tensor[] state_steps, *, Scalar lr, float beta1, float beta2, Scalar "
                                       "weight_decay, float eps, bool amsgrad, bool maximize, "
                                       "Tensor? grad_scale=None, Tensor? found_inf=None) -> ()";
    library.def(("_fused_adam_" + adam_arguments).c_str());
    library.def(("_fused_adamw_" + adam_arguments).c_str());
    library.def(
        "_fused_sgd_(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] momentum_buffer_list, *, float weight_decay, "
        "float momentum, Scalar lr, float dampening, bool nesterov, bool maximize, bool is_first_step, "
        "Tensor? grad_scale=None, Tensor? found_inf=None) -> ()");
}

TORCH_LIBRARY_IMPL(opaque, PrivateUse1, library)
{
    library.impl("_fused_adam_", boxed_kernel<&fused_adam>());
    library.impl("_fused_adamw_", boxed_kernel<&fused_adamw>());
    library.impl("_fused_sgd_", boxed_kernel<&fused_sgd>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    for (const char *name : {"_fused_adam_", "_fused_adam_.tensor_lr"})
        library.impl(name, boxed_kernel<&fused_adam>());
    for (const char *name : {"_fused_adamw_", "_fused_adamw_.tensor_lr"})
        library.impl(name, boxed_kernel<&fused_adamw>());
    for (const char *name : {"_fused_sgd_", "_fused_sgd_.tensor_lr"})
        library.impl(name, boxed_kernel<&fused_sgd>());
    library.impl("_amp_foreach_non_finite_check_and_unscale_", boxed_kernel<&amp_unscale>());
}

} // namespace

} // namespace opq
