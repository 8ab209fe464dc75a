/* Runs without a plan for the whole: op by op, in segments, and as the model of costs has it, with plans that come in the middle, random graphs
 * have the bits of a plan for all of it.
 *
 *   OPAQUE_TEST_FULL=1    5,000 graphs of each sort
 *   OPAQUE_TEST_SEED=n    this graph alone
 */
#include "support.h"

#include "../fusion/arrays.h"
#include "../fusion/random_graph.h"

#include "codegen_llvm/cache.h"
#include "opaque/context.h"

#include <math.h>

enum { GRAPHS = 150, FULL_GRAPHS = 5000, RUNS = 3 };

static opq_value *record_leaf(opq_ctx *ctx, const opq_type *type, const void *data)
{
    size_t bytes = (size_t)opq_type_bytes(type);
    opq_buffer *buffer = NULL;
    opq_value *value = NULL;
    expect_ok(opq_buffer_create(ctx, bytes, &buffer));
    memcpy(opq_buffer_data(buffer), data, bytes);
    expect_ok(opq_value_leaf(ctx, type, buffer, &value));
    opq_buffer_release(buffer);
    return value;
}

/* The values of all nodes, recorded. */
static opq_value **record_graph(opq_ctx *ctx, const random_graph *r)
{
    const opq_graph *graph = r->graph;
    opq_value **values = calloc((size_t)graph->count + 1, sizeof *values), *operands[64];
    int inputs = 0;
    for (opq_ref n = 0; n < graph->count; n++) {
        const opq_node *node = opq_node_at(graph, n);
        assert_true(node->arity <= (int)COUNT(operands));
        for (int k = 0; k < node->arity; k++)
            operands[k] = values[node->operand[k]];
        if (node->op == OPQ_OP_input)
            values[n] = record_leaf(ctx, &node->type, r->inputs[inputs++]);
        else if (node->op == OPQ_OP_scalar)
            expect_ok(opq_value_scalar(ctx, (opq_dtype)node->type.dtype, opq_node_attr(node, OPQ_ATTR_value)->number,
                                       false, &values[n]));
        else
            expect_ok(opq_value_new(ctx, (opq_op)node->op, &node->type, operands, node->arity, node->attr,
                                    node->attr_count, &values[n]));
    }
    return values;
}

/* Runs the graph as a program records it: outputs are held by cells, and read at once. */
static void expect_outputs(opq_ctx *ctx, const random_graph *r, const arrays *expected, uint64_t seed, const char *way)
{
    const opq_graph *graph = r->graph;
    opq_value **values = record_graph(ctx, r), *asked[RANDOM_OUTPUTS];
    opq_cell *cells[RANDOM_OUTPUTS] = {0};
    int count = opq_graph_output_count(graph);
    assert_true(count <= RANDOM_OUTPUTS);
    for (int i = 0; i < count; i++) {
        asked[i] = again(values[graph->outputs[i]]);
        if (i % 2)
            expect_ok(opq_cell_from_value(ctx, asked[i], &cells[i]));
    }
    for (opq_ref n = 0; n < graph->count; n++)
        opq_value_release(values[n]);
    free(values);
    expect_ok(opq_materialize(ctx, asked, count, OPQ_REASON_copy_to_host));
    for (int i = 0; i < count; i++) {
        opq_type type = opq_graph_output_type(graph, i);
        const opq_buffer *buffer = opq_value_buffer(asked[i]);
        bool scalar = opq_node_at(graph, graph->outputs[i])->op == OPQ_OP_scalar; /* which nobody computes */
        int64_t at = buffer ? array_difference(&type, opq_buffer_data(buffer), expected->data[i]) : 0;
        if (at >= 0 && !scalar)
            fail_msg("seed %llu, %s: output %d differs at element %lld", (unsigned long long)seed, way, i, (long long)at);
        if (cells[i])
            opq_cell_release(cells[i]);
        opq_value_release(asked[i]);
    }
}

typedef struct ways {
    opq_ctx *lazy, *eager, *model;
} ways;

static void check_seed(const ways *w, uint64_t seed)
{
    random_graph r = random_graph_make(seed);
    opq_program *program = NULL;
    arrays expected = arrays_of_outputs(r.graph);
    expect_ok(opq_compile(w->lazy, r.graph, OPQ_FUSED, &program));
    expect_ok(opq_run(w->lazy, program, (const void *const *)r.inputs, expected.data));
    opq_program_release(program);
    for (int i = 0; i < RUNS; i++) { /* joined from the second on */
        expect_outputs(w->lazy, &r, &expected, seed, "op by op");
        expect_outputs(w->eager, &r, &expected, seed, "in segments");
    }
    w->model->tiers.seconds_per_op = w->model->tiers.piece_seconds_per_op =
        (double)(seed % 4) * 1e-6; /* plans of segments, or of all, come sooner or later */
    for (int i = 0; i < RUNS; i++)
        expect_outputs(w->model, &r, &expected, seed, "as the model has it");
    arrays_drop(&expected);
    random_graph_drop(&r);
}

