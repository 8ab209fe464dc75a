/* The two levels of processors that code is made for. */
#ifndef OPAQUE_CODEGEN_CPU_H
#define OPAQUE_CODEGEN_CPU_H

#include "opaque/opaque.h"

typedef struct opq_cpu {
    bool avx512; /* F, BW, DQ, VL; else AVX2 + FMA + F16C */
    bool avx512_bf16, avx512_vnni;
    bool amx_bf16;
    char name[64];      /* LLVM's -mcpu */
    char features[256]; /* LLVM's -mattr */
} opq_cpu;
/* CPUID, lowered by OPAQUE_CPU=avx2|avx512. OPQ_UNSUPPORTED below AVX2. */
opq_status opq_cpu_detect(opq_cpu *out_cpu) OPQ_MUST_CHECK;
/* A level by its name, avx2 or avx512, whatever this processor can do. OPQ_INVALID: it is none of these. */
opq_status opq_cpu_level(const char *level, opq_cpu *out_cpu) OPQ_MUST_CHECK;
/* Can this processor run code of the level? */
bool opq_cpu_runs(const opq_cpu *level);

#endif
