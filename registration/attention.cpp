// scaled_dot_product_attention and its derivative. PyTorch asks the device which way it wants; the way here is the operator that it
// keeps for other devices: its forward formula gives the logarithm of the sums besides, from which the backward one makes the weights
// again instead of keeping them.
#include <cmath>

#include <ATen/ExpandUtils.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_native.h>

#include "adapter.h"
#include "movement.h"

namespace opq
{

namespace
{

using MaybeTensor = std::optional<Tensor>;

// f32, or halves, which are computed in f32, products of bf16 perhaps of what is rounded to it.
bool plain(const Tensor &tensor, at::ScalarType type)
{
    const bool known = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
    const bool sized =
        !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); // else it is decomposed by torch.compile
    return known && tensor.scalar_type() == type && tensor.dim() == 4 && sized && tensor.numel() > 0;
}

// Do the operands have the sizes of one attention? If not, the decomposition says so in PyTorch's words.
bool fits(const Tensor &query, const Tensor &key, const Tensor &value, const MaybeTensor &mask, bool grouped)
{
    return query.size(0) == key.size(0) && key.size(0) == value.size(0) && key.size(1) == value.size(1) &&
           (grouped ? query.size(1) % key.size(1) == 0 : query.size(1) == key.size(1)) &&
           query.size(3) == key.size(3) && key.size(2) == value.size(2) &&
           (!mask || at::is_expandable_to(mask->sizes(), {query.size(0), query.size(1), query.size(2), key.size(2)}));
}

// f32 and halves without dropout; all else is decomposed, and recorded and differentiated in its parts. A mask besides is_causal is refused by the
// decomposition, and on the CPU taken by what computes the rest: there it decides.
int64_t choose(const Tensor &query, const Tensor &key, const Tensor &value, const MaybeTensor &mask, double dropout,
               bool causal, std::optional<double> scale, bool grouped)
{
    const auto math = static_cast<int64_t>(sdp::SDPBackend::math);
    const at::ScalarType type = query.scalar_type();
    if (!plain(query, type) || !plain(key, type) || !plain(value, type) || dropout != 0 ||
        !fits(query, key, value, mask, grouped))
        return math;
    if (mask && causal &&
        at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, grouped) == math)
        return math;
    return static_cast<int64_t>(sdp::SDPBackend::overrideable);
}

// The operands with heads in groups of `group`, which share keys and values: [batch, heads, group, rows, columns].
struct Heads {
    int64_t batch, count, group, rows, columns;
    Heads(const Tensor &query, const Tensor &key)
        : batch(query.size(0)), count(key.size(1)), group(query.size(1) / count), rows(query.size(2)),
          columns(key.size(2))
    {
    }
    Value of_query(const Tensor &tensor) const
    {
        return group == 1 ? read(tensor) : reshape(read(tensor), {batch, count, group, tensor.size(2), tensor.size(3)});
    }
    Value of_key(const Tensor &tensor) const
    {
        return group == 1 ? read(tensor) : reshape(read(tensor), {batch, count, 1, tensor.size(2), tensor.size(3)});
    }
    // Whose heads, if it has any, are the query's.
    Value of_bias(const Tensor &bias) const
    {
        Dims sizes(bias.sizes().begin(), bias.sizes().end());
        if (group == 1 || sizes.size() < 3)
            return read(bias);
        const bool shared = sizes[sizes.size() - 3] == 1;
        sizes[sizes.size() - 3] = shared ? 1 : count;
        sizes.insert(sizes.end() - 2, shared ? 1 : group);
        return reshape(read(bias), sizes);
    }
    Tensor as_query(const Value &value) const
    {
        const Dims shape = shape_of(value);
        return wrap(group == 1 ? value : reshape(value, {batch, count * group, rows, shape[shape.size() - 1]}));
    }
    Tensor as_key(const Value &value) const
    {
        const Dims shape = shape_of(value);
        return wrap(group == 1 ? value : reduce(OPQ_OP_sum, {value}, {2}, false));
    }
};

double scale_of(const Tensor &query, std::optional<double> scale)
{
    return scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
}

