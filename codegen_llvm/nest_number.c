/* Numbers of elements along a loop, and where they are inside of what there is: in lanes, or for all of them. */
#include "codegen_llvm/nest.h"

/* The number of this copy's first lane. */
static LLVMValueRef first_number(opq_nest *n, int access)
{
    LLVMValueRef first = n->address[access], offset = opq_nest_vector_offset(n, access);
    return offset ? LLVMBuildAdd(n->e->builder, first, offset, "") : first;
}

LLVMValueRef opq_nest_number(opq_nest *n, int stmt)
{
    int access = opq_nest_stmt(n, stmt)->access;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef lanes = opq_lane_numbers(n->e, 64), all = opq_splat(n->e, first_number(n, access));
    if (opq_nest_stride(n, access) == OPQ_STRIDE_zero)
        return all;
    if (opq_nest_stride(n, access) != OPQ_STRIDE_one)
        lanes = LLVMBuildMul(b, lanes, opq_splat(n->e, opq_nest_step(n, access)), "");
    return LLVMBuildAdd(b, all, lanes, "");
}

LLVMValueRef opq_nest_number_f64(opq_nest *n, int stmt)
{
    int access = opq_nest_stmt(n, stmt)->access;
    LLVMBuilderRef b = n->e->builder;
    LLVMTypeRef f64 = LLVMDoubleTypeInContext(n->e->context);
    LLVMValueRef all = opq_splat(n->e, LLVMBuildSIToFP(b, first_number(n, access), f64, ""));
    if (opq_nest_stride(n, access) == OPQ_STRIDE_zero)
        return all;
    LLVMValueRef lanes = LLVMBuildSIToFP(b, opq_lane_numbers(n->e, 64), LLVMTypeOf(all), "");
    LLVMValueRef step = opq_splat(n->e, LLVMBuildSIToFP(b, opq_nest_step(n, access), f64, ""));
    return LLVMBuildFAdd(b, all, LLVMBuildFMul(b, lanes, step, ""), "");
}

/* As 32 bits for each lane: at most one behind the last. */
static LLVMValueRef clamp_lane(opq_nest *n, LLVMValueRef lane)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef end = opq_i64(n->e, n->e->lanes), zero = opq_i64(n->e, 0);
    lane = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, lane, zero, ""), zero, lane, "");
    lane = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSGT, lane, end, ""), end, lane, "");
    return opq_splat(n->e, LLVMBuildTrunc(b, lane, LLVMInt32TypeInContext(n->e->context), ""));
}

/* The first lane l with `first` + l * stride >= limit. */
static LLVMValueRef first_lane(opq_nest *n, LLVMValueRef limit, LLVMValueRef first, opq_stride stride)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef lane = LLVMBuildSub(b, limit, first, ""), zero = opq_i64(n->e, 0);
    if (stride > OPQ_STRIDE_one) {
        lane = LLVMBuildAdd(b, lane, opq_i64(n->e, (int64_t)stride - 1), "");
        lane = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, lane, zero, ""), zero, lane, "");
        lane = LLVMBuildUDiv(b, lane, opq_i64(n->e, (int64_t)stride), "");
    }
    return clamp_lane(n, lane);
}

