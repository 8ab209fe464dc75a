// The functions of opaque/math_*.def as instructions: the text that scalar_math.h reads as C is read here with vectors for numbers (lanes.h).
// Besides, what has no such text: forms that AVX-512 has instructions for, tables in registers, and fmod.
#include "codegen_llvm/lanes.h"

#include <cstdio>
#include <initializer_list>

namespace
{

// ---- tables

// A slice of `count` lanes of v from lane `first`; lanes beyond the end of v are undefined.
LLVMValueRef slice(opq_emitter *e, LLVMValueRef v, int first, int count)
{
    int size = (int)LLVMGetVectorSize(LLVMTypeOf(v));
    if (first == 0 && count == size)
        return v;
    LLVMTypeRef i32_scalar = LLVMInt32TypeInContext(e->context);
    LLVMValueRef numbers[64];
    for (int i = 0; i < count; i++)
        numbers[i] = first + i < size ? opq_int(e, 32, first + i) : LLVMGetPoison(i32_scalar);
    return LLVMBuildShuffleVector(e->builder, v, LLVMGetPoison(LLVMTypeOf(v)),
                                  LLVMConstVector(numbers, (unsigned)count), "");
}

// `count` lanes with the table's entries, again from its start after `period` of them
LLVMValueRef table_part(opq_emitter *e, const float *table, int period, int count)
{
    LLVMValueRef elements[16];
    for (int i = 0; i < count; i++)
        elements[i] = LLVMConstReal(LLVMFloatTypeInContext(e->context), (double)table[i % period]);
    return LLVMConstVector(elements, (unsigned)count);
}

LLVMValueRef permute8(opq_emitter *e, const float *table, LLVMValueRef index)
{
    LLVMValueRef arguments[] = {table_part(e, table, 8, 8), index};
    return opq_intrinsic(e, "llvm.x86.avx2.permps", nullptr, 0, arguments, 2);
}

LLVMValueRef lookup8_avx512(opq_emitter *e, const float *table, LLVMValueRef index)
{
    LLVMValueRef arguments[] = {table_part(e, table, 8, 16), index};
    return opq_intrinsic(e, "llvm.x86.avx512.permvar.sf.512", nullptr, 0, arguments, 2);
}

LLVMValueRef lookup32_avx512(opq_emitter *e, const float *table, LLVMValueRef index)
{
    LLVMValueRef arguments[] = {table_part(e, table, 16, 16), index, table_part(e, table + 16, 16, 16)};
    return opq_intrinsic(e, "llvm.x86.avx512.vpermi2var.ps.512", nullptr, 0, arguments, 3);
}

// vpermps looks at three bits; bits 3 and 4 choose among four results, as the sign that vblendvps looks at.
LLVMValueRef lookup32_avx2(opq_emitter *e, const float *table, LLVMValueRef index)
{
    LLVMValueRef part[4], bit[2], zero = LLVMConstNull(LLVMTypeOf(index));
    for (int i = 0; i < 4; i++)
        part[i] = permute8(e, table + 8 * i, index);
    for (int i = 0; i < 2; i++) {
        LLVMValueRef amount[8];
        for (LLVMValueRef &lane : amount)
            lane = opq_int(e, 32, 28 - i);
        LLVMValueRef sign = LLVMBuildShl(e->builder, index, LLVMConstVector(amount, 8), "");
        bit[i] = LLVMBuildICmp(e->builder, LLVMIntSLT, sign, zero, "");
    }
    LLVMValueRef low = opq_select(e, bit[0], part[1], part[0]), high = opq_select(e, bit[0], part[3], part[2]);
    return opq_select(e, bit[1], high, low);
}

typedef LLVMValueRef lookup_fn(opq_emitter *e, const float *table, LLVMValueRef index);

// Of all lanes, `step` of them at a time
f32 lookup(lookup_fn *find, int step, const float *table, u32 index)
{
    opq_emitter *e = index.e;
    LLVMValueRef result = nullptr;
    for (int first = 0; first < e->lanes; first += step) {
        LLVMValueRef part = find(e, table, slice(e, index.v, first, step));
        if (!result) {
            result = part;
            continue;
        }
        LLVMValueRef numbers[64];
        for (int i = 0; i < first + step; i++)
            numbers[i] = opq_int(e, 32, i);
        part = slice(e, part, 0, first);
        result = LLVMBuildShuffleVector(e->builder, result, part, LLVMConstVector(numbers, (unsigned)(first + step)), "");
    }
    return {e, slice(e, result, 0, e->lanes)};
}

LLVMValueRef table_in_memory(opq_emitter *e, const void *table, int count, LLVMTypeRef element, size_t bytes);

// The lanes one after the other
template <typename T, typename I> lanes<T> from_memory(const T *table, int count, lanes<I> index)
{
    opq_emitter *e = index.e;
    LLVMTypeRef element = scalar_type<T>(e);
    LLVMValueRef from = table_in_memory(e, table, count, element, sizeof *table),
                 result = LLVMGetPoison(vector_type<T>(e));
    for (int lane = 0; lane < e->lanes; lane++) {
        LLVMValueRef at = opq_lane(e, index.v, lane);
        LLVMValueRef place = LLVMBuildGEP2(e->builder, element, from, &at, 1, "");
        result = LLVMBuildInsertElement(e->builder, result, LLVMBuildLoad2(e->builder, element, place, ""),
                                        opq_int(e, 32, lane), "");
    }
    return {e, result};
}

f32 lookup8(const float *table, u32 index)
{
    if (!opq_cpu_has(index.e->cpu, OPQ_LEAF_permute8))
        return from_memory(table, 8, index & 7);
    bool wide = opq_cpu_has(index.e->cpu, OPQ_LEAF_permute32) && index.e->lanes % 16 == 0;
    return wide ? lookup(lookup8_avx512, 16, table, index) : lookup(permute8, 8, table, index);
}

f32 lookup32(const float *table, u32 index)
{
    if (!opq_cpu_has(index.e->cpu, OPQ_LEAF_permute8))
        return from_memory(table, 32, index & 31);
    return opq_cpu_has(index.e->cpu, OPQ_LEAF_permute32) ? lookup(lookup32_avx512, 16, table, index)
                                                         : lookup(lookup32_avx2, 8, table, index);
}

// The table in memory, once in a module, under a name that its bytes give it
LLVMValueRef table_in_memory(opq_emitter *e, const void *table, int count, LLVMTypeRef element, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325;
    char name[32];
    LLVMValueRef values[256];
    for (size_t i = 0; i < bytes * (size_t)count; i++)
        hash = (hash ^ ((const unsigned char *)table)[i]) * 0x100000001b3;
    snprintf(name, sizeof name, "table.%016llx", (unsigned long long)hash);
    if (LLVMValueRef made = LLVMGetNamedGlobal(e->module, name))
        return made;
    for (int i = 0; i < count; i++)
        values[i] = LLVMConstReal(element, bytes == sizeof(double) ? ((const double *)table)[i]
                                                                   : (double)((const float *)table)[i]);
    LLVMValueRef made = LLVMAddGlobal(e->module, LLVMArrayType2(element, (uint64_t)count), name);
    LLVMSetInitializer(made, LLVMConstArray2(element, values, (uint64_t)count));
    LLVMSetGlobalConstant(made, true);
    LLVMSetLinkage(made, LLVMPrivateLinkage);
    return made;
}

// As this is rare
template <int count> f64 lookup_memory(const double (&table)[count], u64 index)
{
    static_assert(count <= 256);
    return from_memory(table, count, index);
}

// ---- forms: NULL where the host lacks them

bool has_512(const opq_emitter *e) { return opq_cpu_has(e->cpu, OPQ_LEAF_exponent) && e->lanes == 16; }

f32 masked_512(opq_emitter *e, const char *name, std::initializer_list<LLVMValueRef> first)
{
    LLVMValueRef arguments[5];
    int count = 0;
    for (LLVMValueRef argument : first)
        arguments[count++] = argument;
    arguments[count++] = opq_int(e, 16, -1);
    arguments[count++] = opq_int(e, 32, 4); // rounding as in MXCSR
    return {e, opq_intrinsic(e, name, nullptr, 0, arguments, count)};
}

f32 opq_form_scale(f32 p, f32 t);
f32 opq_form_log(f32 x);
f32 opq_form_any_power(f32 x) { return has_512(x.e) ? x : f32(); }

#define OPQ_SELECT(condition, yes, no) opq_select(condition, yes, no)
#define OPQ_RARE(condition, yes, no) with_slow_path(condition, [&] { return yes; }, no)
#define OPQ_LOOKUP(table, index) lookup_memory(table, index)
#define OPQ_LOOKUP8(table, index) lookup8(table, index)
#define OPQ_LOOKUP32(table, index) lookup32(table, index)
#define OPQ_FORM(call)                                                                                                 \
    if (f32 form = call; form.v)                                                                                       \
        return form;

#include "opaque/math_f64.def"
#include "opaque/math_f32.def"

// vscalefps is all of it in one instruction, for any n, but that p may be NaN where the result is zero.
f32 opq_form_scale(f32 p, f32 t)
{
    opq_emitter *e = p.e;
    if (!has_512(e))
        return {};
    const float one = OPQ_MAGIC_F32 + OPQ_EXP_BIAS_F32;
    f32 n = t - one;
    p = opq_select(t < one - 150, 0, p);
    return masked_512(e, "llvm.x86.avx512.mask.scalef.ps.512", {p.v, n.v, p.v});
}

// k and m by vgetexp and vgetmant. They take denormals as they are and give -inf for 0, inf for inf and NaN below 0, so no fix is needed
// afterwards.
f32 opq_form_log(f32 x)
{
    opq_emitter *e = x.e;
    if (!has_512(e))
        return {};
    LLVMValueRef zero = f32(0).in(e), interval = opq_int(e, 32, 2 << 2 | 3); // NaN below 0; [3/4, 3/2)
    f32 m = masked_512(e, "llvm.x86.avx512.mask.getmant.ps.512", {x.v, interval, zero});
    f32 k = masked_512(e, "llvm.x86.avx512.mask.getexp.ps.512", {x.v, zero});
    return opq_log_core(opq_select(m < 1, k + 1, k), m - 1);
}

// ---- fmod, exact, as C requires
//
// Of f32 in f64, with a and b the magnitudes: q = trunc(a / b) is the true quotient or one off, and a - q b is exact, because it is a multiple of b's
// last bit and at most 25 bits long. That needs q < 2^53. Larger ratios (up to 2^277) are first reduced modulo b * 2^240, b * 2^192, ...
// b * 2^48, each step by 48 bits; scaling b by a power of two changes nothing of the above.

// a mod b for a / b < 2^52; a as it is where a < b
f64 remainder_step(f64 a, f64 b)
{
    f64 r = fma(-trunc(a / b), b, a);
    r = r + opq_select(r < 0, b, 0);
    r = r - opq_select(r >= b, b, 0);
    return opq_select(a < b, a, r);
}

// The loop over the scales of b, entered when any lane needs it. Lanes that do not are unchanged by it.
f64 reduce_large_ratios(f64 a, f64 b)
{
    opq_emitter *e = a.e;
    f64 top = b * 0x1p240;
    LLVMBasicBlockRef entry = LLVMGetInsertBlock(e->builder);
    LLVMBasicBlockRef loop = new_block(e, "fmod.loop"), done = new_block(e, "fmod.done");
    LLVMBuildCondBr(e->builder, any(a >= b * 0x1p48), loop, done);

    LLVMPositionBuilderAtEnd(e->builder, loop);
    f64 current = {e, LLVMBuildPhi(e->builder, LLVMTypeOf(a.v), "")};
    f64 divisor = {e, LLVMBuildPhi(e->builder, LLVMTypeOf(a.v), "")};
    f64 next = remainder_step(current, divisor), smaller = divisor * 0x1p-48;
    LLVMBuildCondBr(e->builder, any(smaller > b), loop, done);
    LLVMBasicBlockRef from[] = {entry, loop};
    LLVMValueRef values[] = {a.v, next.v}, divisors[] = {top.v, smaller.v};
    LLVMAddIncoming(current.v, values, from, 2);
    LLVMAddIncoming(divisor.v, divisors, from, 2);

    LLVMPositionBuilderAtEnd(e->builder, done);
    LLVMValueRef result = LLVMBuildPhi(e->builder, LLVMTypeOf(a.v), "");
    LLVMAddIncoming(result, values, from, 2);
    return {e, result};
}

// The loop over scale * b for scales 2^2112, 2^2064, .. 2^48, of which those above the largest number are infinite and leave a as it is. q is
// below 2^48 then and, because a / b is not below the true quotient where that is whole, at most one too large: a - q b is exact here, too.
f64 reduce_larger_ratios(f64 a, f64 b)
{
    opq_emitter *e = a.e;
    LLVMBuilderRef builder = e->builder;
    LLVMTypeRef i64 = LLVMInt64TypeInContext(e->context), whole = vector_type<double>(e);
    LLVMBasicBlockRef entry = LLVMGetInsertBlock(builder);
    LLVMBasicBlockRef loop = new_block(e, "fmod.loop"), done = new_block(e, "fmod.done");
    LLVMBuildCondBr(builder, any(a >= b * 0x1p48), loop, done);

    LLVMPositionBuilderAtEnd(builder, loop);
    f64 current = {e, LLVMBuildPhi(builder, whole, "")};
    LLVMValueRef exponent = LLVMBuildPhi(builder, i64, ""); // of a third of the scale
    LLVMValueRef bits = LLVMBuildShl(builder, LLVMBuildAdd(builder, exponent, opq_i64(e, 1023), ""), opq_i64(e, 52), "");
    f64 third = {e, opq_splat(e, LLVMBuildBitCast(builder, bits, LLVMDoubleTypeInContext(e->context), ""))};
    f64 next = remainder_step(current, b * third * third * third);
    LLVMValueRef smaller = LLVMBuildSub(builder, exponent, opq_i64(e, 16), "");
    LLVMBuildCondBr(builder, LLVMBuildICmp(builder, LLVMIntSGT, smaller, opq_i64(e, 0), ""), loop, done);
    LLVMBasicBlockRef from[] = {entry, loop};
    LLVMValueRef values[] = {a.v, next.v}, exponents[] = {opq_i64(e, 704), smaller};
    LLVMAddIncoming(current.v, values, from, 2);
    LLVMAddIncoming(exponent, exponents, from, 2);

    LLVMPositionBuilderAtEnd(builder, done);
    LLVMValueRef result = LLVMBuildPhi(builder, whole, "");
    LLVMAddIncoming(result, values, from, 2);
    return {e, result};
}

f64 fmod_f64(f64 x, f64 y)
{
    f64 x_magnitude = fabs(x), y_magnitude = fabs(y);
    mask valid = x_magnitude < (double)INFINITY && y_magnitude > 0;
    f64 a = opq_select(valid, x_magnitude, 0), b = opq_select(valid, y_magnitude, 1);
    f64 r = remainder_step(reduce_larger_ratios(a, b), b);
    return opq_select(valid, copysign(r, x), (double)NAN);
}

f32 fmod_f32(f32 x, f32 y)
{
    f32 x_magnitude = fabsf(x), y_magnitude = fabsf(y);
    mask valid = x_magnitude < INFINITY && y_magnitude > 0;
    // Harmless operands where the answer is NaN, so that the arithmetic and the loop stay finite.
    f64 a = (f64)opq_select(valid, x_magnitude, 0), b = (f64)opq_select(valid, y_magnitude, 1);
    f64 r = remainder_step(reduce_large_ratios(a, b), b);
    return opq_select(valid, copysignf((f32)r, x), NAN);
}

} // namespace

