// Attention under vmap: the mapped dim joins the batch.
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable_backward.h>
#include <torch/library.h>

#include "shim.h"

namespace opq
{

namespace
{

using at::functorch::makeBatched;
using at::functorch::maybeGetBatchedImpl;
using MaybeTensor = std::optional<Tensor>;
using Attention = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

// The innermost vmap that one of the tensors is mapped by.
class Mapped
{
  public:
    explicit Mapped(std::initializer_list<const Tensor *> tensors) : guard_(c10::DispatchKey::FuncTorchBatched)
    {
        for (const Tensor *const tensor : tensors) {
            const auto *const batched = maybeGetBatchedImpl(*tensor);
            if (batched && batched->level() > level_) {
                level_ = batched->level();
                count_ = batched->value().size(batched->bdim());
            }
        }
    }
    // [mapped * batch, ...] of a tensor that has a batch.
    Tensor joined(const Tensor &tensor) const { return in_front(tensor).flatten(0, 1); }
    // A bias broadcasts to [batch, heads, rows, columns].
    Tensor joined_bias(const Tensor &bias, const Tensor &query) const
    {
        if (!bias.defined())
            return bias;
        Tensor whole = in_front(bias);
        while (whole.dim() < 5)
            whole = whole.unsqueeze(1);
        Dims sizes(whole.sizes().begin(), whole.sizes().end());
        sizes[1] = query.size(0) / count_;
        return whole.expand(sizes).flatten(0, 1);
    }
    Tensor apart(const Tensor &joined) const
    {
        return joined.defined() ? makeBatched(joined.unflatten(0, {count_, -1}), 0, level_) : joined;
    }
    // Its gradient, which that of a bias with fewer dims adds up to.
    Tensor apart_bias(const Tensor &grad, const Tensor &bias) const
    {
        if (!grad.defined())
            return grad;
        const Tensor whole = in_front(bias);
        Dims sizes(whole.sizes().begin(), whole.sizes().end()), wanted = sizes;
        wanted.insert(wanted.begin() + 1, 5 - sizes.size(), 1);
        return makeBatched(grad.unflatten(0, {count_, -1}).sum_to_size(wanted).reshape(sizes), 0, level_);
    }

  private:
    Tensor in_front(const Tensor &tensor) const
    {
        const auto *const batched = maybeGetBatchedImpl(tensor);
        if (batched && batched->level() == level_)
            return batched->value().movedim(batched->bdim(), 0);
        Dims sizes(tensor.sizes().begin(), tensor.sizes().end());
        sizes.insert(sizes.begin(), count_);
        return tensor.expand(sizes);
    }

    c10::impl::ExcludeDispatchKeyGuard guard_;
    int64_t level_ = -1, count_ = 1;
};

Attention attention(const Tensor &query, const Tensor &key, const Tensor &value, const MaybeTensor &bias,
                    double dropout, bool causal, bool debug, std::optional<double> scale)
{
    const Tensor given = bias.value_or(Tensor());
    const Mapped mapped{&query, &key, &value, &given};
    const Tensor all = mapped.joined(query), mask = mapped.joined_bias(given, all);
    auto [out, total, starts, key_starts, rows, columns, seed, offset, shown] =
        at::_scaled_dot_product_fused_attention_overrideable(all, mapped.joined(key), mapped.joined(value),
                                                             mask.defined() ? MaybeTensor(mask) : std::nullopt, dropout,
                                                             causal, debug, scale);
    return {mapped.apart(out), mapped.apart(total), starts, key_starts, rows, columns, seed, offset, shown};
}

std::tuple<Tensor, Tensor, Tensor, Tensor>
attention_backward(const Tensor &grad_out, const Tensor &query, const Tensor &key, const Tensor &value,
                   const Tensor &bias, std::array<bool, 4> wanted, const Tensor &out, const Tensor &total,
                   const Tensor &starts, const Tensor &key_starts, c10::SymInt rows, c10::SymInt columns,
                   double dropout, bool causal, const Tensor &seed, const Tensor &offset, std::optional<double> scale)
{
    const Mapped mapped{&grad_out, &query, &key, &value, &bias, &out, &total};
    const Tensor all = mapped.joined(query);
    const auto [grad_query, grad_key, grad_value, grad_bias] =
        at::_scaled_dot_product_fused_attention_overrideable_backward_symint(
            mapped.joined(grad_out), all, mapped.joined(key), mapped.joined(value), mapped.joined_bias(bias, all),
            wanted, mapped.joined(out), mapped.joined(total), starts, key_starts, rows, columns, dropout, causal, seed,
            offset, scale);
    return {mapped.apart(grad_query), mapped.apart(grad_key), mapped.apart(grad_value),
            mapped.apart_bias(grad_bias, bias)};
}

TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, library)
{
    library.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(attention));
    library.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(attention_backward));
}

} // namespace

} // namespace opq
