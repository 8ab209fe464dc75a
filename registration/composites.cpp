// Operators that PyTorch picks for this device and for which it has no decomposition: recurrent cells, the transformer's
// inference paths, the choice of an attention kernel. They are written in other operators, which record themselves.
#include <cmath>

#include "adapter.h"
#include "below.h"
#include "movement.h"

namespace opq
{

namespace
{

using MaybeTensor = std::optional<Tensor>;

bool given(const MaybeTensor &tensor) { return tensor && tensor->defined(); }

Tensor plus_bias(const Tensor &gates, const MaybeTensor &bias) { return given(bias) ? at::add(gates, *bias) : gates; }

// ---- recurrent cells. The workspace is what the backward formulas need.

// Four gates beside each other, [batch, 4 hidden], are one value and not four that are put together. Recorded directly: a cell is called for
// each step of a sequence.
struct Gates {
    int64_t batch, hidden;
    Value is(opq_op test, int64_t number) const { return record(test, {iota({1, 4, 1}, 1), scalar(number, OPQ_i64)}); }
    Value spread(const Value &all) const { return reshape(all, {batch, 4, hidden}); }
    Value together(const Value &four) const { return reshape(four, {batch, 4 * hidden}); }
    Value one(const Value &four, int64_t number) const { return reshape(slice(four, 1, number, 1), {batch, hidden}); }
    Value beside(const Value &one) const { return reshape(one, {batch, 1, hidden}); }
};

Value with_bias(const Tensor &gates, const MaybeTensor &bias)
{
    return given(bias) ? record(OPQ_OP_add, {read(gates), read(*bias)}) : read(gates);
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor &input_gates, const Tensor &hidden_gates, const Tensor &cx,
                                             const MaybeTensor &input_bias, const MaybeTensor &hidden_bias)
{
    note_line();
    return guarded([&] {
        const Gates g{cx.size(0), cx.size(1)};
        const Value sum = record(OPQ_OP_add, {with_bias(input_gates, input_bias), with_bias(hidden_gates, hidden_bias)});
        const Value four = g.spread(sum);
        const Value bent =
            record(OPQ_OP_where, {g.is(OPQ_OP_eq, 2), record(OPQ_OP_tanh, {four}), record(OPQ_OP_sigmoid, {four})});
        const Value kept = record(OPQ_OP_mul, {g.one(bent, 1), read(cx)});
        const Value cy = record(OPQ_OP_add, {kept, record(OPQ_OP_mul, {g.one(bent, 0), g.one(bent, 2)})});
        const Value hy = record(OPQ_OP_mul, {g.one(bent, 3), record(OPQ_OP_tanh, {cy})});
        const at::ScalarType dtype = cx.scalar_type();
        return std::make_tuple(wrap(hy, dtype), wrap(cy, dtype), wrap(g.together(bent), dtype));
    });
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor &grad_hy, const MaybeTensor &grad_cy,
                                                      const Tensor &cx, const Tensor &cy, const Tensor &workspace,
                                                      bool has_bias)
{
    if (!given(grad_hy) && !given(grad_cy))
        return {};
    note_line();
    return guarded([&] {
        const Gates g{cx.size(0), cx.size(1)};
        const Value bent = g.spread(read(workspace)), outside = record(OPQ_OP_tanh, {read(cy)});
        const Value in = g.one(bent, 0), forget = g.one(bent, 1), cell = g.one(bent, 2), out = g.one(bent, 3);
        Value grad_out, grad_cell;
        if (given(grad_hy)) {
            const Value grad = read(*grad_hy);
            grad_out = record(OPQ_OP_sigmoid_backward, {record(OPQ_OP_mul, {grad, outside}), out});
            grad_cell = record(OPQ_OP_tanh_backward, {record(OPQ_OP_mul, {grad, out}), outside});
        } else {
            grad_out = expand(scalar(0, out.dtype()), {g.batch, g.hidden});
        }
        if (given(grad_cy))
            grad_cell = grad_cell ? record(OPQ_OP_add, {grad_cell, read(*grad_cy)}) : read(*grad_cy);
        const Value grad_in = record(OPQ_OP_sigmoid_backward, {record(OPQ_OP_mul, {grad_cell, cell}), in});
        const Value grad_forget = record(OPQ_OP_sigmoid_backward, {record(OPQ_OP_mul, {grad_cell, read(cx)}), forget});
        const Value grad_new = record(OPQ_OP_tanh_backward, {record(OPQ_OP_mul, {grad_cell, in}), cell});
        const Value first = record(OPQ_OP_where, {g.is(OPQ_OP_eq, 0), g.beside(grad_in), g.beside(grad_forget)});
        const Value last = record(OPQ_OP_where, {g.is(OPQ_OP_eq, 2), g.beside(grad_new), g.beside(grad_out)});
        const Value all = g.together(record(OPQ_OP_where, {g.is(OPQ_OP_lt, 2), first, last}));
        const at::ScalarType dtype = cx.scalar_type();
        return std::make_tuple(wrap(all, dtype), wrap(record(OPQ_OP_mul, {grad_cell, forget}), dtype),
                               has_bias ? wrap(reduce(OPQ_OP_sum, {all}, {0}, false), dtype) : Tensor());
    });
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor &input_gates, const Tensor &hidden_gates, const Tensor &hx,
                                    const MaybeTensor &input_bias, const MaybeTensor &hidden_bias)
{
    const Below below;
    const auto from_input = plus_bias(input_gates, input_bias).chunk(3, 1);
    const auto from_hidden = plus_bias(hidden_gates, hidden_bias).chunk(3, 1);
    const Tensor reset = at::add(from_input[0], from_hidden[0]).sigmoid(),
                 update = at::add(from_input[1], from_hidden[1]).sigmoid();
    const Tensor fresh = at::add(from_input[2], at::mul(reset, from_hidden[2])).tanh();
    const Tensor hy = at::add(fresh, at::mul(update, at::sub(hx, fresh)));
    return {hy, at::cat({reset, update, fresh, hx, from_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor &grad, const Tensor &workspace,
                                                                     bool has_bias)
{
    const Below below;
    const auto part = workspace.chunk(5, 1);
    const Tensor &reset = part[0], &update = part[1], &fresh = part[2], &hx = part[3], &hidden = part[4];
    const Tensor grad_fresh = at::tanh_backward(at::sub(grad, at::mul(grad, update)), fresh);
    const Tensor grad_update = at::sigmoid_backward(at::mul(grad, at::sub(hx, fresh)), update);
    const Tensor grad_reset = at::sigmoid_backward(at::mul(grad_fresh, hidden), reset);
    const Tensor input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
    const Tensor from_hidden = at::cat({grad_reset, grad_update, at::mul(grad_fresh, reset)}, 1);
    return {input, from_hidden, at::mul(grad, update), has_bias ? input.sum(0, false) : Tensor(),
            has_bias ? from_hidden.sum(0, false) : Tensor()};
}

// ---- attention

Tensor heads(const Tensor &tensor, int64_t count)
{
    return tensor.view({tensor.size(0), tensor.size(1), count, tensor.size(2) / count}).transpose(1, 2);
}

std::tuple<Tensor, Tensor> multi_head_attention(const Tensor &query, const Tensor &key, const Tensor &value,
                                                int64_t embed_dim, int64_t head_count, const Tensor &qkv_weight,
                                                const Tensor &qkv_bias, const Tensor &proj_weight,
                                                const Tensor &proj_bias, const MaybeTensor &mask, bool need_weights,
                                                bool average_weights, std::optional<int64_t> mask_type)
{
    const Below below;
    TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
    std::vector<Tensor> parts;
    if (query.is_same(key) && key.is_same(value)) {
        parts = at::linear(query, qkv_weight, qkv_bias).chunk(3, 2);
    } else {
        const auto weights = qkv_weight.chunk(3, 0), biases = qkv_bias.chunk(3, 0);
        parts = {at::linear(query, weights[0], biases[0]), at::linear(key, weights[1], biases[1]),
                 at::linear(value, weights[2], biases[2])};
    }
    for (Tensor &part : parts)
        part = heads(part, head_count);
    Tensor weights, mixed;
    if (given(mask) || need_weights) {
        const double scale = 1 / std::sqrt(static_cast<double>(embed_dim / head_count));
        const Tensor scores = at::mul(at::matmul(parts[0], parts[1].transpose(-2, -1)), scale);
        weights = given(mask) ? at::_masked_softmax(scores, mask->to(at::kBool), 3, mask_type)
                              : at::_softmax(scores, 3, false);
        mixed = at::matmul(weights, parts[2]);
    } else {
        mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    }
    mixed = mixed.transpose(1, 2).reshape({query.size(0), query.size(1), embed_dim});
    const Tensor result = at::linear(mixed, proj_weight, proj_bias);
    if (!need_weights)
        return {result, Tensor()};
    return {result, average_weights ? weights.mean(at::IntArrayRef{1}, false, std::nullopt) : weights};
}

Tensor layer_norm(const Tensor &x, int64_t size, const Tensor &weight, const Tensor &bias, double eps)
{
    return std::get<0>(at::native_layer_norm(x, {size}, weight, bias, eps));
}

Tensor encoder_layer(const Tensor &source, int64_t embed_dim, int64_t head_count, const Tensor &qkv_weight,
                     const Tensor &qkv_bias, const Tensor &proj_weight, const Tensor &proj_bias, bool use_gelu,
                     bool norm_first, double eps, const Tensor &norm_weight_1, const Tensor &norm_bias_1,
                     const Tensor &norm_weight_2, const Tensor &norm_bias_2, const Tensor &ffn_weight_1,
                     const Tensor &ffn_bias_1, const Tensor &ffn_weight_2, const Tensor &ffn_bias_2,
                     const MaybeTensor &mask, std::optional<int64_t> mask_type)
{
    const Below below;
    Tensor x = norm_first ? layer_norm(source, embed_dim, norm_weight_1, norm_bias_1, eps) : source;
    x = std::get<0>(multi_head_attention(x, x, x, embed_dim, head_count, qkv_weight, qkv_bias, proj_weight, proj_bias,
                                         mask, false, true, mask_type));
    x = at::add(x, source);
    if (!norm_first)
        x = layer_norm(x, embed_dim, norm_weight_1, norm_bias_1, eps);
    const Tensor before = x;
    if (norm_first)
        x = layer_norm(x, embed_dim, norm_weight_2, norm_bias_2, eps);
    x = at::linear(x, ffn_weight_1, ffn_bias_1);
    x = use_gelu ? at::gelu(x) : at::relu(x);
    x = at::add(at::linear(x, ffn_weight_2, ffn_bias_2), before);
    return norm_first ? x : layer_norm(x, embed_dim, norm_weight_2, norm_bias_2, eps);
}

// ---- operators whose default kernel looks into the memory of its arguments

// Contents of cells are immutable values: every copy is made when it is needed.
Tensor lazy_clone(const Tensor &self)
{
    const Below below;
    return self.clone();
}

// self's memory format with the values of src.
Tensor copied(const Tensor &self, const Tensor &src, bool non_blocking)
{
    return at::empty_like(self).copy_(src, non_blocking);
}

// The fourth result is what cuDNN would keep for the backward pass.
std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_no_update(const Tensor &x, const MaybeTensor &weight,
                                                                const MaybeTensor &bias, const MaybeTensor &mean,
                                                                const MaybeTensor &variance, double momentum, double eps)
{
    const Below below;
    TORCH_CHECK(given(mean) && given(variance), "running_mean and running_var must be defined in evaluation mode");
    const auto [y, saved_mean, saved_scale] =
        at::_native_batch_norm_legit_no_training(x, weight, bias, *mean, *variance, momentum, eps);
    return {y, saved_mean, saved_scale, at::empty({0}, x.options().dtype(at::kByte))};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("_lazy_clone", OPQ_KERNEL(lazy_clone));
    library.impl("copy", OPQ_KERNEL(copied));
    library.impl("_batch_norm_no_update", OPQ_KERNEL(batch_norm_no_update));
    library.impl("_thnn_fused_lstm_cell", OPQ_KERNEL(lstm_cell));
    library.impl("_thnn_fused_lstm_cell_backward_impl", OPQ_KERNEL(lstm_cell_backward));
    library.impl("_thnn_fused_gru_cell", OPQ_KERNEL(gru_cell));
    library.impl("_thnn_fused_gru_cell_backward", OPQ_KERNEL(gru_cell_backward));
    library.impl("_native_multi_head_attention", OPQ_KERNEL(multi_head_attention));
    library.impl("_transformer_encoder_layer_fwd", OPQ_KERNEL(encoder_layer));
}

} // namespace

} // namespace opq