// ---- what emit.h has

#define X(name)                                                                                                        \
    LLVMValueRef opq_math_##name(opq_emitter *e, LLVMValueRef x) { return opq_##name##_f32(f32(e, x)).v; }
OPQ_MATH1(X)
#undef X
#define X(name)                                                                                                        \
    LLVMValueRef opq_math_##name##_f64(opq_emitter *e, LLVMValueRef x) { return opq_##name##_f64(f64(e, x)).v; }
OPQ_MATH1_F64(X)
#undef X
#define X(type, name, function)                                                                                        \
    LLVMValueRef opq_math_##name(opq_emitter *e, LLVMValueRef x, LLVMValueRef y)                                       \
    {                                                                                                                  \
        return function(type(e, x), type(e, y)).v;                                                                     \
    }
X(f32, pow, opq_pow_f32)
X(f64, pow_f64, opq_pow_f64)
X(f32, atan2, opq_atan2_f32)
X(f64, logaddexp_f64, opq_logaddexp_f64)
X(f32, fmod, fmod_f32)
X(f64, fmod_f64, fmod_f64)
#undef X

LLVMValueRef opq_emit_random(opq_emitter *e, opq_op op, const LLVMValueRef *operands)
{
    u64 index(e, operands[0]), seed(e, operands[1]), offset(e, operands[2]);
    return (op == OPQ_OP_uniform ? opq_uniform_f32(index, seed, offset) : opq_normal_f32(index, seed, offset)).v;
}
