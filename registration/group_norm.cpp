// Group normalisation: rows of one group's channels and space, normalised like those of layer norm, then scaled channel by channel.
#include "movement.h"

namespace opq
{

namespace
{

struct Groups {
    int64_t batch, channels, groups;
    Dims split;             // batch, groups, channels of a group, space ..
    Dims row, all;          // dims of `split`: those of one row; all but a channel's
    opq_dtype dtype;        // to compute in: float for halves
    opq_dtype inner, outer; // of parameters and statistics; of x and the result

    Value rows(const Value &value) const { return reshape(cast(value, dtype), split); }
    Value parameter(const Value &value) const
    {
        Dims shape{1, split[1], split[2]};
        shape.resize(split.size(), 1);
        return reshape(cast(value, dtype), shape);
    }
    Value statistic(const Value &value) const
    {
        Dims shape{batch, groups};
        shape.resize(split.size(), 1);
        return reshape(cast(value, dtype), shape);
    }
    Value given_statistic(const Value &value) const { return reshape(cast(value, inner), {batch, groups}); }
    Value given_parameter(const Value &value) const { return reshape(cast(value, inner), {channels}); }
};

// (.., N, C, HxW, group): four integers from argument `at` on. Parameters are of x's dtype, or float beside an x of half precision.
bool read_groups(const Call &call, const Tensor &x, std::initializer_list<size_t> parameters, size_t at, Groups &out)
{
    out = {call.integer(at), call.integer(at + 1), call.integer(at + 3), {}, {}, {}, {}, {}, {}};
    if (!at::isFloatingType(x.scalar_type()) || (x.numel() == 0 && out.batch > 0) || x.dim() < 2 || out.groups <= 0 ||
        x.size(0) != out.batch || x.size(1) != out.channels || out.channels == 0 || out.channels % out.groups != 0 ||
        x.numel() != out.batch * out.channels * call.integer(at + 2))
        return false;
    out.split = {out.batch, out.groups, out.channels / out.groups};
    out.split.append(x.sizes().begin() + 2, x.sizes().end());
    out.all = {0};
    for (int64_t dim = 2; dim <= x.dim(); ++dim) {
        out.row.push_back(dim);
        if (dim > 2)
            out.all.push_back(dim);
    }
    at::ScalarType inner = x.scalar_type();
    for (const size_t i : parameters) {
        if (call.none(i))
            continue;
        const Tensor &parameter = call.tensor(i);
        if (parameter.sizes() != IntArrayRef(out.channels) ||
            (parameter.scalar_type() != x.scalar_type() &&
             !(parameter.scalar_type() == at::kFloat && at::isReducedFloatingType(x.scalar_type()))))
            return false;
        inner = parameter.scalar_type();
    }
    for (const size_t i : parameters)
        if (!call.none(i) && call.tensor(i).scalar_type() != inner)
            return false;
    out.outer = core_dtype(x.scalar_type());
    out.inner = core_dtype(inner);
    out.dtype = computing(out.outer);
    return true;
}

// native_group_norm(input, weight, bias, N, C, HxW, group, eps) -> output, mean, rstd
bool group_norm(Call &call)
{
    const Tensor &self = call.tensor(0);
    Groups g;
    if (!read_groups(call, self, {1, 2}, 3, g))
        return false;
    const Value x = g.rows(call.in(0)), eps = scalar(call.scalar(7), g.dtype);
    Value out = record(OPQ_OP_layer_norm_plain, {x, eps}, {attr_ints(OPQ_ATTR_axes, g.row)});
    if (!call.none(1))
        out = record(OPQ_OP_mul, {out, g.parameter(call.in(1))});
    if (!call.none(2))
        out = record(OPQ_OP_add, {out, g.parameter(call.in(2))});
    give_formatted(call, reshape(cast(out, g.outer), self.sizes()), self);
    call.give(g.given_statistic(reduce(OPQ_OP_mean, {x}, g.row, true)));
    call.give(g.given_statistic(reduce(OPQ_OP_layer_norm_rstd, {x, eps}, g.row, true)));
    return true;
}

// native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask)
bool group_norm_backward(Call &call)
{
    const Tensor &self = call.tensor(1);
    Groups g;
    if (!read_groups(call, self, {4}, 5, g) || !same_dtype({&call.tensor(0), &self}) ||
        call.tensor(0).sizes() != self.sizes() || call.tensor(2).numel() != g.batch * g.groups ||
        call.tensor(3).numel() != g.batch * g.groups)
        return false;
    const auto mask = call.args[9].toBoolList();
    const Value grad = g.rows(call.in(0)), x = g.rows(call.in(1));
    const Value mean = g.statistic(call.in(2)), rstd = g.statistic(call.in(3));
    if (mask[0]) {
        const Value scaled = call.none(4) ? grad : record(OPQ_OP_mul, {grad, g.parameter(call.in(4))});
        const Value slope =
            record(OPQ_OP_layer_norm_backward, {scaled, x, mean, rstd}, {attr_ints(OPQ_ATTR_axes, g.row)});
        give_formatted(call, reshape(cast(slope, g.outer), self.sizes()), self);
    } else {
        call.give_none();
    }
    if (mask[1]) {
        const Value normal = record(OPQ_OP_mul, {record(OPQ_OP_sub, {x, mean}), rstd});
        call.give(g.given_parameter(reduce(OPQ_OP_sum, {record(OPQ_OP_mul, {grad, normal})}, g.all, false)));
    } else {
        call.give_none();
    }
    if (mask[2])
        call.give(g.given_parameter(reduce(OPQ_OP_sum, {grad}, g.all, false)));
    else
        call.give_none();
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "native_group_norm", &group_norm);
    adapt(library, "native_group_norm_backward", &group_norm_backward);
}

} // namespace

} // namespace opq
