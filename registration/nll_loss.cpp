// The negative log likelihood, which moves elements by index. A target out of range fails the run.
#include "adapter.h"
#include "movement.h"

namespace opq
{

namespace
{

// Of [rows, classes], or of one row [classes].

struct Nll {
    int64_t rows, classes;
    Value given;  // [rows] i64
    Value target; // ignored entries 0
    Value valid;  // [rows] bool
    Value weight; // [rows], 0 where ignored; none: 1 and 0
};

// False: shapes for PyTorch to judge.
bool read_nll(const Call &call, size_t first, Nll &out)
{
    const Tensor &self = call.tensor(first), &target = call.tensor(first + 1);
    if (self.dim() < 1 || self.dim() > 2 || target.dim() > 1 || self.numel() == 0 ||
        !at::isFloatingType(self.scalar_type()) || target.numel() != (self.dim() == 2 ? self.size(0) : 1))
        return false;
    if (target.scalar_type() != at::kLong && target.scalar_type() != at::kByte)
        decline(opq_fail(OPQ_INVALID, "%s: target of this dtype", call.name()));
    const bool weighted = !call.none(first + 2);
    if (weighted && (call.tensor(first + 2).dim() != 1 || call.tensor(first + 2).size(0) != self.size(-1) ||
                     !same_dtype({&self, &call.tensor(first + 2)})))
        return false;
    out.rows = target.numel();
    out.classes = self.size(-1);
    out.given = reshape(index_values(call, target), {out.rows});
    out.valid = record(OPQ_OP_ne, {out.given, scalar(call.integer(first + 4))});
    out.target = record(OPQ_OP_where, {out.valid, out.given, scalar(0)});
    if (weighted) {
        const Value picked = record(OPQ_OP_index_select, {call.in(first + 2), out.target},
                                    {attr_int(OPQ_ATTR_axis, 0), attr_text(OPQ_ATTR_key, call.name())});
        out.weight = record(OPQ_OP_mul, {picked, cast(out.valid, core_dtype(self.scalar_type()))});
    }
    return true;
}

// nll_loss_forward(self, target, weight, reduction, ignore_index) -> output, total_weight
bool nll_loss(Call &call)
{
    Nll nll;
    if (!read_nll(call, 0, nll))
        return false;
    const int64_t reduction = call.integer(3);
    const Value self = reshape(call.in(0), {nll.rows, nll.classes});
    const Value index = reshape(nll.target, {nll.rows, 1});
    const Value picked =
        reshape(record(OPQ_OP_gather, {self, index}, {attr_int(OPQ_ATTR_axis, 1), attr_text(OPQ_ATTR_key, call.name())}),
                {nll.rows});
    const Value weighed = record(OPQ_OP_neg, {nll.weight ? times(picked, nll.weight) : picked});
    const Value losses = record(OPQ_OP_where, {nll.valid, weighed, scalar(0, weighed.dtype())});
    if (reduction == at::Reduction::None && call.tensor(0).dim() == 2) {
        call.give(losses);
        call.give(full(0, losses.dtype(), {}));
        return true;
    }
    const Value weight = nll.weight ? nll.weight : cast(nll.valid, losses.dtype());
    const Value sum = reduce(OPQ_OP_sum, {losses}, {0}, false), total = reduce(OPQ_OP_sum, {weight}, {0}, false);
    call.give(reduction == at::Reduction::Mean ? record(OPQ_OP_div, {sum, total}) : sum);
    call.give(total);
    return true;
}

// nll_loss_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight)
bool nll_loss_backward(Call &call)
{
    Nll nll;
    if (!read_nll(call, 1, nll))
        return false;
    const int64_t reduction = call.integer(4);
    const bool rowwise = reduction == at::Reduction::None && call.tensor(1).dim() == 2;
    Value grad = call.in(0);
    if (rowwise)
        grad = reshape(grad, {nll.rows, 1});
    if (reduction == at::Reduction::Mean)
        grad = record(OPQ_OP_div, {grad, call.in(6)});
    const Dims column{nll.rows, 1};
    const Value slope = record(OPQ_OP_neg, {nll.weight ? times(reshape(nll.weight, column), grad) : grad});
    const Value classes = iota({nll.rows, nll.classes}, 1);
    // Forward has checked the target; so must this run, or a step would be taken without the row that is wrong.
    const Value ones = expand(full(1, slope.dtype(), {1, 1}), {nll.rows, nll.classes});
    const Value checked = record(OPQ_OP_gather, {ones, reshape(nll.target, column)},
                                 {attr_int(OPQ_ATTR_axis, 1), attr_text(OPQ_ATTR_key, call.name())});
    Value hit = record(OPQ_OP_eq, {classes, reshape(nll.given, column)});
    if (const int64_t ignored = call.integer(5); ignored >= 0 && ignored < nll.classes)
        hit = record(OPQ_OP_bitwise_and, {hit, reshape(nll.valid, column)});
    const Value result = record(OPQ_OP_where, {hit, times(slope, checked), scalar(0, slope.dtype())});
    call.give(reshape(result, call.tensor(1).sizes()));
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "nll_loss_forward", &nll_loss);
    adapt(library, "nll_loss_backward", &nll_loss_backward);
}

} // namespace

} // namespace opq
