// Scans: cumsum and its kin. What PyTorch makes of them (diff, trapezoid, gradients) comes here as these.
#include "movement.h"

namespace opq
{

namespace
{

// Of a number, whose dim may be 0 or -1, the number.
Value scan(const Call &call, opq_op op, const Value &value)
{
    const int64_t axis = call.integer(1);
    if (value.rank() == 0 && axis != 0 && axis != -1)
        decline(opq_fail(OPQ_UNSUPPORTED, "%s: a number has no dim %lld", call.name(), static_cast<long long>(axis)));
    if (value.rank() == 0)
        return value;
    return record(op, {value}, {attr_int(OPQ_ATTR_axis, normal_axis(axis, value.rank()))});
}

// cumsum, cumprod(self, dim, *, dtype): of integers i64, unless a dtype is named or written into.
bool summing(Call &call)
{
    const bool whole = at::isIntegralType(call.tensor(0).scalar_type(), true);
    const at::ScalarType type = call.asked(2).value_or(whole ? at::kLong : call.tensor(0).scalar_type());
    const opq_dtype dtype = core_dtype(type);
    const bool adds = call.tensor(0).dim() > 0 && call.tensor(0).numel() > 0;
    if (is_raw(dtype) || (dtype == OPQ_bool && adds))
        return false;
    call.give(cast(scan(call, call.row, cast(call.in(0), dtype)), dtype), type);
    return true;
}

bool logcumsumexp(Call &call)
{
    call.give(scan(call, call.row, call.in(0)));
    return true;
}

// cummax, cummin(self, dim) -> values, indices: of equals and of NaNs the last one so far, which is the last that took the value.
bool with_indices(Call &call)
{
    const Value self = call.in(0);
    const Value values = scan(call, call.row, self);
    if (self.rank() == 0) {
        call.give(values);
        call.give(full(0, OPQ_i64, {}));
        return true;
    }
    const Value where = iota(shape_of(self), normal_axis(call.integer(1), self.rank()));
    Value takes = record(OPQ_OP_eq, {self, values});
    if (is_float(self.dtype()))
        takes = record(OPQ_OP_logical_or, {takes, record(OPQ_OP_isnan, {self})});
    call.give(values);
    call.give(scan(call, OPQ_OP_scan_max, record(OPQ_OP_where, {takes, where, scalar(0)})));
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "cumsum", &summing, OPQ_OP_scan_add);
    adapt(library, "cumprod", &summing, OPQ_OP_scan_mul);
    adapt(library, "cummax", &with_indices, OPQ_OP_scan_max);
    adapt(library, "cummin", &with_indices, OPQ_OP_scan_min);
    adapt(library, "logcumsumexp", &logcumsumexp, OPQ_OP_scan_logaddexp);
}

} // namespace

} // namespace opq
