/* The routine of a step, and products by groups: one product of the engine for each group, whose sizes are known when it runs. */
#include "runtime/routine.h"

#include "fusion/target.h"
#include "graph/eval.h"
#include "opaque/scalar.h"
#include "runtime/packed.h"
#include "runtime/parallel.h"

#include <stdlib.h>
#include <string.h>

typedef struct product {
    opq_gemm_call call;
    opq_buffer *packed;
    char *out; /* where tiles of halves go */
    opq_dtype dtype;
} product;

typedef struct grouped {
    opq_gemm *gemm;
    product *products;
    opq_status *status;
} grouped;

/* f16 and bf16 are summed in f32 and rounded once. */
static void round_tile(void *data, int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns,
                       const void *tile, int64_t ld)
{
    const product *p = data;
    (void)batch;
    for (int64_t i = 0; i < rows; i++) {
        uint16_t *out = (uint16_t *)p->out + (row + i) * p->call.n + column;
        const float *sums = (const float *)tile + i * ld;
        for (int64_t j = 0; j < columns; j++)
            out[j] = p->dtype == OPQ_f16 ? opq_f32_to_f16(sums[j]) : opq_f32_to_bf16(sums[j]);
    }
}

static opq_matrix matrix_of(const opq_routine *c, int operand, bool transposed)
{
    int64_t width = c->type[operand]->size[c->type[operand]->rank - 1];
    return (opq_matrix){.data = c->data[operand],
                        .row_stride = transposed ? 1 : width,
                        .column_stride = transposed ? width : 1,
                        .dtype = (opq_dtype)c->type[operand]->dtype};
}

static void move(opq_matrix *matrix, int64_t elements)
{
    matrix->data = (const char *)matrix->data + elements * opq_dtype_bytes(matrix->dtype);
}

/* The right operand of a group that comes back unchanged, a weight. `offset`: in its buffer. */
static void use_packed(const opq_routine *c, int64_t offset, product *p)
{
    const opq_gemm_call *call = &p->call;
    const opq_storage *storage = &c->run->plan->storage[c->step->operands[1]];
    if (call->k * call->n < opq_runs.packed_count_min || storage->home != OPQ_HOME_input)
        return;
    opq_packed_key key = {.from = call->b.dtype,
                          .to = call->dtype,
                          .rows = call->k,
                          .columns = call->n,
                          .offset = offset,
                          .row_stride = call->b.row_stride,
                          .column_stride = call->b.column_stride};
    int64_t bytes = opq_gemm_packed_bytes(c->run->runtime->gemm, call->dtype, call->k, call->n);
    p->packed = opq_run_packed(c->run, c->step->operands[1], &key, bytes, false);
    p->call.packed_b = p->packed ? p->packed->data : NULL;
}

/* Group g is rows begin to end of a (each has a matrix b), or as many of its columns with so many rows of b. */
static void aim(const opq_routine *c, int64_t g, int64_t begin, int64_t end, product *p)
{
    bool turn_a = opq_node_int(c->node, OPQ_ATTR_transpose_a, 0), turn_b = opq_node_int(c->node, OPQ_ATTR_transpose_b, 0);
    bool rows = c->type[1]->rank == 3;
    int64_t m = c->type[0]->size[turn_a], k = c->type[0]->size[!turn_a];
    int64_t n = c->node->type.size[c->node->type.rank - 1];
    p->dtype = (opq_dtype)c->node->type.dtype;
    p->out = (char *)c->out + (rows ? begin : g * m) * n * opq_dtype_bytes(p->dtype);
    opq_gemm_call *call = &p->call;
    *call = (opq_gemm_call){.dtype = p->dtype == OPQ_f64 ? OPQ_f64 : OPQ_f32,
                            .batch = 1,
                            .m = rows ? end - begin : m,
                            .n = n,
                            .k = rows ? k : end - begin,
                            .a = matrix_of(c, 0, turn_a),
                            .b = matrix_of(c, 1, turn_b),
                            .c_row_stride = n};
    move(&call->a, begin * (rows ? call->a.row_stride : call->a.column_stride));
    move(&call->b, rows ? g * k * n : begin * call->b.row_stride);
    if (call->dtype == p->dtype) {
        call->c = p->out;
    } else {
        call->tile = round_tile;
        call->tile_data = p;
    }
    if (rows)
        use_packed(c, g * k * n, p);
}

