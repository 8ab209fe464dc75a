/* What may fail on values: accesses through an index read at run time (checked loads, and additions in ascending order), and
 * divisors.
 *
 * An index out of range is reported once per kernel call and its lanes are left out: they load zero and store nothing,
 * so that not even an empty buffer is touched. An index that is the same for all lanes is checked where it is computed,
 * outside the vector loop.
 */
#include "codegen_llvm/nest.h"

static LLVMValueRef at_dim(opq_nest *n, int access, int which)
{
    LLVMTypeRef i64 = LLVMInt64TypeInContext(n->e->context);
    LLVMValueRef at = opq_i64(n->e, opq_dims_of(n->k->rank, access) + 1 + n->k->rank + which);
    return LLVMBuildLoad2(n->e->builder, i64, LLVMBuildGEP2(n->e->builder, i64, n->dims, &at, 1, ""), "");
}

static LLVMValueRef at_stride(opq_nest *n, int access) { return at_dim(n, access, 0); }
static LLVMValueRef at_extent(opq_nest *n, int access) { return at_dim(n, access, 1); }

/* if (bad) error[0..1] = {1 + number of stmt in the kernel, index}, unless an earlier one failed already; the builder goes on behind it.
 * lanes_bad: which of the indices it is about; NULL: there is one. */
static void report(opq_nest *n, int stmt, LLVMValueRef bad, LLVMValueRef indices, LLVMValueRef lanes_bad)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMTypeRef i64 = LLVMInt64TypeInContext(n->e->context);
    int64_t number = opq_loops_origin(n->k, stmt);
    LLVMBasicBlockRef wrong = opq_nest_block(n, "out_of_range"), go_on = opq_nest_block(n, "checked");
    LLVMBuildCondBr(b, bad, wrong, go_on);
    LLVMPositionBuilderAtEnd(b, wrong);
    LLVMValueRef index = indices;
    if (lanes_bad) {
        LLVMTypeRef type = LLVMTypeOf(lanes_bad);
        LLVMValueRef args[2] = {lanes_bad, opq_int(n->e, 1, 1)};
        LLVMValueRef first = opq_intrinsic(n->e, "llvm.cttz", &type, 1, args, 2);
        index = LLVMBuildExtractElement(b, indices, first, "");
    }
    LLVMValueRef one = opq_i64(n->e, 1), at = LLVMBuildGEP2(b, i64, n->error, &one, 1, "");
    LLVMValueRef before = LLVMBuildLoad2(b, i64, n->error, ""), index_before = LLVMBuildLoad2(b, i64, at, "");
    LLVMValueRef first = LLVMBuildICmp(b, LLVMIntUGE, LLVMBuildSub(b, before, one, ""), opq_i64(n->e, number), "");
    LLVMBuildStore(b, LLVMBuildSelect(b, first, opq_i64(n->e, 1 + number), before, ""), n->error);
    LLVMBuildStore(b, LLVMBuildSelect(b, first, index, index_before, ""), at);
    LLVMBuildBr(b, go_on);
    LLVMPositionBuilderAtEnd(b, go_on);
}

/* Before it, and behind that index: the same element, as each sweep over a row reads it; -1: none. */
static int settled_alike(const opq_nest *n, int stmt)
{
    const opq_stmt *at = opq_nest_stmt(n, stmt);
    for (int i = at->operand[0] + 1; i < stmt; i++)
        if (opq_op_checks(opq_nest_stmt(n, i)->op) && opq_nest_stmt(n, i)->operand[0] == at->operand[0] &&
            opq_nest_stmt(n, i)->access == at->access)
            return i;
    return -1;
}

void opq_nest_settle(opq_nest *n, int stmt)
{
    const opq_stmt *at = opq_nest_stmt(n, stmt);
    LLVMBuilderRef b = n->e->builder;
    int alike = settled_alike(n, stmt);
    if (alike >= 0) {
        n->at_offset[stmt] = n->at_offset[alike];
        n->at_valid[stmt] = n->at_valid[alike];
        return;
    }
    LLVMValueRef index = opq_lane(n->e, opq_nest_value(n, at->operand[0]), 0);
    LLVMValueRef bad = LLVMBuildICmp(b, LLVMIntUGE, index, at_extent(n, at->access), "");
    report(n, stmt, bad, index, NULL);
    index = LLVMBuildSelect(b, bad, opq_i64(n->e, 0), index, "");
    n->at_offset[stmt] = LLVMBuildMul(b, index, at_stride(n, at->access), "");
    n->at_valid[stmt] = opq_splat(n->e, LLVMBuildNot(b, bad, ""));
}