// softmax's argument, of products of queries and keys. Row i sees columns up to i if `causal`.
Value scores_of(const Heads &heads, const Value &products, const MaybeTensor &bias, bool causal, double scale)
{
    Value scores = record(OPQ_OP_mul, {products, number(scale, OPQ_f32)});
    if (bias && bias->defined())
        scores = record(OPQ_OP_add, {scores, heads.of_bias(*bias)});
    if (causal) {
        const Dims matrix{heads.rows, heads.columns};
        const Value seen = record(OPQ_OP_le, {iota(matrix, 1), iota(matrix, 0)});
        scores = record_typed(OPQ_OP_causal_mask, scores.dtype(), shape_of(scores), {scores, seen});
    }
    return scores;
}

// -inf, of a row that sees nothing, becomes 0.
Value finite_or_zero(const Value &x)
{
    return record(OPQ_OP_where, {record(OPQ_OP_eq, {x, number(-INFINITY, OPQ_f32)}), number(0, OPQ_f32), x});
}

Value last(opq_op op, const Value &x) { return reduce(op, {x}, {x.rank() - 1}, true); }

// The sum of a row divides the result, which has fewer columns than the row. A row that sees nothing gives 0.
using Attention = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;
Attention attention_f32(const Tensor &query, const Tensor &key, const Tensor &value, const MaybeTensor &bias,
                        bool causal, std::optional<double> scale, bool rounded)
{
    const Heads heads(query, key);
    const bool masked = bias && bias->defined();
    const Value products = matmul(heads.of_query(query), heads.of_key(key), false, true, rounded);
    const Value scores = scores_of(heads, products, bias, causal, scale_of(query, scale));
    Value largest = last(OPQ_OP_amax, scores);
    if (masked)
        largest = finite_or_zero(largest);
    const Value weights = record(OPQ_OP_exp, {record(OPQ_OP_sub, {scores, largest})});
    Value sum = last(OPQ_OP_sum, weights);
    const Tensor total = heads.as_query(record(OPQ_OP_add, {largest, record(OPQ_OP_log, {sum})})).squeeze(-1);
    if (masked)
        sum = record(OPQ_OP_where, {record(OPQ_OP_eq, {sum, number(0, OPQ_f32)}), number(1, OPQ_f32), sum});
    const Value taken = matmul(weights, heads.of_key(value), false, false, rounded);
    const Tensor out = heads.as_query(record(OPQ_OP_div, {taken, sum}));
    const Tensor nothing = at::empty({0}, query.options().dtype(at::kLong));
    return {out, total, Tensor(), Tensor(), query.size(-2), key.size(-2), nothing, nothing, Tensor()};
}

// With p the softmax of the scores s: ds = p (dp - sum(p dp)), and sum(p dp) = sum(grad out). The scores are made again, to the same bits, of
// the keys as columns: as values of their own, so that the forward formula's need not be kept when both are run at once.
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;
Gradients attention_backward_f32(const Tensor &grad_out, const Tensor &query, const Tensor &key, const Tensor &value,
                                 const Tensor &bias, std::array<bool, 4> wanted, const Tensor &out, const Tensor &total,
                                 bool causal, std::optional<double> scale, bool rounded)
{
    Tensor grad_query, grad_key, grad_value, grad_bias;
    const Heads heads(query, key);
    const auto product = [&](const Value &a, const Value &b, bool transpose_a, bool transpose_b) {
        return matmul(a, b, transpose_a, transpose_b, rounded);
    };
    const double factor = scale_of(query, scale);
    const bool masked = bias.defined();
    const MaybeTensor mask = masked ? MaybeTensor(bias) : std::nullopt;
    Value largest = heads.of_query(total.unsqueeze(-1));
    if (masked)
        largest = finite_or_zero(largest);
    const Value grad = heads.of_query(grad_out);
    const Value products = product(heads.of_query(query), heads.of_key(key.transpose(-1, -2)), false, false);
    const Value scores = scores_of(heads, products, mask, causal, factor);
    const Value weights = record(OPQ_OP_exp, {record(OPQ_OP_sub, {scores, largest})});
    const Value mean = last(OPQ_OP_sum, record(OPQ_OP_mul, {grad, heads.of_query(out)}));
    const Value pull = record(OPQ_OP_sub, {product(grad, heads.of_key(value), false, true), mean});
    const Value slope = record(OPQ_OP_mul, {weights, pull});
    const auto scaled = [&](const Value &x) { return record(OPQ_OP_mul, {x, number(factor, OPQ_f32)}); };
    if (wanted[0])
        grad_query = heads.as_query(scaled(product(slope, heads.of_key(key), false, false)));
    if (wanted[1])
        grad_key = heads.as_key(scaled(product(slope, heads.of_query(query), true, false)));
    if (wanted[2])
        grad_value = heads.as_key(product(weights, grad, true, false));
    if (wanted[3] && masked)
        grad_bias = heads.as_query(slope).sum_to_size(bias.sizes());
    return {grad_query, grad_key, grad_value, grad_bias};
}

