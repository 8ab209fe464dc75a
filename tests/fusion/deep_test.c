/* Graphs far beyond what one kernel holds: chains of every class that are much deeper than a stack, and many parts of one value.
 *
 * No walk over a graph may recurse along its data, and what lowering refuses must have another way: such graphs are parsed, printed,
 * verified, simplified, grouped and built, and give what the evaluator gives.
 */
#include "tests/support.h"

#include "fusion/pass.h"

#include <stdio.h>

enum { DEEP = 20000, LONG = 300, ELEMENTS = 24 };

static opq_ctx *ctx;

/* ---- chains of two steps in turn, all from f32[4,6] to f32[4,6] */

typedef struct step {
    const char *before, *after; /* of the node's operand */
} step;

static const struct {
    const char *name;
    step steps[2];
} chains[] = {
    {"elementwise", {{"neg f32[4,6] ", ""}, {"abs f32[4,6] ", ""}}},
    {"casts", {{"cast f64[4,6] ", ""}, {"cast f32[4,6] ", ""}}},
    {"reshapes", {{"reshape f32[6,4] ", ""}, {"reshape f32[4,6] ", ""}}},
    {"permutes", {{"permute f32[6,4] ", " {dims=[1,0]}"}, {"permute f32[4,6] ", " {dims=[1,0]}"}}},
    {"slices", {{"slice f32[4,6] ", " {start=[0,0], step=[1,1]}"}, {"expand f32[4,6] ", ""}}},
    {"reshaped permutes", {{"permute f32[6,4] ", " {dims=[1,0]}"}, {"reshape f32[4,6] ", ""}}},
    {"windows", {{"strided f32[6,4] ", " {offset=0, strides=[1,6]}"}, {"reshape f32[4,6] ", ""}}},
    {"overlapping windows",
     {{"strided f32[5,4] ", " {offset=1, strides=[2,3]}"}, {"strided f32[4,6] ", " {offset=2, strides=[3,1]}"}}},
    {"rows", {{"amax f32[4,1] ", " {axes=[1], tree=lanes}"}, {"expand f32[4,6] ", ""}}},
    {"columns", {{"amax f32[1,6] ", " {axes=[0], tree=column}"}, {"expand f32[4,6] ", ""}}},
    {"updates", {{"update f32[4,6] ", ", %2 {offset=7, sizes=[2], strides=[9]}"}, {"neg f32[4,6] ", ""}}},
    {"concats", {{"concat f32[8,6] %0, ", " {axis=0}"}, {"slice f32[4,6] ", " {start=[2,0], step=[1,1]}"}}},
    {"gathers", {{"gather f32[4,6] ", ", %1 {axis=1}"}, {"neg f32[4,6] ", ""}}},
    {"scatters", {{"index_add f32[4,6] ", ", %3, %0 {axis=0}"}, {"neg f32[4,6] ", ""}}},
};

static opq_graph *graph_of(opq_text *text)
{
    char *data = NULL;
    expect_ok(opq_text_take(text, &data));
    opq_graph *graph = graph_of_text(data);
    free(data);
    return graph;
}

static opq_graph *chain_graph(const step *steps, int length)
{
    opq_text text = {0};
    opq_text_add(&text, "graph @g {\n  %%0 = input f32[4,6]\n  %%1 = input i64[4,6]\n  %%2 = input f32[2]\n"
                        "  %%3 = input i64[4]\n");
    for (int i = 0; i < length; i++)
        opq_text_add(&text, "  %%%d = %s%%%d%s\n", i + 4, steps[i % 2].before, i == 0 ? 0 : i + 3, steps[i % 2].after);
    opq_text_add(&text, "  output %%%d\n}\n", length + 3);
    return graph_of(&text);
}

static void expect_passes(const opq_graph *graph, const char *passes)
{
    opq_graph *out = NULL;
    expect_ok(opq_graph_passes(graph, passes, &out));
    expect_ok(opq_graph_verify(out));
    opq_graph_destroy(out);
}

static void test_passes_do_not_recurse(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(chains); i++) {
        opq_graph *graph = chain_graph(chains[i].steps, DEEP);
        char *text = text_of_graph(graph);
        free(text);
        expect_ok(opq_graph_verify(graph));
        expect_passes(graph, "expand,simplify,unfused");
        opq_graph_destroy(graph);
    }
}

/* Grouping, also of a graph that nobody simplified. */
static void test_grouping_does_not_recurse(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(chains); i++) {
        opq_graph *graph = chain_graph(chains[i].steps, DEEP);
        expect_passes(graph, "expand,simplify,group");
        expect_passes(graph, "expand,group");
        opq_graph_destroy(graph);
    }
}

/* ---- values */

