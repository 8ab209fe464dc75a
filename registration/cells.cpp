// The recurrent cells that PyTorch has kernels of: one step of an LSTM or a GRU, and its gradients. They are the rows of whole directions
// (graph/recurrent.c) with a weight of no columns: the products are in the sums already.
#include "below.h"
#include "movement.h"

namespace opq
{

namespace
{

using MaybeTensor = std::optional<Tensor>;

bool given(const MaybeTensor &tensor) { return tensor && tensor->defined(); }

Value with_bias(const Tensor &gates, const MaybeTensor &bias)
{
    return given(bias) ? plus(read(gates), read(*bias)) : read(gates);
}

Tensor sum_of(const Value &gates) { return wrap(reduce(OPQ_OP_sum, {gates}, {0}, false)); }

Value zeros(const Value &like, IntArrayRef size) { return expand(scalar(0, like.dtype()), size); }

// Of states [batch, hidden]: a hidden state and a weight of no columns.
Value no_hidden(const Value &state) { return zeros(state, {shape_of(state)[0], 0}); }
Value no_weight(const Value &state, int64_t gates) { return zeros(state, {gates * shape_of(state)[1], 0}); }

// Results have the dtypes that come out: under autocast, gates are of another one than states. The last result of a forward operator is
// what its backward formula needs.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor &input_gates, const Tensor &hidden_gates, const Tensor &cx,
                                             const MaybeTensor &input_bias, const MaybeTensor &hidden_bias)
{
    note_line();
    const Value sum = plus(with_bias(input_gates, input_bias), with_bias(hidden_gates, hidden_bias)), c = read(cx);
    const auto of = [&](opq_op row) { return wrap(record(row, {sum, no_hidden(c), c, no_weight(c, 4)})); };
    return {of(OPQ_OP_lstm), of(OPQ_OP_lstm_states), wrap(sum)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor &grad_hy, const MaybeTensor &grad_cy,
                                                      const Tensor &cx, const Tensor &cy, const Tensor &workspace,
                                                      bool has_bias)
{
    if (!given(grad_hy) && !given(grad_cy))
        return {};
    note_line();
    const Value c = read(cx), zero = zeros(c, cx.sizes());
    const auto of = [&](opq_op row) {
        return record(row, {given(grad_hy) ? read(*grad_hy) : zero, read(workspace), read(cy), c,
                            given(grad_cy) ? read(*grad_cy) : zero, no_weight(c, 4)});
    };
    const Value gates = of(OPQ_OP_lstm_backward);
    return {wrap(gates), wrap(of(OPQ_OP_lstm_backward_state)), has_bias ? sum_of(gates) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor &input_gates, const Tensor &hidden_gates, const Tensor &hx,
                                    const MaybeTensor &input_bias, const MaybeTensor &hidden_bias)
{
    note_line();
    const Value h = read(hx), sums = with_bias(input_gates, input_bias), past = with_bias(hidden_gates, hidden_bias);
    const Value parts[] = {sums, past, h};
    return {wrap(record(OPQ_OP_gru, {sums, h, no_weight(h, 3), past})), wrap(concat(parts, 1))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor &grad, const Tensor &workspace,
                                                                     bool has_bias)
{
    note_line();
    const int64_t hidden = grad.size(1);
    const Value parts = read(workspace), own = read(grad), sums = slice(parts, 1, 0, 3 * hidden),
                past = slice(parts, 1, 3 * hidden, 3 * hidden), h = slice(parts, 1, 6 * hidden, hidden);
    const auto of = [&](opq_op row) { return record(row, {own, sums, past, own, h, no_weight(h, 3)}); };
    const Value from_input = of(OPQ_OP_gru_backward), from_hidden = of(OPQ_OP_gru_backward_hidden);
    return {wrap(from_input), wrap(from_hidden), wrap(of(OPQ_OP_gru_backward_state)),
            has_bias ? sum_of(from_input) : Tensor(), has_bias ? sum_of(from_hidden) : Tensor()};
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
