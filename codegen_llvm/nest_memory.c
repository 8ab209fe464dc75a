/* Loads and stores of one vector: contiguous, strided or the same element for all lanes; under a mask or not.
 *
 * Lanes outside the mask read nothing and hold zero. What x86 cannot mask or gather (8 and 16 bit elements on AVX2)
 * LLVM takes apart into branches; that is right, and only tails and strided accesses pay for it.
 */
#include "codegen_llvm/nest.h"

static LLVMTypeRef memory_vector(const opq_nest *n, opq_dtype dtype)
{
    return opq_vector_of(n->e, opq_memory_type(n->e, dtype));
}

/* Elements; a complex number is aligned as its parts are. */
static unsigned alignment(opq_dtype dtype)
{
    int bytes = opq_dtype_bytes(dtype);
    return (unsigned)(bytes > 8 ? 8 : bytes);
}

static LLVMValueRef advance(opq_nest *n, opq_dtype dtype, LLVMValueRef pointer, LLVMValueRef elements)
{
    return LLVMBuildGEP2(n->e->builder, opq_memory_type(n->e, dtype), pointer, &elements, 1, "");
}

static LLVMValueRef all_lanes(opq_nest *n) { return LLVMConstAllOnes(opq_vector_type(n->e, OPQ_bool)); }

/* One pointer per lane. */
static LLVMValueRef lane_pointers(opq_nest *n, opq_dtype dtype, LLVMValueRef pointer, LLVMValueRef step)
{
    LLVMValueRef offsets = LLVMBuildMul(n->e->builder, opq_lane_numbers(n->e, 64), opq_splat(n->e, step), "");
    return advance(n, dtype, pointer, offsets);
}

static LLVMValueRef gather(opq_nest *n, opq_dtype dtype, LLVMValueRef pointers, LLVMValueRef mask)
{
    LLVMTypeRef types[2] = {memory_vector(n, dtype), LLVMTypeOf(pointers)};
    LLVMValueRef args[4] = {pointers, opq_int(n->e, 32, alignment(dtype)), mask ? mask : all_lanes(n),
                            LLVMConstNull(types[0])};
    return opq_intrinsic(n->e, "llvm.masked.gather", types, 2, args, 4);
}

static LLVMValueRef load_contiguous(opq_nest *n, opq_dtype dtype, LLVMValueRef pointer, LLVMValueRef mask)
{
    LLVMTypeRef types[2] = {memory_vector(n, dtype), LLVMTypeOf(pointer)};
    if (mask) {
        LLVMValueRef args[4] = {pointer, opq_int(n->e, 32, alignment(dtype)), mask, LLVMConstNull(types[0])};
        return opq_intrinsic(n->e, "llvm.masked.load", types, 2, args, 4);
    }
    LLVMValueRef load = LLVMBuildLoad2(n->e->builder, types[0], pointer, "");
    LLVMSetAlignment(load, alignment(dtype));
    return load;
}

/* One load for each lane, as stores have one, too: no slower than a gather, and several times faster where that is microcode. */
static LLVMValueRef collect(opq_nest *n, opq_dtype dtype, LLVMValueRef pointer, LLVMValueRef step)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef vector = LLVMGetPoison(memory_vector(n, dtype)), offset = opq_i64(n->e, 0);
    for (int lane = 0; lane < n->e->lanes; lane++) {
        LLVMValueRef element = LLVMBuildLoad2(b, opq_memory_type(n->e, dtype), advance(n, dtype, pointer, offset), "");
        LLVMSetAlignment(element, alignment(dtype));
        vector = LLVMBuildInsertElement(b, vector, element, opq_int(n->e, 32, lane), "");
        offset = LLVMBuildAdd(b, offset, step, "");
    }
    return vector;
}

