/* Which target the host is. */
#include "codegen_llvm/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill(opq_cpu *cpu, const opq_target *target)
{
    *cpu = (opq_cpu){.target = target, .leaves = target->leaves};
    snprintf(cpu->features, sizeof cpu->features, "%s", target->features);
}

/* "neon, avx2 and avx512" */
static void write_names(char *out, size_t size, bool foreign)
{
    const opq_target *target, *last = NULL;
    size_t length = 0;
    out[0] = 0;
    for (int i = 0; (target = opq_target_at(i)); i++)
        last = foreign || target->runs_here ? target : last;
    for (int i = 0; (target = opq_target_at(i)) && length < size; i++)
        if (foreign || target->runs_here)
            length += (size_t)snprintf(out + length, size - length, "%s%s",
                                       length == 0      ? ""
                                       : target == last ? " and "
                                                        : ", ",
                                       target->name);
}

static opq_status find(const char *name, bool foreign, const char *what, opq_cpu *out_cpu)
{
    char names[128];
    const opq_target *target = opq_target_find(name);
    if (!target || !(foreign || target->runs_here)) {
        write_names(names, sizeof names, foreign);
        return opq_fail(OPQ_INVALID, "%s is \"%s\"; known are %s", what, name, names);
    }
    fill(out_cpu, target);
    return OPQ_OK;
}

opq_status opq_cpu_level(const char *level, opq_cpu *out_cpu) { return find(level, false, "the processor", out_cpu); }

opq_status opq_cpu_foreign(const char *name, opq_cpu *out_cpu) { return find(name, true, "the target", out_cpu); }

bool opq_cpu_runs(const opq_cpu *level) { return level->target->runs_here && level->target->runs_here(); }

static void add_extra(opq_cpu *cpu, const opq_target_extra *extra)
{
    size_t length = strlen(cpu->features);
    snprintf(cpu->features + length, sizeof cpu->features - length, ",%s", extra->features);
    cpu->leaves |= extra->leaves;
}

void opq_cpu_add(opq_cpu *cpu, unsigned leaves)
{
    const opq_target_extra *extra = cpu->target->extra;
    for (; extra->features && (cpu->leaves & leaves) != leaves; extra++)
        add_extra(cpu, extra);
}

opq_status opq_cpu_detect(opq_cpu *out_cpu)
{
    const char *wanted = getenv("OPAQUE_CPU");
    const opq_target *target, *best = NULL;
    *out_cpu = (opq_cpu){0};
    if (wanted && *wanted) {
        OPQ_TRY(find(wanted, false, "OPAQUE_CPU", out_cpu));
        if (!opq_cpu_runs(out_cpu))
            return opq_fail(OPQ_UNSUPPORTED, "OPAQUE_CPU is %s, but this processor lacks one of %s", wanted,
                            out_cpu->features);
        best = out_cpu->target;
    }
    for (int i = 0; (target = opq_target_at(i)) && !(wanted && *wanted); i++)
        if (target->runs_here && target->runs_here())
            best = target;
    if (!best)
        return opq_fail(OPQ_UNSUPPORTED, "this processor lacks AVX2, FMA or F16C, which generated code needs");
    fill(out_cpu, best);
    for (const opq_target_extra *extra = best->extra; extra->features && extra->runs_here(); extra++)
        add_extra(out_cpu, extra);
    return OPQ_OK;
}
