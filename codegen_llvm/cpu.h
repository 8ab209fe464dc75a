/* What code is made for: a target, and what the processor has besides. */
#ifndef OPAQUE_CODEGEN_CPU_H
#define OPAQUE_CODEGEN_CPU_H

#include "fusion/target.h"

typedef struct opq_cpu {
    const opq_target *target;
    unsigned leaves;    /* opq_leaf: the target's, and the processor's */
    char features[256]; /* LLVM's -mattr */
} opq_cpu;
/* The target with most lanes that this processor runs, lowered by OPAQUE_CPU, the name of one. OPQ_UNSUPPORTED: it runs none. */
opq_status opq_cpu_detect(opq_cpu *out_cpu) OPQ_MUST_CHECK;
/* A target by its name, whatever this processor can do: of the architecture that the library is built for. OPQ_INVALID: it is none of these. */
opq_status opq_cpu_level(const char *level, opq_cpu *out_cpu) OPQ_MUST_CHECK;
/* Of any architecture. Likewise. */
opq_status opq_cpu_foreign(const char *name, opq_cpu *out_cpu) OPQ_MUST_CHECK;
/* Besides, what processors of its target may have, as far as there are these leaves. */
void opq_cpu_add(opq_cpu *cpu, unsigned leaves);
/* Can this processor run code of the level? */
bool opq_cpu_runs(const opq_cpu *level);
static inline bool opq_cpu_has(const opq_cpu *cpu, opq_leaf leaf) { return (cpu->leaves & (unsigned)leaf) != 0; }

#endif