/* Elements first + lane * stride of `low` and what follows it, `high`. */
static LLVMValueRef shuffle(opq_nest *n, LLVMValueRef low, LLVMValueRef high, int first, int count, int stride)
{
    LLVMValueRef indices[2 * OPQ_LANES];
    for (int i = 0; i < count; i++)
        indices[i] = opq_int(n->e, 32, first + i * stride);
    return LLVMBuildShuffleVector(n->e->builder, low, high, LLVMConstVector(indices, (unsigned)count), "");
}

static LLVMValueRef last_lane(opq_nest *n, opq_dtype dtype, LLVMValueRef pointer)
{
    return advance(n, dtype, pointer, opq_i64(n->e, 1 - n->e->lanes));
}

static LLVMValueRef turn_round(opq_nest *n, LLVMValueRef vector)
{
    LLVMValueRef indices[OPQ_LANES];
    for (int i = 0; i < n->e->lanes; i++)
        indices[i] = opq_int(n->e, 32, n->e->lanes - 1 - i);
    return LLVMBuildShuffleVector(n->e->builder, vector, vector, LLVMConstVector(indices, (unsigned)n->e->lanes), "");
}

/* Every `stride`th element of as many vectors that follow each other, two to four, the last of which begins `earlier` elements before that. */
static LLVMValueRef every(opq_nest *n, const LLVMValueRef *parts, int stride, int earlier)
{
    int lanes = n->e->lanes;
    LLVMValueRef indices[OPQ_LANES], pairs[2] = {parts[0], parts[1]};
    if (stride > 2) {
        LLVMValueRef last = stride == 3 ? LLVMGetPoison(LLVMTypeOf(parts[0])) : parts[3];
        pairs[0] = shuffle(n, parts[0], parts[1], 0, 2 * lanes, 1);
        pairs[1] = shuffle(n, parts[2], last, 0, 2 * lanes, 1);
    }
    for (int l = 0; l < lanes; l++)
        indices[l] = opq_int(n->e, 32, l * stride + (l * stride < (stride - 1) * lanes ? 0 : earlier));
    return LLVMBuildShuffleVector(n->e->builder, pairs[0], pairs[1], LLVMConstVector(indices, (unsigned)lanes), "");
}

/* Two to four elements apart: all between them is loaded, and nothing that lies behind the last one. */
static LLVMValueRef load_apart(opq_nest *n, opq_dtype dtype, int stride, LLVMValueRef pointer)
{
    LLVMValueRef parts[4];
    for (int v = 0; v < stride; v++) {
        int64_t at = (int64_t)v * n->e->lanes - (v + 1 < stride ? 0 : stride - 1);
        parts[v] = load_contiguous(n, dtype, advance(n, dtype, pointer, opq_i64(n->e, at)), NULL);
    }
    return every(n, parts, stride, stride - 1);
}

/* Are there masked loads of such elements? */
static bool has_masks(const opq_nest *n, opq_dtype dtype)
{
    int64_t bytes = opq_dtype_bytes(dtype);
    return bytes <= 8 && (bytes >= 4 || opq_cpu_has(n->e->cpu, OPQ_LEAF_bit_masks));
}

/* What follows is made where `value` was, which may be before a loop. The block to return to. */
static LLVMBasicBlockRef go_to(opq_nest *n, LLVMValueRef value)
{
    LLVMBasicBlockRef here = LLVMGetInsertBlock(n->e->builder);
    LLVMValueRef next = LLVMIsAInstruction(value) ? LLVMGetNextInstruction(value) : NULL;
    while (next && LLVMIsAPHINode(next))
        next = LLVMGetNextInstruction(next);
    if (next)
        LLVMPositionBuilderBefore(n->e->builder, next);
    return here;
}

/* On AVX2 lanes of a bit are moved as 16 and widened for each use: as AVX2's own masks instead. */
static LLVMValueRef wide_mask(opq_nest *n, LLVMValueRef mask, LLVMTypeRef type)
{
    bool sign = LLVMIsAICmpInst(mask) && LLVMGetICmpPredicate(mask) == LLVMIntSLT &&
                LLVMTypeOf(LLVMGetOperand(mask, 0)) == type && LLVMIsNull(LLVMGetOperand(mask, 1));
    return sign ? LLVMGetOperand(mask, 0) : LLVMBuildSExtOrBitCast(n->e->builder, mask, type, "");
}