LLVMValueRef opq_nest_compare(opq_nest *n, const opq_stmt *stmt)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMTypeRef i64 = LLVMInt64TypeInContext(n->e->context);
    opq_op op = (opq_op)stmt->op;
    bool above = op == OPQ_OP_gt || op == OPQ_OP_ge;
    int number = stmt->operand[0], limit = stmt->operand[1];
    if (!above && op != OPQ_OP_lt && op != OPQ_OP_le)
        return NULL;
    if (!opq_nest_varies(n, number)) {
        number = limit;
        limit = stmt->operand[0];
        above = !above;
    }
    const opq_stmt *from = opq_nest_stmt(n, number);
    if ((int)from->op != OPQ_STMT_number || opq_nest_stride(n, from->access) != OPQ_STRIDE_one ||
        opq_nest_varies(n, limit))
        return NULL;
    /* lanes before `end` are below the limit, or at it; what is far stays far */
    LLVMValueRef args[2] = {opq_lane(n->e, opq_nest_value(n, limit), 0), first_number(n, from->access)};
    LLVMValueRef end = opq_intrinsic(n->e, "llvm.ssub.sat", &i64, 1, args, 2);
    bool at_it = number == stmt->operand[0] ? op == OPQ_OP_le || op == OPQ_OP_gt : op == OPQ_OP_ge || op == OPQ_OP_lt;
    args[0] = end;
    args[1] = opq_i64(n->e, 1);
    end = clamp_lane(n, at_it ? opq_intrinsic(n->e, "llvm.sadd.sat", &i64, 1, args, 2) : end);
    return LLVMBuildICmp(b, above ? LLVMIntSGE : LLVMIntSLT, opq_lane_numbers(n->e, 32), end, "");
}

static LLVMValueRef extent_of(opq_nest *n, int access)
{
    LLVMTypeRef i64 = LLVMInt64TypeInContext(n->e->context);
    LLVMValueRef at = opq_i64(n->e, opq_dims_of(n->k->rank, access) + 2 + n->k->rank);
    return LLVMBuildLoad2(n->e->builder, i64, LLVMBuildGEP2(n->e->builder, i64, n->dims, &at, 1, ""), "");
}

LLVMValueRef opq_nest_inside(opq_nest *n, int stmt)
{
    int access = opq_nest_stmt(n, stmt)->access;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef extent = extent_of(n, access), first = first_number(n, access);
    opq_stride stride = opq_nest_stride(n, access);
    if (stride == OPQ_STRIDE_zero)
        return opq_splat(n->e, LLVMBuildICmp(b, LLVMIntULT, first, extent, ""));
    if (n->has_lanes)
        return LLVMConstAllOnes(opq_vector_type(n->e, OPQ_bool));
    if (stride >= OPQ_STRIDE_any)
        return LLVMBuildICmp(b, LLVMIntULT, opq_nest_number(n, stmt), opq_splat(n->e, extent), "");
    LLVMValueRef numbers = opq_lane_numbers(n->e, 32);
    LLVMValueRef from = first_lane(n, opq_i64(n->e, 0), first, stride), to = first_lane(n, extent, first, stride);
    return LLVMBuildAnd(b, LLVMBuildICmp(b, LLVMIntSGE, numbers, from, ""),
                        LLVMBuildICmp(b, LLVMIntSLT, numbers, to, ""), "");
}

/* Do the numbers of this copy's first lane and of the one `last` lanes behind it, between which the others are, lie inside? */
static LLVMValueRef inside_both(opq_nest *n, int stmt, LLVMValueRef last)
{
    int access = opq_nest_stmt(n, stmt)->access;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef extent = extent_of(n, access), first = first_number(n, access);
    last = LLVMBuildAdd(b, first, LLVMBuildMul(b, last, opq_nest_step(n, access), ""), "");
    return LLVMBuildAnd(b, LLVMBuildICmp(b, LLVMIntULT, first, extent, ""),
                        LLVMBuildICmp(b, LLVMIntULT, last, extent, ""), "");
}

LLVMValueRef opq_nest_inside_all(opq_nest *n, int stmt) { return inside_both(n, stmt, opq_i64(n->e, n->e->lanes - 1)); }

LLVMValueRef opq_nest_ask_lanes(opq_nest *n, int from, int to)
{
    LLVMValueRef all = NULL, last = opq_i64(n->e, (int64_t)n->strip * n->e->lanes - 1);
    opq_nest_use_copy(n, 0);
    if (n->mask)
        last = opq_nest_smaller(n, LLVMBuildSub(n->e->builder, n->remaining, opq_i64(n->e, 1), ""), last);
    for (int i = from; i < to; i++)
        if (opq_nest_stmt(n, i)->op == OPQ_STMT_inside && opq_nest_varies(n, i))
            all = opq_nest_both(n, all, inside_both(n, i, last));
    return all;
}