static void check_seeds(const ways *w, uint64_t above)
{
    uint64_t count = getenv("OPAQUE_TEST_FULL") ? FULL_GRAPHS : (uint64_t)test_sample(GRAPHS);
    for (uint64_t n = 1; n <= count; n++)
        check_seed(w, above + n);
    opq_stats stats = stats_of(w->lazy);
    assert_true(2 * stats.runs_joined > stats.runs_in_pieces);
}

static void test_random_graphs(void **state)
{
    const char *seed = getenv("OPAQUE_TEST_SEED");
    if (seed)
        check_seed(*state, strtoull(seed, NULL, 10));
    else
        check_seeds(*state, 0);
}

static void test_random_views(void **state)
{
    if (getenv("OPAQUE_TEST_SEED") == NULL)
        check_seeds(*state, RANDOM_VIEWS);
}

/* Ops over lists of tensors, as optimizers record them: list by list, and yet a chain for each tensor is one kernel. */
static void test_lists_are_chains(void **state)
{
    enum { TENSORS = 5, OPS = 4 };
    opq_ctx *ctx = ((ways *)*state)->eager;
    opq_value *values[TENSORS];
    for (int i = 0; i < TENSORS; i++)
        values[i] = leaf(ctx, (float)i);
    for (int k = 0; k < OPS; k++)
        for (int i = 0; i < TENSORS; i++)
            values[i] = op2(ctx, OPQ_OP_add, values[i], number(ctx, (float)k));
    long long before = stats_of(ctx).kernels_run;
    expect_ok(opq_materialize(ctx, values, TENSORS, OPQ_REASON_copy_to_host));
    assert_int_equal(stats_of(ctx).kernels_run - before, TENSORS);
    for (int i = 0; i < TENSORS; i++) {
        float expected[N];
        for (int k = 0; k < N; k++)
            expected[k] = (float)(i + k + OPS * (OPS - 1) / 2);
        expect_floats(ctx, values[i], expected);
    }
}

/* A piece that was a graph by itself, where pieces get no plans: what was found under its key is let go, which test_nothing_is_left() sees. */
static void test_a_piece_that_was_a_whole_graph(void **state)
{
    opq_ctx *ctx = ((ways *)*state)->model;
    ctx->tiers.seconds_per_op = ctx->tiers.piece_seconds_per_op = 1e9;
    long long before = stats_of(ctx).runs_joined;
    for (int run = 0; run < 3; run++) {
        opq_value *half = op1(ctx, OPQ_OP_neg, op1(ctx, OPQ_OP_exp, leaf(ctx, 0)));
        expect_ok(opq_materialize(ctx, &half, 1, OPQ_REASON_copy_to_host));
        opq_value_release(half);
    }
    assert_int_equal(stats_of(ctx).runs_joined - before, 2);
    opq_value *half = op1(ctx, OPQ_OP_neg, op1(ctx, OPQ_OP_exp, leaf(ctx, 0)));
    opq_value *both[] = {half, op1(ctx, OPQ_OP_abs, op1(ctx, OPQ_OP_sqrt, leaf(ctx, 0)))};
    expect_ok(opq_materialize(ctx, both, 2, OPQ_REASON_copy_to_host));
    expect_floats(ctx, both[1], FLOATS(0, 1, sqrtf(2), sqrtf(3), 2, sqrtf(5), sqrtf(6), sqrtf(7)));
    opq_value_release(half);
}

static opq_ctx *context_in(const char *tiers)
{
    opq_ctx *ctx = NULL;
    setenv("OPAQUE_TIERS", tiers, 1);
    expect_ok(opq_ctx_create(&test_host, &ctx));
    unsetenv("OPAQUE_TIERS");
    return ctx;
}

static int make_contexts(void **state)
{
    static ways w;
    w = (ways){context_in("lazy"), context_in("eager"), context_in("model")};
    w.eager->tiers.seconds_per_op = 1e9; /* no plan for all of a graph */
    *state = &w;
    return 0;
}

/* The last one: an error of a group's teardown would be printed, and no failure. */
static void test_nothing_is_left(void **state)
{
    const ways *w = *state;
    opq_ctx *all[] = {w->lazy, w->eager, w->model};
    for (size_t i = 0; i < COUNT(all); i++) {
        opq_forget(all[i], false);
        const opq_code_cache *codes = opq_jit_cache(all[i]->runtime.jit);
        assert_int_equal(stats_of(all[i]).bytes_allocated, 0);
        assert_int_equal(codes->bytes, codes->idle_bytes);
    }
}

static int drop_contexts(void **state)
{
    const ways *w = *state;
    opq_ctx *all[] = {w->lazy, w->eager, w->model};
    for (size_t i = 0; i < COUNT(all); i++)
        opq_ctx_destroy(all[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_graphs), cmocka_unit_test(test_random_views),
                                       cmocka_unit_test(test_lists_are_chains),
                                       cmocka_unit_test(test_a_piece_that_was_a_whole_graph),
                                       cmocka_unit_test(test_nothing_is_left)};
    return cmocka_run_group_tests(tests, make_contexts, drop_contexts);
}