/* The same under a mask: of what lies between them nothing is read. */
static LLVMValueRef load_apart_masked(opq_nest *n, opq_dtype dtype, int stride, LLVMValueRef pointer, LLVMValueRef mask)
{
    LLVMBuilderRef b = n->e->builder;
    int lanes = n->e->lanes;
    bool bits = opq_cpu_has(n->e->cpu, OPQ_LEAF_bit_masks);
    LLVMTypeRef type = LLVMVectorType(LLVMIntTypeInContext(n->e->context, bits ? 1 : 32), (unsigned)lanes);
    LLVMValueRef parts[4], none = LLVMConstNull(type), wide = wide_mask(n, mask, type);
    for (int v = 0; v < stride; v++) {
        LLVMValueRef from[OPQ_LANES];
        for (int l = 0; l < lanes; l++) /* `lanes`: of none */
            from[l] = opq_int(n->e, 32, (v * lanes + l) % stride == 0 ? (v * lanes + l) / stride : lanes);
        LLVMBasicBlockRef here = go_to(n, wide);
        LLVMValueRef some = LLVMBuildShuffleVector(b, wide, none, LLVMConstVector(from, (unsigned)lanes), "");
        LLVMPositionBuilderAtEnd(b, here);
        some = bits ? some : LLVMBuildICmp(b, LLVMIntSLT, some, none, "");
        parts[v] = load_contiguous(n, dtype, advance(n, dtype, pointer, opq_i64(n->e, (int64_t)v * lanes)), some);
    }
    return every(n, parts, stride, 0);
}

/* Every second element of two bytes, where there are no masked loads of such: aligned pairs of them, of which each has one that is wanted. The
 * other may lie outside of a tensor, but never in another page. */
static LLVMValueRef load_half_of_pairs(opq_nest *n, LLVMValueRef pointer, LLVMValueRef mask)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMTypeRef i64 = LLVMInt64TypeInContext(n->e->context), bytes = LLVMInt8TypeInContext(n->e->context);
    LLVMValueRef second = LLVMBuildAnd(b, LLVMBuildPtrToInt(b, pointer, i64, ""), opq_i64(n->e, 2), "");
    LLVMValueRef back = LLVMBuildNeg(b, second, ""), bits = LLVMBuildShl(b, second, opq_i64(n->e, 3), "");
    LLVMValueRef pairs = load_contiguous(n, OPQ_i32, LLVMBuildGEP2(b, bytes, pointer, &back, 1, ""), mask);
    bits = opq_splat(n->e, LLVMBuildTrunc(b, bits, LLVMInt32TypeInContext(n->e->context), ""));
    return LLVMBuildTrunc(b, LLVMBuildLShr(b, pairs, bits, ""), opq_vector_of(n->e, opq_memory_type(n->e, OPQ_bf16)), "");
}

/* One element for all lanes, where `lanes` has any; elsewhere 0. */
static LLVMValueRef load_one_for(opq_nest *n, opq_dtype dtype, LLVMValueRef pointer, LLVMValueRef lanes)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMTypeRef element = opq_memory_type(n->e, dtype);
    LLVMTypeRef bits = LLVMIntTypeInContext(n->e->context, (unsigned)n->e->lanes);
    LLVMValueRef some = LLVMBuildBitCast(b, lanes, bits, "");
    some = LLVMBuildICmp(b, LLVMIntNE, some, LLVMConstNull(bits), "");
    LLVMValueRef at = LLVMBuildSelect(b, some, pointer, opq_nest_stack(n, element), "");
    LLVMValueRef one = LLVMBuildLoad2(b, element, at, "");
    LLVMSetAlignment(one, alignment(dtype));
    one = opq_splat(n->e, one);
    return LLVMBuildSelect(b, lanes, one, LLVMConstNull(LLVMTypeOf(one)), "");
}

