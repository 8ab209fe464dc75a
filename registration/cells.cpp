// Recurrent cells: see cells.h, and the operators that are one step.
#include "cells.h"

#include "below.h"

namespace opq
{

namespace
{

// Sigmoid or tanh. Of f64 the core has neither: PyTorch's kernel.
Value bent(opq_op row, const Value &x)
{
    if (x.dtype() != OPQ_f64)
        return record(row, {x});
    const Below below;
    return read(row == OPQ_OP_tanh ? at::tanh(wrap(x)) : at::sigmoid(wrap(x)));
}

} // namespace

Value gate_of(const Value &gates, int64_t number, int64_t hidden) { return slice(gates, 1, number * hidden, hidden); }

RecurrentStep lstm_step(const Value &sum, const Value &c)
{
    const int64_t hidden = shape_of(c)[1];
    RecurrentStep made;
    for (int64_t i = 0; i < 4; ++i)
        made.gates[i] = bent(i == 2 ? OPQ_OP_tanh : OPQ_OP_sigmoid, gate_of(sum, i, hidden));
    const auto &[in, forget, cell, out] = made.gates;
    made.c = plus(times(forget, c), times(in, cell));
    made.h = times(out, bent(OPQ_OP_tanh, made.c));
    return made;
}

RecurrentGradient lstm_gradient(const RecurrentStep &step, const Value &c_before, const Value &grad_h, const Value &grad_c)
{
    const auto &[in, forget, cell, out] = step.gates;
    Value grad_out, grad_cell = grad_c;
    if (grad_h) {
        const Value outside = bent(OPQ_OP_tanh, step.c);
        grad_out = record(OPQ_OP_sigmoid_backward, {times(grad_h, outside), out});
        grad_cell = record(OPQ_OP_tanh_backward, {times(grad_h, out), outside});
        if (grad_c)
            grad_cell = plus(grad_cell, grad_c);
    } else {
        grad_out = expand(scalar(0, out.dtype()), shape_of(out));
    }
    const Value grads[] = {record(OPQ_OP_sigmoid_backward, {times(grad_cell, cell), in}),
                           record(OPQ_OP_sigmoid_backward, {times(grad_cell, c_before), forget}),
                           record(OPQ_OP_tanh_backward, {times(grad_cell, in), cell}), grad_out};
    const Value gates = concat(grads, 1);
    return {gates, gates, Value(), times(grad_cell, forget)};
}

RecurrentStep gru_step(const Value &from_input, const Value &from_hidden, const Value &h)
{
    const int64_t hidden = shape_of(h)[1];
    RecurrentStep made;
    auto &[reset, update, fresh, share] = made.gates;
    reset = bent(OPQ_OP_sigmoid, plus(gate_of(from_input, 0, hidden), gate_of(from_hidden, 0, hidden)));
    update = bent(OPQ_OP_sigmoid, plus(gate_of(from_input, 1, hidden), gate_of(from_hidden, 1, hidden)));
    share = gate_of(from_hidden, 2, hidden);
    fresh = bent(OPQ_OP_tanh, plus(gate_of(from_input, 2, hidden), times(reset, share)));
    made.h = plus(fresh, times(update, record(OPQ_OP_sub, {h, fresh})));
    return made;
}

RecurrentGradient gru_gradient(const RecurrentStep &step, const Value &h_before, const Value &grad_h)
{
    const auto &[reset, update, fresh, share] = step.gates;
    const Value past = times(grad_h, update);
    const Value grad_fresh = record(OPQ_OP_tanh_backward, {record(OPQ_OP_sub, {grad_h, past}), fresh});
    const Value grad_update =
        record(OPQ_OP_sigmoid_backward, {times(grad_h, record(OPQ_OP_sub, {h_before, fresh})), update});
    const Value grad_reset = record(OPQ_OP_sigmoid_backward, {times(grad_fresh, share), reset});
    return {concat({grad_reset, grad_update, grad_fresh}, 1),
            concat({grad_reset, grad_update, times(grad_fresh, reset)}, 1), past, Value()};
}

namespace
{

using MaybeTensor = std::optional<Tensor>;

bool given(const MaybeTensor &tensor) { return tensor && tensor->defined(); }

Value with_bias(const Tensor &gates, const MaybeTensor &bias)
{
    return given(bias) ? plus(read(gates), read(*bias)) : read(gates);
}

Tensor sum_of(const Value &gates) { return wrap(reduce(OPQ_OP_sum, {gates}, {0}, false)); }

// Results have the dtypes that come out: under autocast, gates are of another one than states. The last result of a forward operator is
// what its backward formula needs.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor &input_gates, const Tensor &hidden_gates, const Tensor &cx,
                                             const MaybeTensor &input_bias, const MaybeTensor &hidden_bias)
{
    note_line();
    const RecurrentStep step =
        lstm_step(plus(with_bias(input_gates, input_bias), with_bias(hidden_gates, hidden_bias)), read(cx));
    return {wrap(step.h), wrap(step.c), wrap(concat(step.gates, 1))};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor &grad_hy, const MaybeTensor &grad_cy,
                                                      const Tensor &cx, const Tensor &cy, const Tensor &workspace,
                                                      bool has_bias)
{
    if (!given(grad_hy) && !given(grad_cy))
        return {};
    note_line();
    const Value gates = read(workspace);
    RecurrentStep step;
    step.c = read(cy);
    for (int64_t i = 0; i < 4; ++i)
        step.gates[i] = gate_of(gates, i, cx.size(1));
    const RecurrentGradient made = lstm_gradient(step, read(cx), given(grad_hy) ? read(*grad_hy) : Value(),
                                                 given(grad_cy) ? read(*grad_cy) : Value());
    return {wrap(made.from_input), wrap(made.c), has_bias ? sum_of(made.from_input) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor &input_gates, const Tensor &hidden_gates, const Tensor &hx,
                                    const MaybeTensor &input_bias, const MaybeTensor &hidden_bias)
{
    note_line();
    const Value h = read(hx);
    const RecurrentStep step = gru_step(with_bias(input_gates, input_bias), with_bias(hidden_gates, hidden_bias), h);
    const auto &[reset, update, fresh, share] = step.gates;
    const Value parts[] = {reset, update, fresh, h, share};
    return {wrap(step.h), wrap(concat(parts, 1))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor &grad, const Tensor &workspace,
                                                                     bool has_bias)
{
    note_line();
    const int64_t hidden = grad.size(1);
    const Value parts = read(workspace);
    RecurrentStep step;
    for (int64_t i = 0; i < 4; ++i)
        step.gates[i] = gate_of(parts, i < 3 ? i : 4, hidden);
    const RecurrentGradient made = gru_gradient(step, gate_of(parts, 3, hidden), read(grad));
    return {wrap(made.from_input), wrap(made.from_hidden), wrap(made.h), has_bias ? sum_of(made.from_input) : Tensor(),
            has_bias ? sum_of(made.from_hidden) : Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("_thnn_fused_lstm_cell", OPQ_KERNEL(lstm_cell));
    library.impl("_thnn_fused_lstm_cell_backward_impl", OPQ_KERNEL(lstm_cell_backward));
    library.impl("_thnn_fused_gru_cell", OPQ_KERNEL(gru_cell));
    library.impl("_thnn_fused_gru_cell_backward", OPQ_KERNEL(gru_cell_backward));
}

} // namespace

} // namespace opq
