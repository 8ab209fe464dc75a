/* What the machine can do at most, measured: multiply-adds from registers, and copies of several sizes. Williams, Waterman, Patterson:
 * "Roofline", CACM 52 (2009). */
#include "runtime/roofline.h"
#include "codegen_llvm/cpu.h"
#include "codegen_llvm/gemm_kernel.h"
#include "codegen_llvm/jit.h"
#include "runtime/parallel.h"
#include "graph/clock.h"

#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

enum { CHAINS = 12, STEPS = 40000, REPEATS = 5 };
static const int64_t sizes[OPQ_ROOFLINE_SIZES] = {128 << 10, 4 << 20, 48 << 20};

/* As many chains as hide the latency of one. */
__attribute__((target("avx512f"))) static float multiply_512(void)
{
    __m512 chain[CHAINS];
    const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1.f);
    for (int c = 0; c < CHAINS; c++) /* equal chains would be one */
        chain[c] = _mm512_set1_ps((float)c);
    for (int i = 0; i < STEPS; i++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            chain[c] = _mm512_fmadd_ps(chain[c], a, b);
    for (int c = 1; c < CHAINS; c++)
        chain[0] = _mm512_add_ps(chain[0], chain[c]);
    return _mm512_cvtss_f32(chain[0]);
}

__attribute__((target("avx2,fma"))) static float multiply_256(void)
{
    __m256 chain[CHAINS];
    const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.f);
    for (int c = 0; c < CHAINS; c++) /* equal chains would be one */
        chain[c] = _mm256_set1_ps((float)c);
    for (int i = 0; i < STEPS; i++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            chain[c] = _mm256_fmadd_ps(chain[c], a, b);
    for (int c = 1; c < CHAINS; c++)
        chain[0] = _mm256_add_ps(chain[0], chain[c]);
    return _mm256_cvtss_f32(chain[0]);
}

typedef struct measured {
    bool wide;
    char *from, *to;
    int64_t piece, times;
} measured;

static void multiply(void *data, int64_t begin, int64_t end)
{
    const measured *m = data;
    for (int64_t i = begin; i < end; i++) {
        volatile float kept = m->wide ? multiply_512() : multiply_256();
        (void)kept;
    }
}

static void copy(void *data, int64_t begin, int64_t end)
{
    const measured *m = data;
    for (int64_t t = 0; t < m->times; t++)
        for (int64_t i = begin; i < end; i++)
            memcpy(m->to + i * m->piece, m->from + i * m->piece, (size_t)m->piece);
}

/* The least of some tries, in seconds: on all threads, and on one, which is faster where other programs have the other processors. */
static double best(const opq_host *host, int64_t threads, void (*body)(void *, int64_t, int64_t), measured *m)
{
    double least = 1e9;
    for (int r = 0; r < 2 * REPEATS; r++) {
        double start = opq_now();
        opq_parallel_for(r % 2 ? host : NULL, threads, 1, body, m);
        double took = opq_now() - start;
        least = took < least ? took : least;
    }
    return least;
}

opq_status opq_roofline_measure(const opq_runtime *runtime, opq_roofline *out_roofline)
{
    const opq_host *host = runtime->host;
    int64_t threads = host && host->thread_count ? host->thread_count(host->self) : 1;
    const struct opq_cpu *cpu = opq_jit_cpu(runtime->jit);
    int lanes = opq_gemm_vector_bytes(cpu) / (int)sizeof(float);
    measured m = {.wide = lanes == 16};
    size_t most = (size_t)sizes[OPQ_ROOFLINE_SIZES - 1] / 2;
    m.from = malloc(2 * most);
    if (m.from == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory to measure the machine");
    m.to = m.from + most;
    memset(m.from, 1, 2 * most);
    *out_roofline = (opq_roofline){.threads = (int)threads};
    out_roofline->pairs = opq_cpu_has(cpu, OPQ_LEAF_pairs) ? 2 : 1;
    out_roofline->pairs16 = opq_cpu_has(cpu, OPQ_LEAF_tiles) ? 16 : 1;
    out_roofline->i8 = opq_cpu_has(cpu, OPQ_LEAF_tiles) ? 32 : opq_cpu_has(cpu, OPQ_LEAF_quads) ? 4 : 1;
    out_roofline->flops = 2.0 * CHAINS * STEPS * lanes * (double)threads / best(host, threads, multiply, &m);
    for (int s = 0; s < OPQ_ROOFLINE_SIZES; s++) {
        m.piece = sizes[s] / 2 / threads;
        m.times = s == OPQ_ROOFLINE_SIZES - 1 ? 1 : (8 << 20) / sizes[s];
        out_roofline->size[s] = sizes[s];
        out_roofline->bytes[s] = 2.0 * (double)(m.piece * threads * m.times) / best(host, threads, copy, &m);
    }
    free(m.from);
    return OPQ_OK;
}