LLVMValueRef opq_memory_load(opq_nest *n, opq_dtype dtype, opq_stride stride, LLVMValueRef step, LLVMValueRef pointer,
                             LLVMValueRef mask)
{
    LLVMValueRef memory = NULL;
    if (stride == OPQ_STRIDE_zero) {
        memory = LLVMBuildLoad2(n->e->builder, opq_memory_type(n->e, dtype), pointer, "");
        LLVMSetAlignment(memory, alignment(dtype));
        memory = opq_splat(n->e, memory);
    } else if (stride == OPQ_STRIDE_one) {
        memory = load_contiguous(n, dtype, pointer, mask);
    } else if (stride < OPQ_STRIDE_any && mask == NULL && opq_dtype_bytes(dtype) <= 8) {
        memory = load_apart(n, dtype, (int)stride, pointer);
    } else if (stride < OPQ_STRIDE_any && has_masks(n, dtype)) {
        memory = load_apart_masked(n, dtype, (int)stride, pointer, mask);
    } else if (stride == 2 && opq_dtype_bytes(dtype) == 2) {
        memory = load_half_of_pairs(n, pointer, mask);
    } else if (stride == OPQ_STRIDE_back) {
        memory = load_contiguous(n, dtype, last_lane(n, dtype, pointer), mask ? turn_round(n, mask) : NULL);
        memory = turn_round(n, memory);
    } else if (mask == NULL) {
        memory = collect(n, dtype, pointer, step);
    } else {
        memory = gather(n, dtype, lane_pointers(n, dtype, pointer, step), mask);
    }
    return opq_emit_widen(n->e, dtype, memory);
}

/* Fewer lanes than the vector has, count of them (none if negative), as a half, a quarter, ... of it, as the number has bits; a part that is not
 * wanted goes where nobody looks. */
static void store_parts(opq_nest *n, LLVMValueRef memory, LLVMValueRef count, unsigned align, LLVMValueRef pointer)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMTypeRef element = LLVMGetElementType(LLVMTypeOf(memory));
    LLVMValueRef none = opq_i64(n->e, 0), nowhere = opq_nest_stack(n, LLVMTypeOf(memory));
    LLVMSetAlignment(nowhere, 16); /* as every frame is: one that has to be aligned anew has a register less */
    count = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, count, none, ""), none, count, "");
    for (int width = n->e->lanes / 2; width >= 1; width /= 2) {
        LLVMValueRef bit = LLVMBuildAnd(b, count, opq_i64(n->e, width), ""), step = opq_i64(n->e, width);
        LLVMValueRef wanted = LLVMBuildICmp(b, LLVMIntNE, bit, none, "");
        LLVMValueRef low = shuffle(n, memory, memory, 0, width, 1), high = shuffle(n, memory, memory, width, width, 1);
        LLVMSetAlignment(LLVMBuildStore(b, low, LLVMBuildSelect(b, wanted, pointer, nowhere, "")), align);
        pointer = LLVMBuildSelect(b, wanted, LLVMBuildGEP2(b, element, pointer, &step, 1, ""), pointer, "");
        memory = LLVMBuildSelect(b, wanted, high, low, "");
    }
}

/* The first n->remaining lanes, without a mask: AVX2's masked stores take a hundred cycles on some processors. */
static void store_first(opq_nest *n, LLVMValueRef memory, unsigned align, LLVMValueRef pointer)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMBasicBlockRef whole = opq_nest_block(n, "whole"), parts = opq_nest_block(n, "parts"),
                      stored = opq_nest_block(n, "stored");
    LLVMBuildCondBr(b, LLVMBuildICmp(b, LLVMIntSGE, n->remaining, opq_i64(n->e, n->e->lanes), ""), whole, parts);
    LLVMPositionBuilderAtEnd(b, whole);
    LLVMSetAlignment(LLVMBuildStore(b, memory, pointer), align);
    LLVMBuildBr(b, stored);
    LLVMPositionBuilderAtEnd(b, parts);
    store_parts(n, memory, n->remaining, align, pointer);
    LLVMBuildBr(b, stored);
    LLVMPositionBuilderAtEnd(b, stored);
}