static void run_products(void *data, int64_t begin, int64_t end)
{
    const grouped *all = data;
    for (int64_t i = begin; i < end; i++)
        all->status[i] = opq_gemm_run(all->gemm, &all->products[i].call);
}

opq_status opq_routine_grouped_matmul(const opq_routine *c)
{
    const int64_t *ends = c->data[2];
    bool rows = c->type[1]->rank == 3;
    int64_t groups = c->type[2]->size[0], count = 0, most = 0;
    int64_t extent = c->type[0]->size[(opq_node_int(c->node, OPQ_ATTR_transpose_a, 0) != 0) == rows];
    OPQ_TRY(opq_eval_groups(c->name, ends, groups, extent));
    product *products = calloc((size_t)groups + 1, sizeof *products);
    opq_status *status = calloc((size_t)groups + 1, sizeof *status), first = OPQ_OK;
    if (products == NULL || status == NULL)
        first = opq_fail(OPQ_NO_MEMORY, "%s: out of memory", c->name);
    for (int64_t g = 0, begin = 0; g < groups && first == OPQ_OK; begin = ends[g++]) {
        if (rows && ends[g] == begin)
            continue;
        product *p = &products[count++];
        aim(c, g, begin, ends[g], p);
        int64_t work = p->call.m * p->call.n * p->call.k;
        most = work > most ? work : most;
    }
    for (int64_t i = 0; i < count; i++)
        products[i].call.serial = most < opq_runs.serial_product;
    int64_t filled = rows && groups > 0 ? ends[groups - 1] : 0, width = c->node->type.size[c->node->type.rank - 1];
    if (rows)
        memset((char *)c->out + filled * width * opq_dtype_bytes((opq_dtype)c->node->type.dtype), 0,
               (size_t)((extent - filled) * width * opq_dtype_bytes((opq_dtype)c->node->type.dtype)));
    grouped all = {c->run->runtime->gemm, products, status};
    if (first == OPQ_OK && most < opq_runs.serial_product) /* the pieces of small products are not worth a thread each */
        opq_parallel_for(c->run->runtime->host, count, 1 + (1 << 15) / (most + 1), run_products, &all);
    else if (first == OPQ_OK)
        run_products(&all, 0, count);
    for (int64_t i = 0; i < count; i++) {
        if (first == OPQ_OK && status[i] != OPQ_OK) /* words stay in the thread */
            first = opq_fail(status[i], "%s: a product of %lld rows could not be made", c->name,
                             (long long)products[i].call.m);
        opq_buffer_release(products[i].packed);
    }
    free(products);
    free(status);
    return first;
}

static opq_routine bind(const opq_run_state *run, const opq_step *step)
{
    const opq_node *node = step->routine;
    const opq_attr *key = opq_node_attr(node, OPQ_ATTR_key);
    opq_routine call = {.run = run,
                        .step = step,
                        .node = node,
                        .name = key ? key->str : opq_node_info(node)->name,
                        .out = opq_run_data(run, step->results[0])};
    for (int k = 0; k < step->operand_count; k++) {
        call.type[k] = &opq_node_at(step->graph, node->operand[k])->type;
        call.data[k] = opq_run_data(run, step->operands[k]);
    }
    return call;
}

opq_status opq_routine_check(const opq_run_state *run, const opq_step *step)
{
    if (!opq_op_scatters((opq_op)step->routine->op))
        return OPQ_OK;
    opq_routine call = bind(run, step);
    return opq_routine_scatter_check(&call);
}

opq_status opq_run_routine(const opq_run_state *run, const opq_step *step)
{
    opq_routine call = bind(run, step);
    if (step->routine->op == OPQ_OP_grouped_matmul)
        return opq_routine_grouped_matmul(&call);
    if (!opq_op_scatters((opq_op)step->routine->op))
        return opq_routine_argsort(&call);
    opq_routine_scatter(&call);
    return OPQ_OK;
}