static LLVMValueRef and_mask(opq_nest *n, LLVMValueRef lanes)
{
    return n->mask ? LLVMBuildAnd(n->e->builder, lanes, n->mask, "") : lanes;
}

static LLVMValueRef lane_bits(opq_nest *n, LLVMValueRef lanes)
{
    LLVMTypeRef bits = LLVMIntTypeInContext(n->e->context, (unsigned)n->e->lanes);
    return LLVMBuildBitCast(n->e->builder, lanes, bits, "");
}

static LLVMValueRef any(opq_nest *n, LLVMValueRef bits)
{
    return LLVMBuildICmp(n->e->builder, LLVMIntNE, bits, LLVMConstNull(LLVMTypeOf(bits)), "");
}

/* Lanes with an index in range, under the mask; reports the others. */
static LLVMValueRef check_lanes(opq_nest *n, int stmt, LLVMValueRef indices)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef extent = opq_splat(n->e, at_extent(n, opq_nest_stmt(n, stmt)->access));
    LLVMValueRef bad = and_mask(n, LLVMBuildICmp(b, LLVMIntUGE, indices, extent, ""));
    LLVMValueRef bits = lane_bits(n, bad);
    report(n, stmt, any(n, bits), indices, bits);
    return and_mask(n, LLVMBuildNot(b, bad, ""));
}

/* An index that is the same for all lanes was checked when it was settled. */
void opq_nest_check(opq_nest *n, int stmt)
{
    int index = opq_nest_stmt(n, stmt)->operand[0];
    if (opq_nest_varies(n, index))
        check_lanes(n, stmt, opq_nest_value(n, index));
}

/* The emitters of divisions replace a divisor of 0, so that nothing traps before this is seen. A divisor that is the same for all lanes
 * is looked at wherever the division is made, of which at least one lane counts. */
void opq_nest_nonzero(opq_nest *n, int stmt)
{
    int divisor = opq_nest_stmt(n, stmt)->operand[0];
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef values = opq_nest_value(n, divisor);
    LLVMValueRef bad = LLVMBuildICmp(b, LLVMIntEQ, values, LLVMConstNull(LLVMTypeOf(values)), "");
    bad = opq_nest_varies(n, divisor) ? any(n, lane_bits(n, and_mask(n, bad))) : opq_lane(n->e, bad, 0);
    report(n, stmt, bad, opq_i64(n->e, 0), NULL);
}

/* One pointer per lane: base + indices * at_stride + lanes * stride. */
static LLVMValueRef lane_pointers(opq_nest *n, int access, LLVMValueRef indices)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef offsets = LLVMBuildMul(b, indices, opq_splat(n->e, at_stride(n, access)), "");
    LLVMValueRef lanes = LLVMBuildMul(b, opq_lane_numbers(n->e, 64), opq_splat(n->e, opq_nest_step(n, access)), "");
    offsets = LLVMBuildAdd(b, offsets, lanes, "");
    return LLVMBuildGEP2(b, opq_memory_type(n->e, (opq_dtype)n->k->accesses[access].dtype),
                         opq_nest_pointer(n, access, NULL), &offsets, 1, "");
}

static LLVMValueRef load_lanes(opq_nest *n, int stmt, LLVMValueRef pointers, LLVMValueRef mask)
{
    opq_dtype dtype = (opq_dtype)n->k->accesses[opq_nest_stmt(n, stmt)->access].dtype;
    int bytes = opq_dtype_bytes(dtype) > 8 ? 8 : opq_dtype_bytes(dtype);
    LLVMTypeRef types[2] = {opq_vector_of(n->e, opq_memory_type(n->e, dtype)), LLVMTypeOf(pointers)};
    LLVMValueRef args[4] = {pointers, opq_int(n->e, 32, bytes), mask, LLVMConstNull(types[0])};
    return opq_emit_widen(n->e, dtype, opq_intrinsic(n->e, "llvm.masked.gather", types, 2, args, 4));
}

