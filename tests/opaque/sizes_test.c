/* Ops at sizes that did not come before have plans that were written down for them: these have the bits of the op evaluated, and errors name the
 * sizes that the program has.
 */
#include "support.h"

#include "graph/eval.h"
#include "graph/graph.h"
#include "opaque/context.h"

#include <ctype.h>

/* N is the size that varies, M eight times that. */
static const struct size_case {
    const char *what, *text;
    bool family; /* is one made? */
} cases[] = {
    {"rows and a vector", "%0 = input f32[N,8]\n%1 = input f32[8]\n%2 = add f32[N,8] %0, %1\noutput %2", true},
    {"sums of rows", "%0 = input f32[N,8]\n%1 = sum f32[N,1] %0 {axes=[1], tree=lanes}\noutput %1", true},
    {"sums of columns", "%0 = input f32[N,8]\n%1 = sum f32[1,8] %0 {axes=[0], tree=column}\noutput %1", true},
    {"a mean, by a number that varies", "%0 = input f32[N,8]\n%1 = mean f32[1,8] %0 {axes=[0], tree=column}\noutput %1",
     true},
    {"softmax", "%0 = input f32[N,8]\n%1 = softmax f32[N,8] %0 {axes=[1], tree=lanes}\noutput %1", true},
    {"softmax of rows that vary", "%0 = input f32[8,N]\n%1 = softmax f32[8,N] %0 {axes=[1], tree=lanes}\noutput %1", true},
    {"a product", "%0 = input f32[N,8]\n%1 = input f32[8,16]\n%2 = matmul f32[N,16] %0, %1\noutput %2", true},
    {"a product over it", "%0 = input f32[N,8]\n%1 = input f32[N,16]\n%2 = permute f32[8,N] %0 {dims=[1,0]}\n%3 = matmul f32[8,16] %2, %1\noutput %3",
     true},
    {"scores, its square",
     "%0 = input f32[2,N,8]\n%1 = input f32[2,N,8]\n%2 = matmul f32[2,N,N] %0, %1 {transpose_b=1}\noutput %2", true},
    {"a window, of a span that is no multiple",
     "%0 = input f32[N,8]\n%1 = slice f32[N,4] %0 {start=[0,2], step=[1,1]}\n%2 = relu f32[N,4] %1\noutput %2", true},
    {"a flat view", "%0 = input f32[N,8]\n%1 = reshape f32[M] %0\n%2 = exp f32[M] %1\noutput %2", true},
    {"places", "%0 = input f32[N,8]\n%1 = input i64[5]\n%2 = index_select f32[5,8] %0, %1 {axis=0}\noutput %2", true},
    {"an order, whose routine reads the graph", "%0 = input f32[4,N]\n%1 = argsort i64[4,N] %0 {axis=1}\noutput %1",
     false},
};

/* `many` of them, E, where a case has that. */
static opq_graph *graph_at(const char *text, int64_t n, int64_t many)
{
    opq_text made = {0};
    opq_graph *graph = NULL;
    opq_text_add(&made, "graph @g {\n");
    for (const char *at = text; *at; at++) {
        bool word = at > text && (isalpha((unsigned char)at[-1]) || at[-1] == '_');
        if ((*at == 'N' || *at == 'M' || *at == 'E') && !word)
            opq_text_add(&made, "%lld", (long long)(*at == 'N' ? n : *at == 'M' ? 8 * n : many));
        else
            opq_text_add(&made, "%c", *at);
    }
    opq_text_add(&made, "\n}\n");
    expect_ok(opq_graph_parse(made.data, made.length, &graph));
    opq_text_drop(&made);
    return graph;
}

/* Numbers from -1 to 1, or the index. */
static void *input_data(const opq_type *type, int64_t index, int64_t seed)
{
    int64_t count = opq_type_count(type);
    void *data = calloc((size_t)count, 8);
    for (int64_t i = 0; i < count; i++)
        if (type->dtype == OPQ_f32)
            ((float *)data)[i] = (float)((i * 7919 + seed * 31) % 2003) / 1001.5f - 1;
        else
            ((int64_t *)data)[i] = index;
    return data;
}

