// Operators that PyTorch picks for this device and for which it has no decomposition: the transformer's inference paths,
// the choice of an attention kernel. They are written in other operators, which record themselves.
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
    library.impl("_native_multi_head_attention", OPQ_KERNEL(multi_head_attention));
    library.impl("_transformer_encoder_layer_fwd", OPQ_KERNEL(encoder_layer));
}

} // namespace

} // namespace opq