static void expect_evaluated(const char *name, const opq_graph *graph)
{
    float x[ELEMENTS], two[2] = {5, -6}, exact[ELEMENTS * 2], got[ELEMENTS * 2];
    int64_t indices[ELEMENTS], rows[4] = {3, 0, 0, 2};
    opq_type type = opq_graph_output_type(graph, 0);
    for (int i = 0; i < ELEMENTS; i++) {
        x[i] = (float)(i * 7 % 13) - 5.5f;
        indices[i] = i * 5 % 6;
    }
    const void *inputs[] = {x, indices, two, rows};
    void *exact_out = exact, *got_out = got;
    assert_true(opq_type_bytes(&type) <= (int64_t)sizeof exact);
    expect_ok(opq_graph_eval(graph, inputs, &exact_out));
    for (int fusion = OPQ_FUSED; fusion <= OPQ_UNFUSED; fusion++) {
        opq_program *program = NULL;
        if (opq_compile(ctx, graph, (opq_fusion)fusion, &program) != OPQ_OK)
            fail_msg("%s, %d: %s", name, fusion, opq_error());
        memset(got, 0xa5, sizeof got);
        expect_ok(opq_run(ctx, program, inputs, &got_out));
        if (memcmp(got, exact, (size_t)opq_type_bytes(&type)))
            fail_msg("%s, %d: other values than the evaluator's", name, fusion);
        opq_program_release(program);
    }
}

static void test_long_chains(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(chains); i++) {
        opq_graph *graph = chain_graph(chains[i].steps, LONG);
        expect_evaluated(chains[i].name, graph);
        opq_graph_destroy(graph);
    }
}

/* ---- many parts of one value. The sums are those of small whole numbers, so their order does not show. */

static const struct {
    const char *name;
    int count;
    step make; /* of each part, from its own scaled input */
    const char *shape;
} parts[] = {
    {"rows", 31, {"sum f32[4,1] ", " {axes=[1], tree=lanes}"}, "[4,1]"},
    {"rows", 33, {"sum f32[4,1] ", " {axes=[1], tree=lanes}"}, "[4,1]"},
    {"columns", 33, {"sum f32[1,6] ", " {axes=[0], tree=column}"}, "[1,6]"},
    {"columns", 300, {"amin f32[1,6] ", " {axes=[0], tree=column}"}, "[1,6]"},
    {"whole", 300, {"amax f32[1,1] ", " {axes=[0,1], tree=lanes}"}, "[1,1]"},
    {"views", 300, {"strided f32[6,4] ", " {offset=0, strides=[1,6]}"}, "[6,4]"},
    {"elements", 500, {"abs f32[4,6] ", ""}, "[4,6]"},
};

static void test_many_parts(void **state)
{
    (void)state;
    for (size_t p = 0; p < COUNT(parts); p++) {
        opq_text text = {0};
        opq_text_add(&text,
                     "graph @g {\n  %%0 = input f32[4,6]\n  %%1 = input i64[4,6]\n  %%2 = input f32[2]\n"
                     "  %%3 = input i64[4]\n  %%4 = const f32[] {value=0x0p+0}\n  %%5 = expand f32%s %%4\n",
                     parts[p].shape);
        int n = 6, total = 5;
        for (int i = 0; i < parts[p].count; i++, n += 4) {
            opq_text_add(&text, "  %%%d = scalar f32[] {value=0x%x.0p+0}\n", n, i + 1);
            opq_text_add(&text, "  %%%d = mul f32[4,6] %%0, %%%d\n", n + 1, n);
            opq_text_add(&text, "  %%%d = %s%%%d%s\n", n + 2, parts[p].make.before, n + 1, parts[p].make.after);
            opq_text_add(&text, "  %%%d = add f32%s %%%d, %%%d\n", n + 3, parts[p].shape, total, n + 2);
            total = n + 3;
        }
        opq_text_add(&text, "  output %%%d\n}\n", total);
        opq_graph *graph = graph_of(&text);
        expect_evaluated(parts[p].name, graph);
        opq_graph_destroy(graph);
    }
}

static void test_concat_of_a_thousand(void **state)
{
    (void)state;
    opq_text text = {0};
    opq_text_add(&text, "graph @g {\n  %%0 = input f32[4,6]\n  %%1 = input i64[4,6]\n  %%2 = input f32[2]\n"
                        "  %%3 = input i64[4]\n  %%4 = neg f32[2] %%2\n  %%5 = concat f32[2000] %%2");
    for (int i = 1; i < 1000; i++)
        opq_text_add(&text, ", %%%d", i % 3 ? 2 : 4);
    opq_text_add(&text, " {axis=0}\n  %%6 = slice f32[40] %%5 {start=[1001], step=[7]}\n  output %%6\n}\n");
    opq_graph *graph = graph_of(&text);
    expect_evaluated("concat", graph);
    opq_graph_destroy(graph);
}

static int make_ctx(void **state)
{
    (void)state;
    expect_ok(opq_ctx_create(NULL, &ctx));
    return 0;
}

static int drop_ctx(void **state)
{
    (void)state;
    opq_ctx_destroy(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes_do_not_recurse), cmocka_unit_test(test_grouping_does_not_recurse),
        cmocka_unit_test(test_long_chains),           cmocka_unit_test(test_many_parts),
        cmocka_unit_test(test_concat_of_a_thousand),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
