// Fused optimizer steps: for each parameter one value per tensor written. Numbers that change from step to step are run-time
// slots; bias corrections are computed from the step tensor, which may still be pending.
#include <cmath>

#include "adapter.h"

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

Value slot(double value) { return number(value, OPQ_f32); }

Value binary(opq_op op, const Value &a, const Value &b) { return record(op, {a, b}); }

// 1 - beta^step without cancellation: -expm1(step * log(beta)).
Value bias_correction(const Tensor &step, double beta)
{
    if (!on_device(step))
        return slot(1 - std::pow(beta, step.item<double>()));
    const Value exponent = binary(OPQ_OP_mul, cast(read(step), OPQ_f32), slot(std::log(beta)));
    return record(OPQ_OP_neg, {record(OPQ_OP_expm1, {exponent})});
}

struct AdamOptions {
    Value rate;
    double beta1, beta2, decay, eps;
    bool amsgrad, maximize, decoupled;
};

void adam_step(const Lists &lists, size_t i, const AdamOptions &options)
{
    Value p = read(lists.parameters[i]), g = read(lists.grads[i]);
    if (options.maximize)
        g = record(OPQ_OP_neg, {g});
    if (options.decay != 0 && options.decoupled) {
        const Value shrink = binary(OPQ_OP_sub, slot(1), binary(OPQ_OP_mul, options.rate, slot(options.decay)));
        p = binary(OPQ_OP_mul, p, shrink);
    } else if (options.decay != 0) {
        g = binary(OPQ_OP_add, g, binary(OPQ_OP_mul, p, slot(options.decay)));
    }
    const Value m = record(OPQ_OP_adam_m, {read(lists.averages[i]), g, slot(1 - options.beta1)});
    const Value v = record(OPQ_OP_adam_v, {read(lists.squares[i]), g, slot(options.beta2), slot(1 - options.beta2)});
    Value used = v;
    if (options.amsgrad)
        used = binary(OPQ_OP_maximum, read(lists.maxima[i]), v);
    const Value step_size = binary(OPQ_OP_div, options.rate, bias_correction(lists.steps[i], options.beta1));
    const Value root = record(OPQ_OP_sqrt, {bias_correction(lists.steps[i], options.beta2)});
    const Value next = record(OPQ_OP_adam_p, {p, m, used, step_size, root, slot(options.eps)});
    write(lists.averages[i], m);
    write(lists.squares[i], v);
    if (options.amsgrad)
        write(lists.maxima[i], used);
    write(lists.parameters[i], next);
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
                                             : slot(args[6].toTensor().item<double>());
    else
        rate = slot(args[6].toDouble());
    const AdamOptions options{rate,    args[7].toDouble(), args[8].toDouble(), args[9].toDouble(), args[10].toDouble(),
                              amsgrad, args[12].toBool(),  decoupled};
    for (size_t i = 0; i < lists.parameters.size(); ++i)
        adam_step(lists, i, options);
    return true;
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
            : slot(args[5].toDouble());
    for (size_t i = 0; i < parameters.size(); ++i) {
        const Value p = read(parameters[i]);
        Value g = read(grads[i]);
        if (args[8].toBool())
            g = record(OPQ_OP_neg, {g});
        if (decay != 0)
            g = binary(OPQ_OP_add, g, binary(OPQ_OP_mul, p, slot(decay)));
        if (momentum != 0) {
            Value buffer = g;
            if (!args[9].toBool())
                buffer = binary(OPQ_OP_add, binary(OPQ_OP_mul, read(buffers[i]), slot(momentum)),
                                binary(OPQ_OP_mul, g, slot(1 - dampening)));
            write(buffers[i], buffer);
            g = args[7].toBool() ? binary(OPQ_OP_add, g, binary(OPQ_OP_mul, buffer, slot(momentum))) : buffer;
        }
        write(parameters[i], binary(OPQ_OP_sub, p, binary(OPQ_OP_mul, g, rate)));
    }
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