/* Runs it as a program records it; the status is that of reading its output, which is compared. */
static opq_status run_at(opq_ctx *ctx, const struct size_case *c, int64_t n, int64_t many, int64_t index)
{
    opq_graph *graph = graph_at(c->text, n, many);
    opq_value *values[8];
    const void *inputs[4];
    int input_count = 0;
    for (opq_ref i = 0; i < graph->count; i++) {
        const opq_node *node = opq_node_at(graph, i);
        opq_value *operands[3];
        for (int k = 0; k < node->arity; k++)
            operands[k] = values[node->operand[k]];
        if (node->op != OPQ_OP_input) {
            expect_ok(opq_value_new(ctx, (opq_op)node->op, &node->type, operands, node->arity, node->attr,
                                    node->attr_count, &values[i]));
            continue;
        }
        opq_buffer *buffer = NULL;
        void *data = input_data(&node->type, index, n + i);
        expect_ok(opq_buffer_create(ctx, (size_t)opq_type_bytes(&node->type), &buffer));
        memcpy(opq_buffer_data(buffer), data, (size_t)opq_type_bytes(&node->type));
        inputs[input_count++] = data;
        expect_ok(opq_value_leaf(ctx, &node->type, buffer, &values[i]));
        opq_buffer_release(buffer);
    }
    opq_value *asked = values[graph->outputs[0]];
    opq_type type = opq_graph_output_type(graph, 0);
    opq_status status = opq_materialize(ctx, &asked, 1, OPQ_REASON_copy_to_host);
    if (status == OPQ_OK) {
        void *expected = calloc((size_t)opq_type_count(&type), 8);
        expect_ok(opq_graph_eval(graph, inputs, &expected));
        if (memcmp(opq_buffer_data(opq_value_buffer(asked)), expected, (size_t)opq_type_bytes(&type)) != 0)
            fail_msg("%s, of size %lld: other bits", c->what, (long long)n);
        free(expected);
    }
    for (opq_ref i = 0; i < graph->count; i++)
        opq_value_release(values[i]);
    for (int i = 0; i < input_count; i++)
        free((void *)inputs[i]);
    opq_graph_destroy(graph);
    return status;
}

static const int64_t sizes[] = {17, 19,  21,  22,  24,  25, 28,  29, 31, 33, 65, 70, 77, 80, 81,
                                96, 100, 111, 127, 128, 30, 126, 9,  12, 10, 14, 11, 15, 13};

static void run_sizes(opq_ctx *ctx, opq_tiers_mode mode)
{
    ctx->tiers.mode = mode;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t families = ctx->sizes.families, written = ctx->sizes.written;
        for (size_t k = 0; k < COUNT(sizes); k++)
            expect_ok(run_at(ctx, &cases[i], sizes[k], 5, 3));
        bool made = ctx->sizes.families > families && ctx->sizes.written > written + 5;
        if (mode == OPQ_TIERS_lazy && made != cases[i].family)
            fail_msg("%s: %s", cases[i].what, made ? "a family, which was not expected" : "no family");
    }
}

static void test_bits(void **state) { run_sizes(*state, OPQ_TIERS_lazy); }

/* Then every plan that is written down is built as well, and a difference is an error. */
static void test_each_is_compared(void **state)
{
    opq_ctx *ctx = *state;
    run_sizes(ctx, OPQ_TIERS_random);
    run_sizes(ctx, OPQ_TIERS_random);
    assert_int_equal(ctx->sizes.compared, ctx->sizes.written);
}

static void test_errors_name_the_size(void **state)
{
    opq_ctx *ctx = *state;
    ctx->tiers.mode = OPQ_TIERS_lazy;
    const struct size_case *places = &cases[COUNT(cases) - 2];
    char expected[128];
    for (size_t k = 0; k < COUNT(sizes); k++) {
        assert_int_equal(run_at(ctx, places, sizes[k], 5, sizes[k]), OPQ_OUT_OF_RANGE);
        snprintf(expected, sizeof expected, "index %lld is out of bounds for dimension 0 with size %lld of f32[%lld,8]",
                 (long long)sizes[k], (long long)sizes[k], (long long)sizes[k]);
        assert_non_null(strstr(opq_error(), expected));
    }
    assert_true(ctx->sizes.written > 0);
}

