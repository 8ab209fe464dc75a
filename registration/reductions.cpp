// Reductions: which axes, which dtype, which row.
#include <algorithm>
#include <cmath>

#include "movement.h"

namespace opq
{

namespace
{

// Reduces a value; a 0-d value reduces its one element.
Value fold(opq_op op, Operands operands, const Value &shape_like, IntArrayRef axes, bool keepdim)
{
    if (shape_like.rank() != 0)
        return reduce(op, operands, axes, keepdim);
    const Value lifted = reshape(shape_like, {1});
    if (operands.size() == 2) {
        opq_value_retain(operands.begin()[1].value);
        return reduce(op, {lifted, Value::take(operands.begin()[1].value)}, {0}, false);
    }
    return reduce(op, {lifted}, {0}, false);
}

Value fold(opq_op op, const Value &value, IntArrayRef axes, bool keepdim)
{
    return fold(op, {value}, value, axes, keepdim);
}

// What the arguments of one overload mean; -1: it has no such argument.
struct Places {
    int axes, keepdim, dtype;
};

Dims axes_of(const Call &call, int place)
{
    const int64_t rank = call.tensor(0).dim();
    if (place < 0 || call.none(static_cast<size_t>(place)))
        return normal_axes({}, rank);
    return normal_axes(call.dims(static_cast<size_t>(place)), rank);
}

bool keep(const Call &call, int place) { return place >= 0 && call.flag(static_cast<size_t>(place)); }

std::optional<at::ScalarType> asked(const Call &call, int dtype_place)
{
    return dtype_place < 0 ? std::nullopt : call.asked(static_cast<size_t>(dtype_place));
}

Value input(const Call &call, int dtype_place)
{
    const Value self = call.in(0);
    const auto dtype = asked(call, dtype_place);
    if (dtype && is_raw(core_dtype(*dtype)))
        decline(opq_fail(OPQ_UNSUPPORTED, "reduction to a complex dtype"));
    return dtype ? cast(self, core_dtype(*dtype)) : self;
}

// The dtype that is asked for is also the result's where the row would widen integers.
bool give_typed(Call &call, Value value, int dtype_place)
{
    const auto dtype = asked(call, dtype_place);
    call.give(dtype ? cast(value, core_dtype(*dtype)) : std::move(value));
    return true;
}

// Of a channels-last tensor in the order of its memory, so that rows are read as they lie; the result is row-major.
Value reduce_last(opq_op op, const Value &value, const Order &order, IntArrayRef axes, bool keepdim)
{
    const auto rank = order.perm.size();
    Dims inside, shape;
    std::vector<int64_t> back(rank);
    for (size_t at = 0; at < rank; ++at) {
        back[static_cast<size_t>(order.perm[at])] = static_cast<int64_t>(at);
        if (std::find(axes.begin(), axes.end(), order.perm[at]) != axes.end())
            inside.push_back(static_cast<int64_t>(at));
    }
    const Value result = permute(reduce(op, {value}, inside, true), back);
    const Dims whole = shape_of(result);
    for (size_t d = 0; d < rank; ++d)
        if (keepdim || std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) == axes.end())
            shape.push_back(whole[d]);
    return reshape(result, shape);
}

template <int axes, int keepdim, int dtype> bool simple(Call &call)
{
    const Tensor &self = call.tensor(0);
    const Order order = on_device(self) ? format_order(self) : Order{};
    if (!order.plain() && !asked(call, dtype)) {
        const Value value = read_ordered(self, static_cast<int>(self.dim()), order);
        call.give(reduce_last(call.row, value, order, axes_of(call, axes), keep(call, keepdim)));
        return true;
    }
    return give_typed(call, fold(call.row, input(call, dtype), axes_of(call, axes), keep(call, keepdim)), dtype);
}

// Reductions without identity: an empty axis is an error that PyTorch words.
template <int axes, int keepdim> bool nonempty(Call &call)
{
    const bool arg = call.row == OPQ_OP_argmax || call.row == OPQ_OP_argmin;
    if (call.tensor(0).numel() == 0)
        decline(opq_fail(OPQ_INVALID, "%s of nothing", call.name()));
    if (arg && call.tensor(0).scalar_type() == at::kBool)
        return false;
    if (arg)
        call.expect_into(at::kLong);
    call.give(fold(call.row, call.in(0), axes_of(call, axes), keep(call, keepdim)));
    return true;
}

template <int axes, int keepdim> bool logical(Call &call)
{
    const at::ScalarType dtype = call.into.value_or(call.tensor(0).scalar_type() == at::kByte ? at::kByte : at::kBool);
    if (axes >= 0 && call.args[axes].isIntList() && call.dims(axes).empty()) { // reduces nothing, unlike sums
        call.give(cast(cast(call.in(0), OPQ_bool), core_dtype(dtype)), dtype);
        return true;
    }
    const Dims where = axes_of(call, axes);
    call.give(cast(fold(call.row, cast(call.in(0), OPQ_bool), where, keep(call, keepdim)), core_dtype(dtype)), dtype);
    return true;
}

// max.dim, min.dim: (self, dim, keepdim) -> values, indices
bool with_indices(Call &call)
{
    if (call.tensor(0).numel() == 0)
        decline(opq_fail(OPQ_INVALID, "%s of nothing", call.name()));
    const Value self = call.in(0);
    const Dims axes = axes_of(call, 1);
    call.give(fold(call.row, self, axes, call.flag(2)));
    call.give(fold(call.row == OPQ_OP_amax ? OPQ_OP_argmax : OPQ_OP_argmin, self, axes, call.flag(2)));
    return true;
}

bool aminmax(Call &call)
{
    if (call.tensor(0).numel() == 0)
        return false;
    const Value self = call.in(0);
    const Dims axes = axes_of(call, 1);
    call.give(fold(OPQ_OP_amin, self, axes, call.flag(2)));
    call.give(fold(OPQ_OP_amax, self, axes, call.flag(2)));
    return true;
}

// (self, dim, *, correction, keepdim); what is given: var, std, and with_mean their mean
struct Variance {
    Value self;
    Dims axes;
    Value value;
    bool keepdim;
};

Variance variance(const Call &call)
{
    const Value self = call.in(0);
    Variance result{cast(self, computing(self.dtype())), axes_of(call, 1), {}, call.flag(3)};
    const double correction = call.none(2) ? 1.0 : call.real(2);
    result.value = fold(OPQ_OP_var, {result.self, scalar(correction)}, result.self, result.axes, result.keepdim);
    return result;
}

template <bool root, bool with_mean> bool moments(Call &call)
{
    if (!at::isFloatingType(call.tensor(0).scalar_type()))
        return false;
    const opq_dtype dtype = core_dtype(call.tensor(0).scalar_type());
    const Variance v = variance(call); // which may be more than a half holds when its root is not
    call.give(cast(root ? record(OPQ_OP_sqrt, {v.value}) : v.value, dtype));
    if (with_mean)
        call.give(cast(fold(OPQ_OP_mean, v.self, v.axes, v.keepdim), dtype));
    return true;
}

bool norm_of(Call &call, double order, const Value &self, const Dims &axes, bool keepdim)
{
    if (!is_float(self.dtype()))
        return false;
    if (order == 2) {
        call.give(fold(OPQ_OP_norm2, self, axes, keepdim));
        return true;
    }
    if (call.tensor(0).numel() == 0)
        return false;
    if (order == 1)
        call.give(fold(OPQ_OP_sum, record(OPQ_OP_abs, {self}), axes, keepdim));
    else if (std::isinf(order))
        call.give(fold(order > 0 ? OPQ_OP_amax : OPQ_OP_amin, record(OPQ_OP_abs, {self}), axes, keepdim));
    else
        return false;
    return true;
}

// A norm is not computed in less than the operand has: an error that PyTorch words.
bool narrows(const Call &call, size_t dtype_place)
{
    const auto dtype = call.asked(dtype_place);
    return dtype && at::promote_types(call.tensor(0).scalar_type(), *dtype) != *dtype;
}

// linalg_vector_norm(self, ord, dim, keepdim, *, dtype)
bool vector_norm(Call &call)
{
    return !narrows(call, 4) && norm_of(call, call.real(1), input(call, 4), axes_of(call, 2), call.flag(3));
}

// norm.ScalarOpt_dim(self, p, dim, keepdim), norm.ScalarOpt_dim_dtype(.., *, dtype)
bool norm(Call &call)
{
    if (call.count > 4 && narrows(call, 4))
        return false;
    return norm_of(call, call.none(1) ? 2.0 : call.real(1), input(call, call.count > 4 ? 4 : -1), axes_of(call, 2),
                   call.flag(3));
}

bool logsumexp(Call &call)
{
    if (call.tensor(0).numel() == 0)
        return false;
    const Value self = call.in(0);
    call.give(fold(OPQ_OP_logsumexp, is_float(self.dtype()) ? self : cast(self, OPQ_f32), axes_of(call, 1), call.flag(2)));
    return true;
}

// count_nonzero.dim_IntList(self, dim[])
bool count_nonzero(Call &call)
{
    call.give(fold(OPQ_OP_sum, cast(cast(call.in(0), OPQ_bool), OPQ_i64), axes_of(call, 1), false));
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "sum", &simple<-1, -1, 1>, OPQ_OP_sum);
    adapt(library, "sum.dim_IntList", &simple<1, 2, 3>, OPQ_OP_sum);
    adapt(library, "mean", &simple<-1, -1, 1>, OPQ_OP_mean);
    adapt(library, "mean.dim", &simple<1, 2, 3>, OPQ_OP_mean);
    adapt(library, "prod", &simple<-1, -1, 1>, OPQ_OP_prod);
    adapt(library, "prod.dim_int", &simple<1, 2, 3>, OPQ_OP_prod);
    adapt(library, "amax", &nonempty<1, 2>, OPQ_OP_amax);
    adapt(library, "amin", &nonempty<1, 2>, OPQ_OP_amin);
    adapt(library, "max", &nonempty<-1, -1>, OPQ_OP_amax);
    adapt(library, "min", &nonempty<-1, -1>, OPQ_OP_amin);
    adapt(library, "argmax", &nonempty<1, 2>, OPQ_OP_argmax);
    adapt(library, "argmin", &nonempty<1, 2>, OPQ_OP_argmin);
    adapt(library, "max.dim", &with_indices, OPQ_OP_amax);
    adapt(library, "min.dim", &with_indices, OPQ_OP_amin);
    adapt(library, "aminmax", &aminmax);
    adapt(library, "any", &logical<-1, -1>, OPQ_OP_any);
    adapt(library, "any.dim", &logical<1, 2>, OPQ_OP_any);
    adapt(library, "any.dims", &logical<1, 2>, OPQ_OP_any);
    adapt(library, "all", &logical<-1, -1>, OPQ_OP_all);
    adapt(library, "all.dim", &logical<1, 2>, OPQ_OP_all);
    adapt(library, "all.dims", &logical<1, 2>, OPQ_OP_all);
    adapt(library, "var.correction", &moments<false, false>);
    adapt(library, "std.correction", &moments<true, false>);
    adapt(library, "var_mean.correction", &moments<false, true>);
    adapt(library, "std_mean.correction", &moments<true, true>);
    adapt(library, "linalg_vector_norm", &vector_norm);
    adapt(library, "norm.ScalarOpt_dim", &norm);
    adapt(library, "norm.ScalarOpt_dim_dtype", &norm);
    adapt(library, "logsumexp", &logsumexp);
    adapt(library, "count_nonzero.dim_IntList", &count_nonzero);
}

} // namespace

} // namespace opq
