// Looking values up in a short list: isin, bucketize, searchsorted. Many values in a list of a few are so many comparisons, which fuse to one
// sweep; else they are a reduction over one, which is three ops; for long lists PyTorch sorts and searches, which the core does not.
#include "movement.h"

namespace opq
{

namespace
{

constexpr int64_t kCompared = 16, kMany = 16384; // one after the other
constexpr int64_t kReduced = 128;

// `compare(list element, x)` for all of a list, folded: bool by or, counts by sum.
template <class Compare> Value over_list(const Value &x, const Value &list, opq_op fold, opq_op join, Compare compare)
{
    const int64_t count = shape_of(list)[0];
    if (count > kCompared || (count > 1 && c10::multiply_integers(shape_of(x)) < kMany)) {
        Dims lifted = shape_of(x);
        lifted.push_back(1);
        const int64_t axes[] = {x.rank()};
        return reduce(fold, {compare(list, reshape(x, lifted))}, axes, false);
    }
    Value result;
    for (int64_t k = 0; k < count; ++k) {
        const Value one = compare(reshape(slice(list, 0, k, 1), {}), x);
        result = result ? record(join, {result, one}) : one;
    }
    return result;
}

bool short_list(const Tensor &list, const Tensor &x)
{
    return list.numel() > 0 && list.numel() <= kReduced && !is_raw(x) && same_dtype({&list, &x});
}

// isin.Tensor_Tensor(elements, test_elements, *, assume_unique, invert)
bool isin(Call &call)
{
    const Tensor &elements = call.tensor(0), &list = call.tensor(1);
    if (!short_list(list, elements) || elements.scalar_type() == at::kBool)
        return false;
    const Value found = over_list(call.in(0), reshape(call.in(1), {list.numel()}), OPQ_OP_any, OPQ_OP_bitwise_or,
                                  [](const Value &a, const Value &b) { return record(OPQ_OP_eq, {a, b}); });
    call.give(call.flag(3) ? record(OPQ_OP_bitwise_not, {found}) : found);
    return true;
}

// How many of the sorted numbers are left of x: less, or with `right` not greater. A NaN is right of all.
bool count_left(Call &call, const Value &sorted, const Value &x, bool right, bool narrow)
{
    const auto compare = [&](const Value &bound, const Value &value) {
        const Value beyond = record(right ? OPQ_OP_gt : OPQ_OP_ge, {bound, value});
        return cast(record(OPQ_OP_bitwise_not, {beyond}), OPQ_i64);
    };
    call.give(cast(over_list(x, sorted, OPQ_OP_sum, OPQ_OP_add, compare), narrow ? OPQ_i32 : OPQ_i64));
    return true;
}

// bucketize.Tensor(self, boundaries, *, out_int32, right)
bool bucketize(Call &call)
{
    const Tensor &self = call.tensor(0), &boundaries = call.tensor(1);
    return boundaries.dim() == 1 && short_list(boundaries, self) && self.scalar_type() != at::kBool &&
           count_left(call, call.in(1), call.in(0), call.flag(3), call.flag(2));
}

// searchsorted.Tensor(sorted_sequence, self, *, out_int32, right, side, sorter)
bool searchsorted(Call &call)
{
    const Tensor &sorted = call.tensor(0), &self = call.tensor(1);
    if (sorted.dim() != 1 || !call.none(5) || !short_list(sorted, self) || self.scalar_type() == at::kBool)
        return false;
    bool right = call.flag(3);
    if (!call.none(4)) {
        const std::string &side = call.args[4].toStringRef();
        if ((side != "left" && side != "right") || (side == "left" && right)) // errors that PyTorch words
            return false;
        right = side == "right";
    }
    return count_left(call, call.in(0), call.in(1), right, call.flag(2));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "isin.Tensor_Tensor", &isin);
    adapt(library, "bucketize.Tensor", &bucketize);
    adapt(library, "searchsorted.Tensor", &searchsorted);
}

} // namespace

} // namespace opq
