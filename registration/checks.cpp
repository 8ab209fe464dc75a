// Values that PyTorch's CPU kernels check, where ours have to: as a part of the kernel that reads them, so that nothing runs early.
#include "checks.h"

#include <ATen/CompositeImplicitAutogradFunctions.h>
#include <algorithm>

#include "adapter.h"

namespace opq
{

// The core's one elementwise check is that of a divisor.
Value holding(const Value &condition, const char *op_and_words)
{
    const Value ones = full(1, OPQ_i32, shape_of(condition));
    return cast(record(OPQ_OP_div_trunc, {ones, cast(condition, OPQ_i32)}, {attr_text(OPQ_ATTR_key, op_and_words)}),
                OPQ_bool);
}

namespace
{

// ---- quantile: PyTorch looks at q on the CPU alone

Tensor checked_quantiles(const Tensor &self, const Tensor &q)
{
    if (!on_device(self) || !on_device(q) || is_raw(q) || is_wide(q) || !at::isFloatingType(q.scalar_type()))
        return q; // an error that PyTorch words
    note_line();
    const Value place = read(q), zero = number(0, q.dtype() == at::kDouble ? OPQ_f64 : OPQ_f32);
    const Value one = number(1, zero.dtype());
    const Value inside = record(OPQ_OP_bitwise_and, {record(OPQ_OP_ge, {place, zero}), record(OPQ_OP_le, {place, one})});
    const Tensor holds = wrap(holding(inside, "aten::quantile: quantile() q values must be in the range [0, 1]"));
    return at::where(holds, q, q.detach());
}

using MaybeDim = std::optional<int64_t>;
using Quantile = Tensor (*)(const Tensor &, const Tensor &, MaybeDim, bool, c10::string_view);
using QuantileOut = Tensor &(*)(const Tensor &, const Tensor &, MaybeDim, bool, c10::string_view, Tensor &);

template <Quantile composite>
Tensor quantile(const Tensor &self, const Tensor &q, MaybeDim dim, bool keepdim, c10::string_view interpolation)
{
    return composite(self, checked_quantiles(self, q), dim, keepdim, interpolation);
}

template <QuantileOut composite> Tensor &quantile_out(const Tensor &self, const Tensor &q, MaybeDim dim, bool keepdim,
                                                      c10::string_view interpolation, Tensor &out)
{
    return composite(self, checked_quantiles(self, q), dim, keepdim, interpolation, out);
}

void register_quantiles(torch::Library &library)
{
    namespace implicit = at::compositeimplicitautograd;
    library.impl("quantile", OPQ_KERNEL(quantile<&implicit::quantile>));
    library.impl("quantile.out", OPQ_KERNEL(quantile_out<&implicit::quantile_outf>));
    library.impl("nanquantile", OPQ_KERNEL(quantile<&implicit::nanquantile>));
    library.impl("nanquantile.out", OPQ_KERNEL(quantile_out<&implicit::nanquantile_outf>));
}

// Numbers that are not finite end the process in MKL; linalg.eig looks for them itself.
bool eigenvalues(Call &call)
{
    TORCH_CHECK(at::isfinite(call.tensor(0)).all().item<bool>(),
                "torch.linalg.eigvals: input tensor should not contain infs or NaNs.");
    return false;
}

// Most often nothing failed: the numbers (int32) are looked at where they lie, without a kernel that asks whether one is not 0.
void check_errors(const Tensor &numbers, c10::string_view name, bool is_matrix)
{
    note_line();
    const Tensor there = guarded([&] { return cpu_now(numbers, OPQ_REASON_item); }).contiguous();
    const auto *const first = there.const_data_ptr<int32_t>();
    if (std::any_of(first, first + there.numel(), [](int32_t number) { return number != 0; }))
        at::_linalg_check_errors(there, name, is_matrix);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "_linalg_eigvals", &eigenvalues);
    library.impl("_linalg_check_errors", OPQ_KERNEL(check_errors));
    register_quantiles(library);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) { register_quantiles(library); }

} // namespace

} // namespace opq