LLVMValueRef opq_nest_load_at(opq_nest *n, int stmt)
{
    const opq_stmt *at = opq_nest_stmt(n, stmt);
    const opq_access *a = &n->k->accesses[at->access];
    if (opq_nest_varies(n, at->operand[0])) {
        LLVMValueRef indices = opq_nest_value(n, at->operand[0]), mask = check_lanes(n, stmt, indices);
        return load_lanes(n, stmt, lane_pointers(n, at->access, indices), mask);
    }
    LLVMValueRef pointer = opq_nest_pointer(n, at->access, n->at_offset[stmt]);
    if (opq_nest_stride(n, at->access) != OPQ_STRIDE_zero)
        return opq_memory_load(n, (opq_dtype)a->dtype, opq_nest_stride(n, at->access), opq_nest_step(n, at->access),
                               pointer, and_mask(n, n->at_valid[stmt]));
    /* one element: it comes from the dims if there is none to read */
    LLVMValueRef valid = opq_lane(n->e, n->at_valid[stmt], 0);
    pointer = LLVMBuildSelect(n->e->builder, valid, pointer, n->dims, "");
    return opq_memory_load(n, (opq_dtype)a->dtype, OPQ_STRIDE_zero, NULL, pointer, NULL);
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

static LLVMValueRef sum(opq_nest *n, opq_dtype dtype, LLVMValueRef a, LLVMValueRef b)
{
    LLVMValueRef operands[2] = {a, b}, value = a;
    opq_nest_fail(n, opq_emit_ewise(n->e, OPQ_OP_add, dtype, operands, &value));
    return value;
}

/* Lane by lane: two lanes may hit the same element. */
static void add_lanes(opq_nest *n, int stmt, LLVMValueRef pointers, LLVMValueRef mask)
{
    const opq_stmt *add = opq_nest_stmt(n, stmt);
    LLVMBuilderRef b = n->e->builder;
    opq_dtype memory = (opq_dtype)n->k->accesses[add->access].dtype;
    opq_loop loop;
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), opq_i64(n->e, n->e->lanes), 1, NULL, 0);
    LLVMBasicBlockRef next = opq_nest_if(n, LLVMBuildExtractElement(b, mask, loop.index, ""));
    LLVMValueRef pointer = LLVMBuildExtractElement(b, pointers, loop.index, "");
    LLVMValueRef value = opq_splat(n->e, LLVMBuildExtractElement(b, opq_nest_value(n, add->operand[1]), loop.index, ""));
    LLVMValueRef old = opq_memory_load(n, memory, OPQ_STRIDE_zero, NULL, pointer, NULL);
    opq_memory_store(n, memory, OPQ_STRIDE_zero, NULL, pointer, NULL, sum(n, (opq_dtype)add->dtype, old, value));
    opq_nest_end_if(n, next);
    opq_loop_end(n, &loop, NULL);
}

void opq_nest_store_add_at(opq_nest *n, int stmt)
{
    const opq_stmt *add = opq_nest_stmt(n, stmt);
    const opq_access *a = &n->k->accesses[add->access];
    LLVMValueRef indices = opq_nest_value(n, add->operand[0]);
    if (!opq_nest_varies(n, add->operand[0]) && opq_nest_stride(n, add->access) == OPQ_STRIDE_one) {
        LLVMValueRef pointer = opq_nest_pointer(n, add->access, n->at_offset[stmt]),
                     mask = and_mask(n, n->at_valid[stmt]);
        LLVMValueRef old = opq_memory_load(n, (opq_dtype)a->dtype, OPQ_STRIDE_one, NULL, pointer, mask);
        opq_memory_store(n, (opq_dtype)a->dtype, OPQ_STRIDE_one, NULL, pointer, mask,
                         sum(n, (opq_dtype)add->dtype, old, opq_nest_value(n, add->operand[1])));
        return;
    }
    LLVMValueRef mask = check_lanes(n, stmt, indices);
    add_lanes(n, stmt, lane_pointers(n, add->access, indices), mask);
}
