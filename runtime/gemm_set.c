/* Calls that run at once: a left operand that several of them have in common, and a right one that several matrices have, are packed first, by all
 * threads, then the blocks of all calls are one parallel loop. All else a block packs for itself, though another may pack the same: to get it
 * from that one's cache takes longer.
 */
#include "runtime/gemm_internal.h"

void gemm_pack_shared_a(void *data, int64_t begin, int64_t end)
{
    gemm_run *run = data;
    int64_t bytes = gemm_packed_a_bytes(run, 0, run->row_panels);
    for (int64_t i = begin; i < end; i++) {
        int64_t batch = i / run->row_panels, p = i % run->row_panels;
        gemm_pack_a(run, batch, 0, run->row_panels, p, p + 1, run->shared_a + batch * bytes);
    }
}

/* Blocks of k of a panel that are packed apart: sums that begin with what the panel adds need all of it. */
static int64_t k_parts(const gemm_run *run)
{
    return run->rule == GEMM_QUADS || run->call.k == 0 ? 1 : gemm_ceil(run->call.k, run->k_block);
}

int64_t gemm_shared_b_count(const gemm_run *run)
{
    return gemm_ceil(run->column_panels, run->group_panels) * k_parts(run);
}

void gemm_pack_shared_b(void *data, int64_t begin, int64_t end)
{
    gemm_run *run = data;
    int64_t panel_bytes = gemm_panel_bytes(run, run->call.k), parts = k_parts(run), count = gemm_shared_b_count(run);
    for (int64_t i = begin; i < end; i++) {
        int64_t batch = i / count, first = i % count / parts * run->group_panels, k0 = i % parts * run->k_block;
        int64_t last = gemm_min(first + run->group_panels, run->column_panels);
        int64_t k = parts > 1 ? gemm_min(run->k_block, run->call.k - k0) : run->call.k;
        char *out = run->shared_b + (batch * run->column_panels + first) * panel_bytes + k0 * gemm_row_bytes(run);
        gemm_pack_b_panels(run, batch, first, last, k0, k, out, panel_bytes);
    }
}

/* Is the left operand packed, and to the same bytes? */
static bool packs_alike(const gemm_run *x, const gemm_run *y)
{
    const opq_matrix *a = &x->call.a, *b = &y->call.a;
    return gemm_packs_a(x) && gemm_packs_a(y) && a->data == b->data && a->dtype == b->dtype &&
           a->row_stride == b->row_stride && a->column_stride == b->column_stride && a->batch_stride == b->batch_stride &&
           a->rows == b->rows && a->columns == b->columns && x->call.dtype == y->call.dtype && x->rule == y->rule &&
           x->call.batch == y->call.batch && x->call.m == y->call.m && x->call.k == y->call.k &&
           x->row_panels == y->row_panels && x->k_block == y->k_block;
}

/* The first run that packs the left operand as run r does: r itself, if none before does. */
static int first_alike(const gemm_set *set, int r)
{
    int first = 0;
    while (first < r && !packs_alike(&set->runs[first], &set->runs[r]))
        first++;
    return first;
}

static bool shares_a(const gemm_set *set, int r)
{
    bool alike = false;
    for (int i = 0; i < set->count && !alike; i++)
        alike = i != r && packs_alike(&set->runs[i], &set->runs[r]);
    return alike;
}

static int64_t shared_a_bytes(const gemm_set *set, int r)
{
    const gemm_run *run = &set->runs[r];
    if (!shares_a(set, r) || first_alike(set, r) < r)
        return 0;
    return gemm_ceil(run->call.batch * gemm_packed_a_bytes(run, 0, run->row_panels), 4096) * 4096;
}

static int64_t shared_b_bytes(const gemm_run *run)
{
    bool several = gemm_right_count(run) < run->call.batch && !run->call.serial;
    if (!several || !gemm_packs_b(run))
        return 0;
    return gemm_ceil(gemm_right_count(run) * run->column_panels * gemm_panel_bytes(run, run->call.k), 4096) * 4096;
}

static void pack_shared(gemm_set *set, char *shared)
{
    for (int r = 0; r < set->count; r++) {
        gemm_run *run = &set->runs[r];
        int64_t a_bytes = shared_a_bytes(set, r), b_bytes = shared_b_bytes(run);
        if (shares_a(set, r))
            run->shared_a = first_alike(set, r) < r ? set->runs[first_alike(set, r)].shared_a : shared;
        if (a_bytes > 0)
            gemm_parallel(run->gemm, run->call.batch * run->row_panels, (double)a_bytes, gemm_pack_shared_a, run);
        shared += a_bytes;
        if (b_bytes == 0)
            continue;
        run->shared_b = shared;
        gemm_parallel(run->gemm, gemm_right_count(run) * gemm_shared_b_count(run), (double)b_bytes, gemm_pack_shared_b,
                      run);
        shared += b_bytes;
    }
}

/* Packs what several blocks read, then computes the blocks. */
opq_status gemm_run_set(gemm_set *set)
{
    int64_t bytes = 0, blocks = 0;
    double work = 0;
    for (int r = 0; r < set->count; r++)
        bytes += shared_a_bytes(set, r) + shared_b_bytes(&set->runs[r]);
    char *shared = bytes > 0 ? gemm_scratch_acquire(GEMM_SCRATCH_shared, bytes) : NULL;
    if (bytes > 0 && !shared)
        return opq_fail(OPQ_NO_MEMORY, "gemm: no memory for %lld bytes of packed operands", (long long)bytes);
    if (shared)
        pack_shared(set, shared);
    for (int r = 0; r < set->count; r++) {
        const opq_gemm_call *call = &set->runs[r].call;
        blocks += gemm_block_count(&set->runs[r]);
        work += (double)call->batch * (double)call->m * (double)call->n * (double)(call->k + 1);
    }
    gemm_parallel(set->runs[0].gemm, blocks, work, gemm_blocks, set);
    if (shared)
        gemm_scratch_release(GEMM_SCRATCH_shared, shared);
    opq_status status = (opq_status)atomic_load(&set->status);
    if (status == OPQ_OK)
        return OPQ_OK;
    return opq_fail(status, status == OPQ_NO_MEMORY ? "gemm: out of memory" : "gemm: a kernel could not be made");
}