// Halves are widened, and the results are of their dtype, but for the logarithms of the sums.
Tensor wide(const Tensor &x) { return !x.defined() || x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }
MaybeTensor wide(const MaybeTensor &x) { return x && x->defined() ? MaybeTensor(wide(*x)) : std::nullopt; }

Attention attention(const Tensor &query, const Tensor &key, const Tensor &value, const MaybeTensor &bias, double,
                    bool causal, bool, std::optional<double> scale)
{
    note_line();
    Attention all = attention_f32(wide(query), wide(key), wide(value), wide(bias), causal, scale,
                                  query.scalar_type() == at::kBFloat16);
    std::get<0>(all) = std::get<0>(all).to(query.scalar_type());
    return all;
}

Gradients attention_backward(const Tensor &grad_out, const Tensor &query, const Tensor &key, const Tensor &value,
                             const Tensor &bias, std::array<bool, 4> wanted, const Tensor &out, const Tensor &total,
                             const Tensor &, const Tensor &, c10::SymInt, c10::SymInt, double, bool causal,
                             const Tensor &, const Tensor &, std::optional<double> scale)
{
    note_line();
    auto [q, k, v, mask] =
        attention_backward_f32(wide(grad_out), wide(query), wide(key), wide(value), wide(bias), wanted, wide(out),
                               total, causal, scale, query.scalar_type() == at::kBFloat16);
    const auto narrow = [](Tensor &gradient, const Tensor &of) {
        gradient = gradient.defined() ? gradient.to(of.scalar_type()) : gradient;
    };
    narrow(q, query);
    narrow(k, key);
    narrow(v, value);
    narrow(mask, bias);
    return {q, k, v, mask};
}

// The CPU's operators, which graphs have that were traced for it: without dropout, of any floating-point dtype.
std::tuple<Tensor, Tensor> attention_of_cpu(const Tensor &query, const Tensor &key, const Tensor &value, double dropout,
                                            bool causal, const MaybeTensor &mask, std::optional<double> scale)
{
    TORCH_CHECK(dropout == 0, "_scaled_dot_product_flash_attention_for_cpu: dropout_p is to be 0, not ", dropout);
    const Attention all = attention(query, key, value, mask, 0, causal, false, scale);
    return {std::get<0>(all), std::get<1>(all)};
}

std::tuple<Tensor, Tensor, Tensor> attention_of_cpu_backward(const Tensor &grad_out, const Tensor &query,
                                                             const Tensor &key, const Tensor &value, const Tensor &out,
                                                             const Tensor &total, double, bool causal,
                                                             const MaybeTensor &mask, std::optional<double> scale)
{
    const auto [q, k, v, bias] =
        attention_backward(grad_out, query, key, value, mask.value_or(Tensor()), {true, true, true, false}, out, total,
                           {}, {}, 0, 0, 0, causal, {}, {}, scale);
    return {q, k, v};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("_fused_sdp_choice", OPQ_KERNEL(choose));
    library.impl("_scaled_dot_product_flash_attention_for_cpu", OPQ_KERNEL(attention_of_cpu));
    library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", OPQ_KERNEL(attention_of_cpu_backward));
    library.impl("_scaled_dot_product_fused_attention_overrideable", OPQ_KERNEL(attention));
    library.impl("_scaled_dot_product_fused_attention_overrideable_backward", OPQ_KERNEL(attention_backward));
}

} // namespace

// What scaled_dot_product_attention itself asks.
int64_t choose_attention(const Tensor &query, const Tensor &key, const Tensor &value, const MaybeTensor &mask,
                         double dropout, bool causal, std::optional<double> scale, bool grouped)
{
    return choose(query, key, value, mask, dropout, causal, scale, grouped);
}

} // namespace opq

namespace at::native
{
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &opq::choose_attention)
} // namespace at::native