/* Every `stride`th element of as many vectors that follow each other, where `mask` is (NULL: everywhere); what lies between them is left alone. */
static void store_apart(opq_nest *n, opq_dtype dtype, int stride, LLVMValueRef pointer, LLVMValueRef mask,
                        LLVMValueRef memory)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef from[OPQ_LANES], there[OPQ_LANES], align = opq_int(n->e, 32, alignment(dtype));
    LLVMTypeRef types[2] = {LLVMTypeOf(memory), LLVMTypeOf(pointer)};
    unsigned lanes = (unsigned)n->e->lanes;
    for (int v = 0; v < stride; v++) {
        for (int l = 0; l < n->e->lanes; l++) {
            int at = v * n->e->lanes + l;
            from[l] = opq_int(n->e, 32, at / stride);
            there[l] = opq_int(n->e, 1, at % stride == 0);
        }
        LLVMValueRef order = LLVMConstVector(from, lanes), some = LLVMConstVector(there, lanes);
        if (mask)
            some = LLVMBuildAnd(b, some, LLVMBuildShuffleVector(b, mask, mask, order, ""), "");
        LLVMValueRef args[4] = {LLVMBuildShuffleVector(b, memory, memory, order, ""),
                                advance(n, dtype, pointer, opq_i64(n->e, (int64_t)v * n->e->lanes)), align, some};
        opq_intrinsic(n->e, "llvm.masked.store", types, 2, args, 4);
    }
}

void opq_memory_store(opq_nest *n, opq_dtype dtype, opq_stride stride, LLVMValueRef step, LLVMValueRef pointer,
                      LLVMValueRef mask, LLVMValueRef value)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef memory = opq_emit_narrow(n->e, dtype, value), align = opq_int(n->e, 32, alignment(dtype)), store;
    LLVMTypeRef types[2] = {LLVMTypeOf(memory), LLVMTypeOf(pointer)};
    if (stride == OPQ_STRIDE_zero) {
        store = LLVMBuildStore(b, opq_lane(n->e, memory, 0), pointer);
        LLVMSetAlignment(store, alignment(dtype));
    } else if (stride == OPQ_STRIDE_one && mask && mask == n->mask && !opq_cpu_has(n->e->cpu, OPQ_LEAF_bit_masks)) {
        store_first(n, memory, alignment(dtype), pointer);
    } else if (stride == OPQ_STRIDE_one && mask) {
        LLVMValueRef args[4] = {memory, pointer, align, mask};
        opq_intrinsic(n->e, "llvm.masked.store", types, 2, args, 4);
    } else if (stride == OPQ_STRIDE_one) {
        store = LLVMBuildStore(b, memory, pointer);
        LLVMSetAlignment(store, alignment(dtype));
    } else if (stride == OPQ_STRIDE_back && mask == NULL) {
        store = LLVMBuildStore(b, turn_round(n, memory), last_lane(n, dtype, pointer));
        LLVMSetAlignment(store, alignment(dtype));
    } else if (stride < OPQ_STRIDE_any && opq_cpu_has(n->e->cpu, OPQ_LEAF_bit_masks) && opq_dtype_bytes(dtype) <= 8) {
        store_apart(n, dtype, (int)stride, pointer, mask, memory);
    } else if (mask == NULL) {
        LLVMValueRef offset = opq_i64(n->e, 0);
        for (int lane = 0; lane < n->e->lanes; lane++) {
            store = LLVMBuildStore(b, opq_lane(n->e, memory, lane), advance(n, dtype, pointer, offset));
            LLVMSetAlignment(store, alignment(dtype));
            offset = LLVMBuildAdd(b, offset, step, "");
        }
    } else {
        LLVMValueRef pointers = lane_pointers(n, dtype, pointer, step);
        LLVMValueRef args[4] = {memory, pointers, align, mask ? mask : all_lanes(n)};
        types[1] = LLVMTypeOf(pointers);
        opq_intrinsic(n->e, "llvm.masked.scatter", types, 2, args, 4);
    }
}

