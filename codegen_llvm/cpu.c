/* What the host may execute, and the two code levels made from it.
 *
 * The LLVM CPU name is one of two fixed ones, not the host's: the same kernel gives the same machine code on every host
 * of a level, and a hypervisor that hides a feature of the host's model cannot surprise us.
 */
#include "codegen_llvm/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Linux lets a process use the AMX tiles only after it has asked; the answer holds for all its threads. */
static bool tiles_allowed(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd");
}

static void fill(opq_cpu *cpu, bool avx512)
{
    *cpu = (opq_cpu){.avx512 = avx512};
    snprintf(cpu->name, sizeof cpu->name, "%s", avx512 ? "skylake-avx512" : "haswell");
    snprintf(cpu->features, sizeof cpu->features, "%s",
             avx512 ? "+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd,+fma,+f16c" : "+avx2,+fma,+f16c,+bmi,+bmi2");
}

opq_status opq_cpu_level(const char *level, opq_cpu *out_cpu)
{
    bool avx512 = strcmp(level, "avx512") == 0;
    if (!avx512 && strcmp(level, "avx2") != 0)
        return opq_fail(OPQ_INVALID, "the processor is \"%s\"; known are avx2 and avx512", level);
    fill(out_cpu, avx512);
    return OPQ_OK;
}

bool opq_cpu_runs(const opq_cpu *level)
{
    __builtin_cpu_init();
    return has_avx2() && (!level->avx512 || has_avx512());
}

static void add_feature(opq_cpu *cpu, const char *feature)
{
    size_t length = strlen(cpu->features);
    snprintf(cpu->features + length, sizeof cpu->features - length, ",%s", feature);
}

opq_status opq_cpu_detect(opq_cpu *out_cpu)
{
    *out_cpu = (opq_cpu){0};
    __builtin_cpu_init();
    if (!has_avx2())
        return opq_fail(OPQ_UNSUPPORTED, "this processor lacks AVX2, FMA or F16C, which generated code needs");
    const char *limit = getenv("OPAQUE_CPU");
    if (limit && *limit && strcmp(limit, "avx2") != 0 && strcmp(limit, "avx512") != 0)
        return opq_fail(OPQ_INVALID, "OPAQUE_CPU is \"%s\"; known are avx2 and avx512", limit);
    if (limit && strcmp(limit, "avx512") == 0 && !has_avx512())
        return opq_fail(OPQ_UNSUPPORTED, "OPAQUE_CPU is avx512, but this processor lacks AVX-512 F, BW, DQ, VL or CD");

    fill(out_cpu, has_avx512() && !(limit && strcmp(limit, "avx2") == 0));
    if (!out_cpu->avx512)
        return OPQ_OK;
    out_cpu->avx512_bf16 = __builtin_cpu_supports("avx512bf16");
    out_cpu->amx_bf16 = out_cpu->avx512_bf16 && __builtin_cpu_supports("amx-tile") &&
                        __builtin_cpu_supports("amx-bf16") && tiles_allowed();
    out_cpu->avx512_vnni = __builtin_cpu_supports("avx512vnni");
    if (out_cpu->avx512_bf16)
        add_feature(out_cpu, "+avx512bf16");
    if (out_cpu->avx512_vnni)
        add_feature(out_cpu, "+avx512vnni");
    if (out_cpu->amx_bf16)
        add_feature(out_cpu, "+amx-tile,+amx-bf16");
    return OPQ_OK;
}
