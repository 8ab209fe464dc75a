// Counting: histc of integers, which CUDA has and the CPU has not, and bincount.
#include "below.h"
#include "movement.h"

namespace opq
{

namespace
{

Value compare(opq_op op, const Value &a, const Value &b) { return record(op, {a, b}); }

// How often each of [0, count) is there, or the sum of what is added for it; -1: nowhere.
Value counted(const char *name, const Value &index, const Value &added, int64_t count)
{
    const Value bin = record(OPQ_OP_where, {compare(OPQ_OP_lt, index, scalar(0)), number_i64(count), index});
    const Value sums = record(OPQ_OP_index_add, {full(0, added.dtype(), {count + 1}), bin, added},
                              {attr_int(OPQ_ATTR_axis, 0), attr_text(OPQ_ATTR_key, name)});
    return slice(sums, 0, 0, count);
}

// In integers, as on CUDA. Equal bounds: those of the data.
Value count_integers(const Tensor &self, int64_t bins, const at::Scalar &min, const at::Scalar &max)
{
    const opq_dtype dtype = core_dtype(self.scalar_type());
    const Value x = reshape(cast(read(self), OPQ_i64), {self.numel()});
    Value low = number_i64(min.toLong()), high = number_i64(max.toLong());
    if (min.toLong() == max.toLong() && self.numel() > 0) {
        low = reshape(reduce(OPQ_OP_amin, {x}, {0}, false), {});
        high = reshape(reduce(OPQ_OP_amax, {x}, {0}, false), {});
    }
    const Value single = cast(compare(OPQ_OP_eq, low, high), OPQ_i64);
    low = record(OPQ_OP_sub, {low, single});
    high = plus(high, single);
    const Value inside = record(OPQ_OP_bitwise_and, {compare(OPQ_OP_ge, x, low), compare(OPQ_OP_le, x, high)});
    const Value from_low = times(record(OPQ_OP_sub, {x, low}), number_i64(bins));
    const Value place = record(OPQ_OP_div_trunc, {from_low, record(OPQ_OP_sub, {high, low})});
    const Value bin = record(OPQ_OP_minimum, {place, number_i64(bins - 1)});
    return counted("aten::histc", record(OPQ_OP_where, {inside, bin, number_i64(-1)}), full(1, dtype, {self.numel()}),
                   bins);
}

// Other dtypes as the CPU kernel has them.
Tensor histogram(const Tensor &self, int64_t bins, const at::Scalar &min, const at::Scalar &max)
{
    note_line();
    check_device(self, "histc");
    return guarded([&] {
        if (!at::isIntegralType(self.scalar_type(), false) || is_raw(self) || is_wide(self)) {
            const auto results = extern_results("aten::histc", "", {self, bins, min, max});
            return wrap(results[0].value, results[0].dtype, results[0].order);
        }
        TORCH_CHECK(bins > 0, "bins must be > 0");
        TORCH_CHECK(!min.isComplex() && !max.isComplex() && min.toLong() <= max.toLong(),
                    "max must be larger than min");
        return wrap(count_integers(self, bins, min, max));
    });
}

Tensor &histogram_out(const Tensor &self, int64_t bins, const at::Scalar &min, const at::Scalar &max, Tensor &out)
{
    const Tensor result = histogram(self, bins, min, max);
    TORCH_CHECK(out.scalar_type() == self.scalar_type(),
                "torch.histogram: input tensor and hist tensor should have the same dtype");
    resize_output(out, result.sizes());
    const Below below;
    return out.copy_(result);
}

// bincount(self, weights, minlength). How many there are to be counted depends on the data, which is read.
bool bincount(Call &call)
{
    const Tensor &self = call.tensor(0);
    const int64_t least = call.integer(2);
    check_device(self, call.name());
    if (self.dim() != 1 || self.numel() == 0 || least < 0 || !at::isIntegralType(self.scalar_type(), false) ||
        is_raw(self))
        return false;
    const bool weighted = !call.none(1);
    const bool narrow = weighted && call.tensor(1).scalar_type() == at::kFloat;
    if (weighted && (call.tensor(1).dim() != 1 || call.tensor(1).numel() != self.numel()))
        return false;
    const auto [smallest, largest] = [&] {
        const Below below;
        const auto [low, high] = at::aminmax(self);
        return std::pair(low.item<int64_t>(), high.item<int64_t>());
    }();
    if (smallest < 0) // an error that PyTorch words
        return false;
    const int64_t count = std::max(largest + 1, least);
    const opq_dtype dtype = !weighted ? OPQ_i64 : narrow ? OPQ_f32 : OPQ_f64;
    const Value added = weighted ? cast(call.in(1), dtype) : full(1, OPQ_i64, {self.numel()});
    call.give(record(OPQ_OP_index_add, {full(0, dtype, {count}), cast(call.in(0), OPQ_i64), added},
                     {attr_int(OPQ_ATTR_axis, 0), attr_text(OPQ_ATTR_key, call.name())}));
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("histc", OPQ_KERNEL(histogram));
    library.impl("histc.out", OPQ_KERNEL(histogram_out));
    adapt(library, "bincount", &bincount);
}

} // namespace

} // namespace opq