/* ---- accesses ---------------------------------------------------------------------------------------------------- */

LLVMValueRef opq_nest_vector_offset(opq_nest *n, int access)
{
    opq_stride stride = opq_nest_stride(n, access);
    if (stride == OPQ_STRIDE_zero)
        return NULL;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef index = opq_i64(n->e, (int64_t)n->copy * n->e->lanes);
    if (n->vector_bound && (n->copy == 0 || n->rows >= 0))
        return NULL;
    if (!n->vector_bound)
        index = n->copy == 0 ? n->index[n->vector] : LLVMBuildAdd(b, n->index[n->vector], index, "");
    return stride == OPQ_STRIDE_one ? index : LLVMBuildMul(b, index, opq_nest_step(n, access), "");
}

LLVMValueRef opq_nest_pointer(opq_nest *n, int access, LLVMValueRef extra_offset)
{
    opq_dtype dtype = (opq_dtype)n->k->accesses[access].dtype;
    LLVMValueRef pointer = n->address[access], offset = opq_nest_vector_offset(n, access);
    if (extra_offset)
        pointer = advance(n, dtype, pointer, extra_offset);
    return offset ? advance(n, dtype, pointer, offset) : pointer;
}

LLVMValueRef opq_nest_both(opq_nest *n, LLVMValueRef a, LLVMValueRef b)
{
    return a && b ? LLVMBuildAnd(n->e->builder, a, b, "") : a ? a : b;
}

/* What of a condition is the same for all lanes (i1) and what is not; NULL: nothing, or all of that is sure. */
static void split_condition(opq_nest *n, int condition, LLVMValueRef *out_uniform, LLVMValueRef *out_lanes)
{
    *out_uniform = *out_lanes = NULL;
    for (;;) {
        const opq_stmt *stmt = opq_nest_stmt(n, condition);
        bool both = stmt->op == OPQ_OP_bitwise_and;
        int one = both ? stmt->operand[1] : condition;
        LLVMValueRef value = opq_nest_value(n, one);
        if (!opq_nest_varies(n, one))
            *out_uniform = opq_nest_both(n, opq_lane(n->e, value, 0), *out_uniform);
        else if (value != LLVMConstAllOnes(LLVMTypeOf(value)))
            *out_lanes = opq_nest_both(n, value, *out_lanes);
        if (!both)
            return;
        condition = stmt->operand[0];
    }
}

/* Where there are vectors of zeros, as many as lie between strides. */
static LLVMValueRef zeros(opq_nest *n)
{
    LLVMTypeRef type = LLVMArrayType2(LLVMInt64TypeInContext(n->e->context), OPQ_LANES);
    LLVMValueRef made = LLVMGetNamedGlobal(n->e->module, "zeros");
    if (made == NULL) {
        made = LLVMAddGlobal(n->e->module, type, "zeros");
        LLVMSetInitializer(made, LLVMConstNull(type));
        LLVMSetLinkage(made, LLVMPrivateLinkage);
        LLVMSetGlobalConstant(made, true);
        LLVMSetAlignment(made, 64);
    }
    return made;
}

LLVMValueRef opq_nest_load(opq_nest *n, int stmt)
{
    int access = opq_nest_stmt(n, stmt)->access;
    if (n->tile[access])
        return opq_tile_lanes(n, (opq_dtype)opq_nest_stmt(n, stmt)->dtype, n->tile[access]);
    LLVMValueRef pointer = opq_nest_pointer(n, access, NULL);
    if (n->prefetch)
        opq_nest_look_ahead(n, access);
    opq_dtype dtype = (opq_dtype)n->k->accesses[access].dtype;
    LLVMValueRef mask = n->mask, uniform, lanes;
    opq_stride stride = opq_nest_stride(n, access);
    int condition = opq_nest_stmt(n, stmt)->operand[0];
    bool near = stride != OPQ_STRIDE_zero && stride < OPQ_STRIDE_any;
    if (condition >= 0 && near && (stride == OPQ_STRIDE_one || opq_dtype_bytes(dtype) <= 8)) {
        split_condition(n, condition, &uniform, &lanes);
        if (uniform)
            pointer = LLVMBuildSelect(n->e->builder, uniform, pointer, zeros(n), "");
        mask = opq_nest_both(n, lanes, mask);
    } else if (condition >= 0) {
        mask = opq_nest_both(n, opq_nest_value(n, condition), mask);
        if (stride == OPQ_STRIDE_zero)
            return opq_emit_widen(n->e, dtype, load_one_for(n, dtype, pointer, mask));
    }
    return opq_memory_load(n, dtype, stride, opq_nest_step(n, access), pointer, mask);
}

