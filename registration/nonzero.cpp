// nonzero and masked_select: two passes over a mask in memory, and what is read there as by any other index.
#include "nonzero.h"

#include <ATen/ops/empty.h>

#include "below.h"

namespace opq
{

namespace
{

// A mask in memory, row-major, with who holds that memory.
struct Mask {
    Tensor holder;
    const bool *at;
    int64_t size;

    int64_t count() const
    {
        int64_t found = 0;
        for (int64_t i = 0; i < size; ++i)
            found += at[i];
        return found;
    }
};

Mask mask_now(const Call &call, const Tensor &mask)
{
    Tensor there;
    if (on_device(mask)) {
        const Value given = call.in(mask);
        const Value truth = given.dtype() == OPQ_bool ? given : record(OPQ_OP_ne, {given, scalar(0)});
        materialize({truth}, OPQ_REASON_extern_now);
        there = cpu_alias(truth, at::kBool, mask.sizes(), ordered_strides(mask.sizes(), Order{}));
    } else {
        const Below below;
        there = mask.to(at::kBool).contiguous();
    }
    return {there, there.const_data_ptr<bool>(), there.numel()};
}

} // namespace

// A turn writes its place and goes on to the next one only if that is wanted: no branch to be mispredicted.
Tensor flat_mask_places(const Call &call, const Tensor &mask)
{
    const Mask there = mask_now(call, mask);
    const int64_t count = there.count();
    const Below below;
    const Tensor places = at::empty({count + 1}, at::TensorOptions().dtype(at::kLong).device(at::kCPU));
    int64_t *next = places.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < there.size; ++i) {
        *next = i;
        next += there.at[i];
    }
    return places.narrow(0, 0, count);
}

Tensor mask_places(const Call &call, const Tensor &mask)
{
    const Tensor flat = flat_mask_places(call, mask);
    const int64_t rank = mask.dim(), count = flat.size(0);
    const Below below;
    if (rank == 1)
        return flat.unsqueeze(1);
    const Tensor places = at::empty({count, rank}, flat.options());
    if (rank == 0)
        return places;
    const int64_t *from = flat.const_data_ptr<int64_t>(), last = mask.size(-1);
    int64_t *to = places.mutable_data_ptr<int64_t>(), row = 0; // where the row begins that `at` is of
    Dims at(static_cast<size_t>(rank - 1), 0);
    for (int64_t i = 0; i < count; ++i, to += rank) {
        for (; from[i] - row >= last; row += last)
            for (size_t d = at.size(); d-- > 0 && ++at[d] == mask.size(static_cast<int64_t>(d));)
                at[d] = 0;
        std::copy(at.begin(), at.end(), to);
        to[rank - 1] = from[i] - row;
    }
    return places;
}

namespace
{

// nonzero(self)
bool nonzero(Call &call)
{
    TORCH_CHECK(call.into.value_or(at::kLong) == at::kLong,
                "nonzero: Expected out tensor to have scalar type Long but got ", *call.into);
    call.give(upload(mask_places(call, call.tensor(0)), Order{}));
    return true;
}

// masked_select(self, mask)
bool masked_select(Call &call)
{
    const Tensor &self = call.tensor(0), &mask = call.tensor(1);
    TORCH_CHECK(mask.scalar_type() == at::kBool || mask.scalar_type() == at::kByte,
                "masked_select: expected BoolTensor or ByteTensor for mask");
    check_device(mask, call.name());
    TORCH_CHECK(call.into.value_or(self.scalar_type()) == self.scalar_type(),
                "masked_select(): self and result must have same scalar type");
    if (mask.scalar_type() != at::kBool)
        return false;
    const auto shape = at::infer_size_dimvector(self.sizes(), mask.sizes());
    const Value places = upload(flat_mask_places(call, mask.expand(shape)), Order{});
    const Value flat = reshape(expand(call.in(0), shape), {c10::multiply_integers(shape)});
    call.give(record(OPQ_OP_index_select, {flat, places}, {attr_int(OPQ_ATTR_axis, 0)}), self.scalar_type());
    return true;
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "nonzero", &nonzero);
    adapt(library, "masked_select", &masked_select);
}

} // namespace opq