/* Two sizes that go up together by chance at first, as many of each, and then do not. */
static const int64_t pairs[][2] = {{40, 130}, {44, 134}, {50, 140}, {52, 142}, {61, 151}, {34, 87},   {35, 130},
                                   {36, 36},  {37, 200}, {38, 73},  {39, 99},  {41, 131}, {42, 129},  {43, 133},
                                   {18, 18},  {19, 700}, {90, 21},  {31, 65},  {64, 31},  {77, 1000}, {9, 60},
                                   {12, 30},  {10, 77},  {11, 40},  {14, 99},  {15, 34},  {13, 201},  {30, 9},
                                   {41, 10},  {29, 14},  {77, 12},  {50, 15},  {33, 11},  {9, 9}};
static const struct size_case of_two[] = {
    {"edges", "%0 = input f32[N,8]\n%1 = input i64[E]\n%2 = index_select f32[E,8] %0, %1 {axis=0}\noutput %2", true},
    {"each with each", "%0 = input f32[N,1]\n%1 = input f32[1,E]\n%2 = sub f32[N,E] %0, %1\noutput %2", true},
    {"sums over one", "%0 = input f32[N,E]\n%1 = sum f32[N,1] %0 {axes=[1], tree=lanes}\noutput %1", true},
    {"a mean over the other", "%0 = input f32[N,E]\n%1 = mean f32[1,E] %0 {axes=[0], tree=column}\noutput %1", true},
    {"a product", "%0 = input f32[N,8]\n%1 = input f32[8,E]\n%2 = matmul f32[N,E] %0, %1\noutput %2", true},
    {"a sum over places", "%0 = input f32[N,8]\n%1 = input i64[E]\n%2 = input f32[E,8]\n%3 = index_add f32[N,8] %0, %1, %2 {axis=0}\noutput %3",
     true},
};

static void run_pairs(opq_ctx *ctx, opq_tiers_mode mode)
{
    ctx->tiers.mode = mode;
    for (size_t i = 0; i < COUNT(of_two); i++) {
        int64_t written = ctx->sizes.written;
        for (size_t k = 0; k < COUNT(pairs); k++)
            expect_ok(run_at(ctx, &of_two[i], pairs[k][0], pairs[k][1], 8));
        if (mode == OPQ_TIERS_lazy && ctx->sizes.written < written + 10)
            fail_msg("%s: %lld plans were written down", of_two[i].what, (long long)(ctx->sizes.written - written));
    }
}

static void test_two_sizes(void **state)
{
    opq_ctx *ctx = *state;
    run_pairs(ctx, OPQ_TIERS_lazy);
    opq_forget(ctx, false);
    run_pairs(ctx, OPQ_TIERS_random);
    run_pairs(ctx, OPQ_TIERS_random);
    assert_int_equal(ctx->sizes.compared, ctx->sizes.written);
}

/* Those below a vector's width have families too, each side of a power of two its own. */
static void test_small_sizes(void **state)
{
    static const int64_t small[] = {9, 12, 10, 14, 11, 15, 13, 8, 16};
    opq_ctx *ctx = *state;
    ctx->tiers.mode = OPQ_TIERS_lazy;
    opq_forget(ctx, false);
    int64_t written = ctx->sizes.written;
    for (size_t k = 0; k < COUNT(small); k++)
        expect_ok(run_at(ctx, &of_two[0], 6, small[k], 3));
    assert_int_equal(ctx->sizes.written - written, 4);
    for (size_t k = 0; k < COUNT(small); k++)
        expect_ok(run_at(ctx, &of_two[0], small[k], 3 + 41 * (int64_t)(k % 3), 3));
}

static void test_forgetting(void **state)
{
    opq_ctx *ctx = *state;
    run_sizes(ctx, OPQ_TIERS_lazy);
    assert_true(ctx->sizes.count > 0);
    opq_forget(ctx, false);
    assert_int_equal(ctx->sizes.count, 0);
    run_sizes(ctx, OPQ_TIERS_lazy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bits, make_context, drop_context),
        cmocka_unit_test_setup_teardown(test_each_is_compared, make_context, drop_context),
        cmocka_unit_test_setup_teardown(test_errors_name_the_size, make_context, drop_context),
        cmocka_unit_test_setup_teardown(test_two_sizes, make_context, drop_context),
        cmocka_unit_test_setup_teardown(test_small_sizes, make_context, drop_context),
        cmocka_unit_test_setup_teardown(test_forgetting, make_context, drop_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
