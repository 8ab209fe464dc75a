/* exp and its kin for one f32 or f64, and random numbers, in plain C: math_f32.def and math_f64.def, which explain the formulas.
 *
 * Every function gives the bits of the generated code for every argument (of NaN: some NaN), which is made of the same text: the two files are
 * read here, with types that are one number, and by codegen_llvm/math.cpp, where they are vectors and an operator appends an instruction to
 * what is being compiled.
 *
 *     f32 f64 i32 u32 u64 mask         numbers; what comparisons give. Conversions are casts, float to integer and back by way of i32.
 *     float double int ...             constants, known where code is made; `if` and `for` look at nothing else
 *     + - * / & | ^ << >> < == && !    and fma, fabs, copysign, sqrt, trunc, rint, isunordered are C's
 *     OPQ_SELECT(condition, a, b)      condition ? a : b
 *     OPQ_RARE(condition, a, b)        the same; a costs much and is hardly ever wanted
 *     OPQ_LOOKUP(table, index)         of f64 from memory; OPQ_LOOKUP8, OPQ_LOOKUP32: of f32, the index modulo 8 (32), from registers
 *     OPQ_FORM(call)                   a processor's faster instructions for the rest of the function, with the same result; nothing in C
 *
 * Bits. Everything is IEEE additions, multiplications, divisions, square roots, fused multiply-adds and integer operations in a fixed order,
 * rounded to nearest, so a result depends on the argument alone: not on the host, the number of lanes or the other lanes. Estimates (rcp,
 * rsqrt) are never used. Compile with -ffp-contract=off. fmaf and fma must have one rounding, as C says; -mfma makes them one instruction.
 * Accuracy is in docs/accuracy.md.
 *
 * NaN. A comparison with NaN is false: in what clamps, the bound stands first, so that NaN stays.
 */
#ifndef OPAQUE_SCALAR_MATH_H
#define OPAQUE_SCALAR_MATH_H

#include "opaque/math_tables.h"
#include "opaque/math_tables_f64.h"
#include "opaque/scalar.h"

/* Functions of one argument; of two there are pow and logaddexp, of f32 atan2 as well. f64 does not have the second list. */
/* clang-format off */
#define OPQ_MATH1_F64(X)                                                                                               \
    X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sin) X(cos) X(tanh) X(erf) X(sigmoid)
#define OPQ_MATH1_F32(X) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(asinh) X(acosh) X(atanh) X(erfc)
/* clang-format on */
#define OPQ_MATH1(X) OPQ_MATH1_F64(X) OPQ_MATH1_F32(X)

#define f32 float
#define f64 double
#define i32 int32_t
#define u32 uint32_t
#define u64 uint64_t
#define mask bool
#define OPQ_SELECT(condition, yes, no) ((condition) ? (yes) : (no))
#define OPQ_RARE(condition, yes, no) ((condition) ? (yes) : (no))
#define OPQ_LOOKUP(table, index) (table)[index]
#define OPQ_LOOKUP8(table, index) (table)[(index) & 7]
#define OPQ_LOOKUP32(table, index) (table)[(index) & 31]
#define OPQ_FORM(call)

#include "opaque/math_f64.def"
#include "opaque/math_f32.def"

#undef f32
#undef f64
#undef i32
#undef u32
#undef u64
#undef mask
#undef OPQ_SELECT
#undef OPQ_RARE
#undef OPQ_LOOKUP
#undef OPQ_LOOKUP8
#undef OPQ_LOOKUP32
#undef OPQ_FORM

#endif