/* A store whose value does not vary from lane to lane but whose access does writes it to all of them. */
void opq_nest_store(opq_nest *n, int stmt)
{
    const opq_stmt *store = opq_nest_stmt(n, stmt);
    int access = store->access;
    if (n->tile[access]) {
        opq_tile_keep(n, (opq_dtype)store->dtype, n->tile[access], opq_nest_value(n, store->operand[0]));
        return;
    }
    opq_memory_store(n, (opq_dtype)n->k->accesses[access].dtype, opq_nest_stride(n, access), opq_nest_step(n, access),
                     opq_nest_pointer(n, access, NULL), n->mask, opq_nest_value(n, store->operand[0]));
}

/* ---- locals: row-major over their variables, the lanes' last. Whole vectors are written: behind the last element is room, and what a
 * tail writes too far is written again by what follows. */

void opq_nest_enter_locals(opq_nest *n, int from, int to)
{
    LLVMBuilderRef b = n->e->builder;
    for (int i = from; i < to; i++) {
        const opq_stmt *use = opq_nest_stmt(n, i);
        if (use->op != OPQ_STMT_keep && use->op != OPQ_STMT_kept)
            continue;
        const opq_stmt *local = opq_nest_stmt(n, use->access);
        LLVMValueRef row = NULL;
        for (int l = 0; l < n->k->rank; l++) {
            if (!(local->variables >> l & 1))
                continue;
            row = row ? LLVMBuildMul(b, row, n->extent[l], "") : opq_i64(n->e, 0);
            if (l != n->vector)
                row = LLVMBuildAdd(b, row, n->index[l], "");
        }
        int blocks = opq_local_blocks(n->k, use->access);
        if (blocks >= 0)
            row = LLVMBuildNeg(b, n->first[opq_nest_stmt(n, blocks)->variable], "");
        n->local_row[use->access] =
            row ? advance(n, (opq_dtype)local->dtype, n->local[use->access], row) : n->local[use->access];
    }
}

static LLVMValueRef local_pointer(opq_nest *n, const opq_stmt *use)
{
    LLVMBuilderRef b = n->e->builder;
    if (n->vector < 0 || n->local_row[use->access] == NULL) {
        opq_nest_refuse(n, use);
        return n->scratch;
    }
    LLVMValueRef copy = opq_i64(n->e, (int64_t)n->copy * n->e->lanes);
    LLVMValueRef element = LLVMBuildAdd(b, n->index[n->vector], copy, "");
    return advance(n, (opq_dtype)use->dtype, n->local_row[use->access], element);
}

void opq_nest_keep(opq_nest *n, int stmt)
{
    const opq_stmt *keep = opq_nest_stmt(n, stmt);
    opq_memory_store(n, (opq_dtype)keep->dtype, OPQ_STRIDE_one, NULL, local_pointer(n, keep), NULL,
                     opq_nest_value(n, keep->operand[0]));
}

LLVMValueRef opq_nest_kept(opq_nest *n, int stmt)
{
    const opq_stmt *kept = opq_nest_stmt(n, stmt);
    return opq_memory_load(n, (opq_dtype)kept->dtype, OPQ_STRIDE_one, NULL, local_pointer(n, kept), NULL);
}
