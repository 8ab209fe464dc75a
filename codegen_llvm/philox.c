/* Philox4x32-10: a counter-based random number generator (Salmon, Moraes, Dror and Shaw, "Parallel
 * random numbers: as easy as 1, 2, 3", SC 2011). Stateless, so a lane's number depends on its
 * counter alone and any fusion gives the same stream.
 */
#include "codegen_llvm/math.h"

#define ROUNDS 10
#define MULTIPLIER_0 0xd2511f53u
#define MULTIPLIER_1 0xcd9e8d57u
#define WEYL_0 0x9e3779b9u /* golden ratio */
#define WEYL_1 0xbb67ae85u /* sqrt(3) - 1 */

/* The two halves of a 32 x 32 bit product. Zero-extended 64-bit products become vpmuludq. */
static void multiply(opq_emitter *e, LLVMValueRef a, uint32_t constant, LLVMValueRef *out_high, LLVMValueRef *out_low)
{
    LLVMValueRef wide = i32_to_i64(e, a);
    LLVMValueRef product = LLVMBuildMul(e->builder, wide, i64(e, constant), "");
    *out_low = i64_to_i32(e, product);
    *out_high = i64_to_i32(e, ilshr(e, product, i64(e, 32)));
}

void opq_math_philox(opq_emitter *e, const LLVMValueRef counter[4], const LLVMValueRef key[2], LLVMValueRef out_words[2])
{
    LLVMValueRef c[4] = {counter[0], counter[1], counter[2], counter[3]};
    LLVMValueRef k[2] = {key[0], key[1]};
    for (int round = 0; round < ROUNDS; round++) {
        LLVMValueRef high0, low0, high1, low1;
        multiply(e, c[0], MULTIPLIER_0, &high0, &low0);
        multiply(e, c[2], MULTIPLIER_1, &high1, &low1);
        c[0] = ixor(e, ixor(e, high1, c[1]), k[0]);
        c[2] = ixor(e, ixor(e, high0, c[3]), k[1]);
        c[1] = low1;
        c[3] = low0;
        k[0] = iadd(e, k[0], i32(e, WEYL_0));
        k[1] = iadd(e, k[1], i32(e, WEYL_1));
    }
    out_words[0] = c[0];
    out_words[1] = c[1];
}
