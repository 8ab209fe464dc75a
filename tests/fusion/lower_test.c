/* Scheduling one group: what the kernel looks like, that nothing in it depends on sizes, and the refusals that need long graphs. The
 * other refusals are golden files.
 */
#include "tests/support.h"

#include "fusion/lower.h"

#include <malloc.h>
#include <stdio.h>

typedef struct lowering {
    opq_graph *graph;
    opq_arena arena;
    opq_lowered lowered;
} lowering;

/* Every node that can be a kernel's is in one group; the outputs are stored. */
static lowering lower(opq_graph *graph, bool makes)
{
    lowering l = {.graph = graph};
    int32_t *group_of = calloc((size_t)graph->count * 2 + 1, sizeof *group_of);
    assert_non_null(group_of);
    opq_ref *members = group_of + graph->count;
    int member_count = 0;
    for (opq_ref n = 0; n < graph->count; n++) {
        group_of[n] = opq_node_at(graph, n)->op == OPQ_OP_input || opq_node_is_free(graph, n) ? -1 : 0;
        if (group_of[n] == 0)
            members[member_count++] = n;
    }
    opq_lower_request request = {.graph = graph,
                                 .group_of = group_of,
                                 .members = members,
                                 .member_count = member_count,
                                 .stored = graph->outputs,
                                 .stored_count = graph->output_count};
    expect_ok(opq_lower(&request, makes ? &l.arena : NULL, &l.lowered));
    free(group_of);
    return l;
}

static void drop(lowering *l)
{
    opq_arena_drop(&l->arena);
    opq_graph_destroy(l->graph);
}

static void expect_refusal(opq_graph *graph, opq_refusal expected)
{
    lowering l = lower(graph, false);
    if (l.lowered.refusal != expected)
        fail_msg("%s: refused for %s, not for %s", graph->name, opq_refusal_name(l.lowered.refusal),
                 opq_refusal_name(expected));
    drop(&l);
}

/* ---- kernels */

static const struct {
    const char *graph, *kernel;
} kernels[] = {
    {"graph @add {\n  %0 = input f32[4,8]\n  %1 = input f32[8]\n  %2 = add f32[4,8] %0, %1\n  output %2\n}\n",
     "kernel @(b0: f32, b1: f32, b2: out f32) over i, j {\n"
     "  parallel i < d0 {\n"
     "    vector j < d1 {\n"
     "      %2 = load f32 b0[d2 + i*d3 + j]\n"
     "      %3 = load f32 b1[d7 + j]\n"
     "      %4 = add f32 %2, %3\n"
     "      store f32 b2[d12 + i*d13 + j], %4\n"
     "    }\n"
     "  }\n"
     "}\n"},
    {"graph @scan {\n  %0 = input f32[3,8]\n  %1 = slice f32[3,8] %0 {start=[0,7], step=[1,-1]}\n" /* few rows, from their ends */
     "  %2 = scan_add f32[3,8] %1 {axis=1}\n  %3 = slice f32[3,8] %2 {start=[0,7], step=[1,-1]}\n  output %3\n}\n",
     "kernel @(b0: f32, b1: out f32) over i, j {\n"
     "  parallel i < d0 {\n"
     "    serial j < d1 {\n"
     "      %2 = load f32 b0[d2 + i*d3 - j]\n"
     "      %3 = scan_add f32 %2 in f64\n"
     "      store f32 b1[d7 + i*d8 - j], %3\n"
     "    }\n"
     "  }\n"
     "}\n"},
    {"graph @same {\n  %0 = input f32[4,8]\n  %1 = neg f32[4,8] %0\n  output %1\n}\n", /* two dims that every access walks as one */
     "kernel @(b0: f32, b1: out f32) over i {\n"
     "  vector i < d0 {\n"
     "    %1 = load f32 b0[d1 + i]\n"
     "    %2 = neg f32 %1\n"
     "    store f32 b1[d5 + i], %2\n"
     "  }\n"
     "}\n"},
    {"graph @row {\n  %0 = input f32[4,8]\n  %1 = sum f32[4,1] %0 {axes=[1], tree=lanes}\n  %2 = div f32[4,8] %0, %1\n "
     " output %2\n}\n",
     "kernel @(b0: f32, b1: out f32) over i, j {\n"
     "  parallel i < d0 {\n"
     "    lanes j < d1 {\n"
     "      %2 = load f32 b0[d2 + i*d3 + j]\n"
     "      %3 = sum f32 %2\n"
     "    }\n"
     "    vector j < d1 {\n"
     "      %5 = load f32 b0[d2 + i*d3 + j]\n"
     "      %6 = div f32 %5, %3\n"
     "      store f32 b1[d7 + i*d8 + j], %6\n"
     "    }\n"
     "  }\n"
     "}\n"},
    {"graph @column {\n  %0 = input f32[4,8]\n  %1 = sum f32[1,8] %0 {axes=[0], tree=column}\n  output %1\n}\n",
     "kernel @(b0: f32, b1: out f32) over i, j {\n"
     "  vector j < d1 {\n"
     "    column i < d0 {\n"
     "      %2 = load f32 b0[d2 + i*d3 + j]\n"
     "      %3 = sum f32 %2\n"
     "    }\n"
     "    store f32 b1[d7 + j], %3\n"
     "  }\n"
     "}\n"},
    {"graph @few {\n  %0 = input f32[64,3]\n  %1 = input f32[3]\n  %2 = add f32[64,3] %0, %1\n  output %2\n}\n", /* three lanes would be few */
     "kernel @(b0: f32, b1: f32, b2: out f32) over i, j {\n"
     "  vector j < d1 {\n"
     "    each i < d0 {\n"
     "      %2 = load f32 b0[d2 + i*d3 + j*3]\n"
     "      %3 = load f32 b1[d7 + i*d8]\n"
     "      %4 = add f32 %2, %3\n"
     "      store f32 b2[d12 + i*d13 + j*3], %4\n"
     "    }\n"
     "  }\n"
     "}\n"},
    {"graph @pairs {\n  %0 = input f32[6,2,8,2]\n  %1 = input f32[6,1,8,1]\n  %2 = expand f32[6,2,8,2] %1\n  %3 = add "
     "f32[6,2,8,2] "
     "%0, %2\n  output %3\n}\n", /* lanes along four times as many */
     "kernel @(b0: f32, b1: f32, b2: out f32) over i, j, k, l {\n"
     "  parallel i < d0 {\n"
     "    parallel j < d1 {\n"
     "      vector l < d3 {\n"
     "        %3 = load f32 b1[d11 + i*d12 + l]\n"
     "        each k < d2 {\n"
     "          %5 = load f32 b0[d4 + i*d5 + j*d6 + k*d7 + l*2]\n"
     "          %6 = add f32 %5, %3\n"
     "          store f32 b2[d18 + i*d19 + j*d20 + k*d21 + l*2], %6\n"
     "        }\n"
     "      }\n"
     "    }\n"
     "  }\n"
     "}\n"},
    {"graph @pairs {\n  %0 = input f32[64,2,4,2]\n  %1 = input f32[64,1,4,1]\n  %2 = expand f32[64,2,4,2] %1\n  %3 = "
     "add f32[64,2,4,2] "
     "%0, %2\n  output %3\n}\n", /* of loops that fill no vector, lanes along one that does */
     "kernel @(b0: f32, b1: f32, b2: out f32) over i, j, k, l {\n"
     "  vector l < d3 {\n"
     "    each i < d0 {\n"
     "      each j < d1 {\n"
     "        %3 = load f32 b1[d11 + j*d13 + l*4]\n"
     "        each k < d2 {\n"
     "          %5 = load f32 b0[d4 + i*d5 + j*d6 + k*d7 + l*d8]\n"
     "          %6 = add f32 %5, %3\n"
     "          store f32 b2[d18 + i*d19 + j*d20 + k*d21 + l*d22], %6\n"
     "        }\n"
     "      }\n"
     "    }\n"
     "  }\n"
     "}\n"},
    {"graph @short_rows {\n  %0 = input f32[64,3]\n  %1 = sum f32[64,1] %0 {axes=[1], tree=lanes}\n  %2 = div "
     "f32[64,3] %0, "
     "%1\n  output %2\n}\n", /* a row in each lane */
     "kernel @(b0: f32, b1: out f32) over i, j {\n"
     "  vector j < d1 {\n"
     "    lanes i < d0 {\n"
     "      %2 = load f32 b0[d2 + i*d3 + j*3]\n"
     "      %3 = sum f32 %2\n"
     "    }\n"
     "    each i < d0 {\n"
     "      %5 = load f32 b0[d2 + i*d3 + j*3]\n"
     "      %6 = div f32 %5, %3\n"
     "      store f32 b1[d7 + i*d8 + j*3], %6\n"
     "    }\n"
     "  }\n"
     "}\n"},
    {"graph @back {\n  %0 = input f32[4,64]\n  %1 = slice f32[4,64] %0 {start=[0,63], step=[1,-1]}\n  %2 = neg "
     "f32[4,64] "
     "%1\n  output %2\n}\n",
     "kernel @(b0: f32, b1: out f32) over i, j {\n"
     "  parallel i < d0 {\n"
     "    vector j < d1 {\n"
     "      %2 = load f32 b0[d2 + i*d3 - j]\n"
     "      %3 = neg f32 %2\n"
     "      store f32 b1[d7 + i*d8 + j], %3\n"
     "    }\n"
     "  }\n"
     "}\n"},
    {"graph @product {\n  %0 = input f32[2,3,800]\n  %1 = input f32[800,5]\n  %2 = matmul f32[2,3,5] %0, %1\n"
     "  %3 = neg f32[2,3,5] %2\n  output %3\n}\n", /* the batch is more rows */
     "kernel @(b0: f32, b1: f32, b2: out f32) over i, j, k {\n"
     "  parallel i < d0 {\n"
     "    vector j < d1 {\n"
     "      chain k < d2 {\n"
     "        %3 = load f32 b0[d3 + i*d4 + k]\n"
     "        %4 = load f32 b1[d9 + j*d11 + k*d12]\n"
     "        %5 = matmul f32 %3, %4\n"
     "      }\n"
     "      %6 = neg f32 %5\n"
     "      store f32 b2[d15 + i*d16 + j*d17], %6\n"
     "    }\n"
     "  }\n"
     "}\n"},
    {"graph @product {\n  %0 = input f32[2,3,8]\n  %1 = input f32[8,5]\n  %2 = matmul f32[2,3,5] %0, %1\n"
     "  %3 = neg f32[2,3,5] %2\n  output %3\n}\n", /* without an engine: a lane for each column */
     "kernel @(b0: f32, b1: f32, b2: out f32) over i, j, k {\n"
     "  parallel i < d0 {\n"
     "    vector j < d1 {\n"
     "      chain k < d2 {\n"
     "        %3 = load f32 b0[d3 + i*d4 + k*d6]\n"
     "        %4 = load f32 b1[d9 + j + k*d12]\n"
     "        %5 = matmul f32 %3, %4\n"
     "      }\n"
     "      %6 = neg f32 %5\n"
     "      store f32 b2[d15 + i*d16 + j], %6\n"
     "    }\n"
     "  }\n"
     "}\n"},
    {"graph @iota {\n  %0 = input i64[24]\n  %1 = iota i64[4,6] {axis=0}\n  %2 = reshape i64[24] %1\n  %3 = add "
     "i64[24] %0, %2\n  output %3\n}\n", /* loops that follow the iota's dims: nothing divides */
     "kernel @(b0: i64, b1: out i64) over i, j {\n"
     "  parallel i < d0 {\n"
     "    %1 = number i64 [d7 + i*d8]\n"
     "    vector j < d1 {\n"
     "      %3 = load i64 b0[d2 + i*d3 + j]\n"
     "      %4 = add i64 %3, %1\n"
     "      store i64 b1[d12 + i*d13 + j], %4\n"
     "    }\n"
     "  }\n"
     "}\n"},
    {"graph @half {\n  %0 = input bf16[8]\n  %1 = input f32[8]\n  %2 = cast f32[8] %0\n  %3 = mul f32[8] %2, %1\n  %4 "
     "= cast bf16[8] %3\n  output %4\n}\n", /* halves are memory alone: the load widens; the cast rounds, for whoever else uses it */
     "kernel @(b0: bf16, b1: f32, b2: out bf16) over i {\n"
     "  vector i < d0 {\n"
     "    %1 = load f32 b0[d1 + i]\n"
     "    %2 = load f32 b1[d5 + i]\n"
     "    %3 = mul f32 %1, %2\n"
     "    %4 = cast f32 %3 to bf16\n"
     "    store f32 b2[d9 + i], %4\n"
     "  }\n"
     "}\n"},
    {"graph @add_at {\n  %0 = input f32[9]\n  %1 = input i64[1]\n  %2 = input f32[1]\n  %3 = index_add f32[9] %0, %1, "
     "%2 {axis=0}\n  output %3\n}\n", /* one turn that nothing moves along; the store belongs to it all the same */
     "kernel @(b0: i64, b1: f32, b2: out f32) over i {\n"
     "  %0 = load i64 b0[d1]\n"
     "  %1 = load f32 b1[d5]\n"
     "  serial i < d0 {\n"
     "    store_add_at f32 b2[d9 + %0*d11 < d12], %1\n"
     "  }\n"
     "}\n"},
};

static void test_kernels(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(kernels); i++) {
        lowering l = lower(graph_of_text(kernels[i].graph), true);
        opq_text text = {0};
        char *printed = NULL;
        assert_int_equal(l.lowered.refusal, OPQ_REFUSAL_none);
        opq_loops_print(&l.lowered.loops, &text);
        expect_ok(opq_text_take(&text, &printed));
        assert_string_equal(printed, kernels[i].kernel);
        free(printed);
        drop(&l);
    }
}

/* ---- windows */

/* Windows of 3 x taps of a padded 8 x 20, one for each of four channels. */
static char *window_kernel(int taps, int step, int dilation)
{
    opq_text text = {0}, printed = {0};
    char *graph = NULL, *kernel = NULL;
    int rows = (10 - 2 * dilation - 1) / step + 1, columns = (22 - (taps - 1) * dilation - 1) / step + 1;
    opq_text_add(&text, "graph @w {\n  %%0 = input f32[1,4,8,20]\n  %%1 = input f32[4,1,%d]\n", 3 * taps);
    opq_text_add(&text, "  %%2 = reshape f32[1,4,1,8,20] %%0\n");
    opq_text_add(&text, "  %%3 = pad f32[1,4,1,10,22] %%2 {start=[0,0,0,1,1], value=0x0p+0}\n");
    opq_text_add(&text, "  %%4 = strided f32[1,4,1,3,%d,%d,%d] %%3 {offset=0, strides=[880,220,220,%d,%d,%d,%d]}\n",
                 taps, rows, columns, 22 * dilation, dilation, 22 * step, step);
    opq_text_add(&text, "  %%5 = reshape f32[1,4,%d,%d] %%4\n", 3 * taps, rows * columns);
    opq_text_add(&text, "  %%6 = matmul f32[1,4,1,%d] %%1, %%5\n  output %%6\n}\n", rows * columns);
    expect_ok(opq_text_take(&text, &graph));
    lowering l = lower(graph_of_text(graph), true);
    assert_int_equal(l.lowered.refusal, OPQ_REFUSAL_none);
    opq_loops_print(&l.lowered.loops, &printed);
    expect_ok(opq_text_take(&printed, &kernel));
    drop(&l);
    free(graph);
    return kernel;
}

/* Three taps are part of the kernel. Rows that read the next row's window are, where that is the next row of this one's. */
static void test_windows(void **state)
{
    static const struct {
        int taps, step, dilation;
        bool fixed, slides;
    } windows[] = {{3, 1, 1, true, true}, {3, 2, 1, true, false}, {3, 1, 2, true, false}, {4, 1, 1, false, false}};
    (void)state;
    for (size_t i = 0; i < COUNT(windows); i++) {
        char *kernel = window_kernel(windows[i].taps, windows[i].step, windows[i].dilation);
        bool fixed = strstr(kernel, " < 3 {") != NULL, slides = strstr(kernel, " < 3 along ") != NULL;
        if (strstr(kernel, "chain") == NULL || fixed != windows[i].fixed || slides != windows[i].slides)
            fail_msg("row %d: %s", (int)i, kernel);
        free(kernel);
    }
}

/* ---- keys: sizes, offsets and names are no part of them, dtypes, strides of a kind and constants are */

static char *key_of(const char *graph, size_t *out_length)
{
    lowering l = lower(graph_of_text(graph), true);
    opq_text key = {0};
    char *bytes = NULL;
    assert_int_equal(l.lowered.refusal, OPQ_REFUSAL_none);
    opq_loops_key(&l.lowered.loops, &key);
    *out_length = key.length;
    expect_ok(opq_text_take(&key, &bytes));
    drop(&l);
    return bytes;
}

#define COLUMNS(rows, columns)                                                                                         \
    "graph @a {\n  %0 = input f32[" rows "," columns "]\n  %1 = sum f32[1," columns                                    \
    "] %0 {axes=[0], tree=column}\n  output %1\n}\n"

static const struct {
    const char *a, *b;
    bool equal;
} keys[] = {
    {"graph @a {\n  %0 = input f32[4,8]\n  %1 = sum f32[4,1] %0 {axes=[1], tree=lanes}\n  output %1\n}\n",
     "graph @b {\n  %0 = input f32[77,500]\n  %1 = sum f32[77,1] %0 {axes=[1], tree=lanes}\n  output %1\n}\n", true},
    {COLUMNS("16", "80"), COLUMNS("90", "300"), true},
    {COLUMNS("16", "512"), COLUMNS("9000", "1024"), true}, /* by rows, which lie 2 KiB apart, or a multiple */
    {COLUMNS("15", "512"), COLUMNS("16", "512"), false},
    {COLUMNS("16", "80"), COLUMNS("16", "512"), false},
    {COLUMNS("900", "700"), COLUMNS("9000", "700"), false}, /* which the caches that are near do not hold */
    {"graph @a {\n  %0 = input f32[8]\n  %1 = slice f32[4] %0 {start=[0], step=[1]}\n  %2 = neg f32[4] %1\n  output "
     "%2\n}\n",
     "graph @b {\n  %0 = input f32[8]\n  %1 = slice f32[4] %0 {start=[3], step=[1]}\n  %2 = neg f32[4] %1\n  output "
     "%2\n}\n",
     true},
    {"graph @a {\n  %0 = input f32[8]\n  %1 = scalar f32[] {value=0x1p+0}\n  %2 = add f32[8] %0, %1\n  output %2\n}\n",
     "graph @b {\n  %0 = input f32[8]\n  %1 = scalar f32[] {value=0x1p+1}\n  %2 = add f32[8] %0, %1\n  output %2\n}\n",
     true},
    {"graph @a {\n  %0 = input f32[8]\n  %1 = const f32[] {value=0x1p+0}\n  %2 = add f32[8] %0, %1\n  output %2\n}\n",
     "graph @b {\n  %0 = input f32[8]\n  %1 = const f32[] {value=0x1p+1}\n  %2 = add f32[8] %0, %1\n  output %2\n}\n",
     false},
    {"graph @a {\n  %0 = input f32[8]\n  %1 = neg f32[8] %0\n  output %1\n}\n",
     "graph @b {\n  %0 = input f64[8]\n  %1 = neg f64[8] %0\n  output %1\n}\n", false},
    {"graph @a {\n  %0 = input f32[8]\n  %1 = slice f32[4] %0 {start=[0], step=[1]}\n  %2 = neg f32[4] %1\n  output "
     "%2\n}\n",
     "graph @b {\n  %0 = input f32[8]\n  %1 = slice f32[4] %0 {start=[0], step=[2]}\n  %2 = neg f32[4] %1\n  output "
     "%2\n}\n",
     false},
    {"graph @a {\n  %0 = input f32[8]\n  %1 = input f32[8]\n  %2 = sub f32[8] %0, %1\n  output %2\n}\n",
     "graph @b {\n  %0 = input f32[8]\n  %1 = input f32[8]\n  %2 = sub f32[8] %0, %0\n  output %2\n}\n", false},
};

static void test_keys(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(keys); i++) {
        size_t a_length, b_length;
        char *a = key_of(keys[i].a, &a_length), *b = key_of(keys[i].b, &b_length);
        bool equal = a_length == b_length && memcmp(a, b, a_length) == 0;
        if (equal != keys[i].equal)
            fail_msg("row %d: the keys %s", (int)i, equal ? "are equal" : "differ");
        free(a);
        free(b);
    }
}

/* ---- refusals of long graphs */

static opq_ref input_of(opq_graph *graph, int64_t size)
{
    opq_type type = opq_type_make(OPQ_f32, 1, &size);
    opq_ref ref;
    expect_ok(opq_graph_input(graph, &type, &ref));
    return ref;
}

static opq_ref op2(opq_graph *graph, opq_op op, opq_ref x, opq_ref y)
{
    opq_ref ref;
    expect_ok(opq_graph_op(graph, op, (opq_ref[]){x, y}, 2, NULL, 0, &ref));
    return ref;
}

static opq_graph *sum_of_inputs(const char *name, int count, bool one_input)
{
    opq_graph *graph = NULL;
    expect_ok(opq_graph_create(name, &graph));
    opq_ref first = input_of(graph, 8), x = first;
    for (int i = 1; i < count; i++)
        x = op2(graph, OPQ_OP_add, x, one_input ? first : input_of(graph, 8));
    expect_ok(opq_graph_output(graph, x));
    return graph;
}

static void test_limits(void **state)
{
    (void)state;
    expect_refusal(sum_of_inputs("long", 380, true), OPQ_REFUSAL_none);
    expect_refusal(sum_of_inputs("too_long", 400, true), OPQ_REFUSAL_body_size);
    expect_refusal(sum_of_inputs("wide", 95, false), OPQ_REFUSAL_none); /* 95 and the result */
    expect_refusal(sum_of_inputs("too_wide", 97, false), OPQ_REFUSAL_buffers);
}

/* Sums over one axis of f32[4,8]: of growing values, all in one sweep, or each of what the one before left. */
static opq_graph *many_sums(const char *name, int count, int64_t axis, bool chained)
{
    opq_graph *graph = NULL;
    int64_t size[2] = {4, 8};
    opq_type type = opq_type_make(OPQ_f32, 2, size);
    opq_attr axes = {.key = OPQ_ATTR_axes, .count = 1, .ints = &axis};
    opq_ref x, y, sum, total = -1;
    expect_ok(opq_graph_create(name, &graph));
    expect_ok(opq_graph_input(graph, &type, &x));
    y = x;
    for (int i = 0; i < count; i++) {
        expect_ok(opq_graph_op(graph, OPQ_OP_sum, &y, 1, &axes, 1, &sum));
        y = op2(graph, OPQ_OP_add, y, chained ? sum : x);
        total = total < 0 ? sum : op2(graph, OPQ_OP_add, total, sum);
    }
    expect_ok(opq_graph_output(graph, chained ? y : total));
    return graph;
}

/* What code generation refuses, lowering refuses first, whether a kernel is asked for or not. */
static void test_limits_of_reductions(void **state)
{
    (void)state;
    for (int64_t axis = 0; axis < 2; axis++) {
        expect_refusal(many_sums("together", OPQ_REDUCTION_MAX, axis, false), OPQ_REFUSAL_none);
        expect_refusal(many_sums("too_many", OPQ_REDUCTION_MAX + 1, axis, false), OPQ_REFUSAL_reductions);
        expect_refusal(many_sums("chained", OPQ_SWEEP_MAX - 1, axis, true), OPQ_REFUSAL_none);
        expect_refusal(many_sums("too_deep", OPQ_SWEEP_MAX, axis, true), OPQ_REFUSAL_reductions);
        expect_refusal(many_sums("far_too_deep", 120, axis, true), OPQ_REFUSAL_reductions);
        lowering l = lower(many_sums("made", OPQ_REDUCTION_MAX + 1, axis, false), true);
        assert_int_equal(l.lowered.refusal, OPQ_REFUSAL_reductions);
        drop(&l);
    }
}

/* A tensor of as many dims as there are, no two of which are walked as one: alone every op on it is a kernel. */
static const char *const of_all_dims[] = {
    "%1 = permute f32[3,2,3,2,3,2,3,2,3,2,3,2] %0 {dims=[1,0,3,2,5,4,7,6,9,8,11,10]}",
    "%1 = slice f32[1,2,1,2,1,2,1,2,1,2,1,2] %0 {start=[0,0,1,0,0,0,1,0,0,0,1,0], step=[1,2,1,2,1,2,1,2,1,2,1,2]}",
    "%1 = sum f32[2,1,2,1,2,1,2,1,2,1,2,1] %0 {axes=[1,3,5,7,9,11], tree=lanes}",
    "%1 = sum f32[1,3,1,3,1,3,1,3,1,3,1,3] %0 {axes=[0,2,4,6,8,10], tree=column}",
    "%1 = strided f32[2,2,2,2,2,2,2,2,2,2,2,2] %0 {offset=1, strides=[1,2,5,9,17,40,70,130,270,530,1030,2050]}",
    "%1 = matmul f32[2,3,2,3,2,3,2,3,2,3,2,2] %0, %0 {transpose_b=1}",
};

static void test_all_dims(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(of_all_dims); i++) {
        char text[1024];
        snprintf(text, sizeof text, "graph @g {\n  %%0 = input f32[2,3,2,3,2,3,2,3,2,3,2,3]\n  %s\n  output %%1\n}\n",
                 of_all_dims[i]);
        opq_graph *graph = graph_of_text(text);
        const int32_t group_of[] = {-1, 0};
        opq_lower_request request = {.graph = graph,
                                     .group_of = group_of,
                                     .members = graph->outputs,
                                     .member_count = 1,
                                     .stored = graph->outputs,
                                     .stored_count = 1};
        opq_arena arena = {0};
        opq_lowered lowered;
        expect_ok(opq_lower(&request, &arena, &lowered));
        if (lowered.refusal != OPQ_REFUSAL_none)
            fail_msg("%s: refused for %s", of_all_dims[i], opq_refusal_name(lowered.refusal));
        opq_arena_drop(&arena);
        opq_graph_destroy(graph);
    }
}

/* Eleven loops of the operand's, two of them cut by its views, and one more for a reduction over an extent of 1. */
static void test_one_loop_too_many(void **state)
{
    (void)state;
    expect_refusal(graph_of_text("graph @g {\n  %0 = input f32[8192]\n"
                                 "  %1 = reshape f32[4,2,2,2,2,2,2,2,2,2,2,2] %0\n"
                                 "  %2 = reshape f32[2,2,4,2,2,2,2,2,2,2,2,2] %1\n"
                                 "  %3 = reshape f32[4,4,2,2,2,2,2,2,2,2,2,1] %2\n"
                                 "  %4 = sum f32[4,4,2,2,2,2,2,2,2,2,2,1] %3 {axes=[11], tree=lanes}\n"
                                 "  output %4\n}\n"),
                   OPQ_REFUSAL_space);
}

/* What costs more than it saves is a kernel all the same, and whoever asks is told of both. */
static void test_loss(void **state)
{
    (void)state;
    static const char text[] = "graph @dear {\n  %0 = input f32[8]\n  %1 = input f32[4,8]\n  %2 = exp f32[8] %0\n  %3 "
                               "= add f32[4,8] %1, %2\n  output %3\n}\n";
    for (int makes = 0; makes < 2; makes++) {
        lowering l = lower(graph_of_text(text), makes);
        assert_int_equal(l.lowered.refusal, OPQ_REFUSAL_none);
        assert_int_equal(l.lowered.loss, OPQ_REFUSAL_recompute);
        assert_int_equal(l.lowered.loops.stmt_count > 0, makes);
        drop(&l);
    }
}

/* A remedy says what to do, or that there is nothing to do. */
static void test_every_refusal_has_a_name_a_text_and_a_remedy(void **state)
{
    (void)state;
    for (int r = 0; r < OPQ_REFUSAL_COUNT; r++) {
        const char *remedy = opq_refusal_remedy((opq_refusal)r);
        assert_true(strlen(opq_refusal_name((opq_refusal)r)) > 0);
        assert_true(strlen(opq_refusal_text((opq_refusal)r)) > 0);
        assert_true(strlen(remedy) > 0);
        assert_true(opq_refusal_acts((opq_refusal)r) == (strncmp(remedy, "nothing", 7) != 0));
        for (int other = 0; other < r; other++)
            assert_string_not_equal(opq_refusal_name((opq_refusal)r), opq_refusal_name((opq_refusal)other));
    }
}

/* ---- matmul operands */

static const struct {
    const char *view; /* the right operand, [8,5] made from %1 */
    int64_t offset, row_stride, column_stride;
} matrices[] = {
    {"%2 = slice f32[8,5] %1 {start=[0,0], step=[1,1]}", 0, 6, 1},
    {"%2 = slice f32[8,5] %1 {start=[1,1], step=[1,1]}", 7, 6, 1},
    {"%2 = strided f32[8,5] %1 {offset=2, strides=[1,9]}", 2, 1, 9},
    {"%2 = strided f32[8,5] %1 {offset=0, strides=[0,1]}", 0, 0, 1},
};

static void test_matrices(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(matrices); i++) {
        char text[512];
        snprintf(
            text,
            sizeof text, "graph @m {\n  %%0 = input f32[3,8]\n  %%1 = input f32[9,6]\n  %s\n  %%3 = matmul f32[3,5] %%0, %%2\n  output %%3\n}\n",
            matrices[i].view);
        opq_graph *graph = graph_of_text(text);
        const int32_t group_of[] = {-1, -1, -1, 0};
        assert_true(opq_lower_is_matrix(graph, group_of, NULL, 3, 1));
        lowering l = lower(graph, true);
        opq_contract contract;
        expect_ok(opq_loops_contract(&l.lowered.loops, l.lowered.dims, true, &l.arena, &contract));
        assert_int_equal(l.lowered.buffers[contract.operand[1].buffer], 1);
        assert_int_equal(contract.operand[1].offset, matrices[i].offset);
        assert_int_equal(contract.operand[1].row_stride, matrices[i].row_stride);
        assert_int_equal(contract.operand[1].column_stride, matrices[i].column_stride);
        drop(&l);
    }
}

/* A matrix times a vector is one row times the transposed matrix, if it may be: what is made of it then goes along that row. */
static void test_one_column(void **state)
{
    (void)state;
    for (int may = 0; may < 2; may++) {
        opq_graph *graph =
            graph_of_text("graph @m {\n  %0 = input f32[9,8]\n  %1 = input f32[8,1]\n  %2 = input f32[9,1]\n"
                          "  %3 = matmul f32[9,1] %0, %1\n  %4 = add f32[9,1] %3, %2\n  output %4\n}\n");
        lowering l = lower(graph, true);
        opq_contract c;
        expect_ok(opq_loops_contract(&l.lowered.loops, l.lowered.dims, may, &l.arena, &c));
        assert_int_equal(c.m, may ? 1 : 9);
        assert_int_equal(c.n, may ? 9 : 1);
        assert_int_equal(l.lowered.buffers[c.operand[may].buffer], 0);
        assert_int_equal(may ? c.operand[1].column_stride : c.operand[0].row_stride, 8);
        assert_int_equal(may ? c.operand[1].row_stride : c.operand[0].column_stride, 1);
        expect_ok(opq_loops_verify(&c.epilogue));
        assert_int_equal(c.dims[0], c.m);
        assert_int_equal(c.dims[1], c.n);
        drop(&l);
    }
}

/* A transposed matrix in another shape has no strides: it must be copied. Copied, its reshape is free. */
static void test_no_matrix(void **state)
{
    (void)state;
    opq_graph *graph = graph_of_text(
        "graph @m {\n  %0 = input f32[3,8]\n  %1 = input f32[5,8]\n  %2 = permute f32[8,5] %1 {dims=[1,0]}\n"
        "  %3 = reshape f32[5,8] %2\n  %4 = matmul f32[3,5] %0, %3 {transpose_b=1}\n  output %4\n}\n");
    const int32_t followed[] = {-1, -1, -1, -1, 0}, copied[] = {-1, -1, 1, -1, 0};
    const uint8_t stored[] = {0, 0, 1, 0, 0};
    assert_false(opq_lower_is_matrix(graph, followed, NULL, 4, 1));
    assert_true(opq_lower_is_matrix(graph, copied, NULL, 4, 1));
    assert_true(opq_lower_is_matrix(graph, followed, stored, 4, 1));
    opq_graph_destroy(graph);
}

/* ---- bounds: loops, all right with these arguments and not with any worse ones */

static const char *const bounded[] = {
    "graph @map {\n  %0 = input f32[4,8]\n  %1 = input f32[8]\n  %2 = add f32[4,8] %0, %1\n  output %2\n}\n",
    "graph @back {\n  %0 = input f32[4,64]\n  %1 = slice f32[4,64] %0 {start=[0,63], step=[1,-1]}\n  %2 = neg "
    "f32[4,64] %1\n"
    "  output %2\n}\n",
    "graph @gather {\n  %0 = input f32[9,3]\n  %1 = input i64[5]\n  %2 = index_select f32[5,3] %0, %1 {axis=0}\n  "
    "output "
    "%2\n}\n",
    "graph @product {\n  %0 = input f32[3,8]\n  %1 = input f32[8,5]\n  %2 = matmul f32[3,5] %0, %1\n  output %2\n}\n",
    "graph @scan {\n  %0 = input f32[64,20]\n  %1 = scan_add f32[64,20] %0 {axis=1}\n  output %1\n}\n",
    "graph @scan_back {\n  %0 = input f32[3,20]\n  %1 = scan_add f32[3,20] %0 {axis=1}\n"
    "  %2 = slice f32[3,20] %1 {start=[0,19], step=[1,-1]}\n  output %2\n}\n",
    "graph @short_rows {\n  %0 = input f32[64,3]\n  %1 = sum f32[64,1] %0 {axes=[1], tree=lanes}\n  output %1\n}\n",
};

static void test_bounds(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bounded); i++) {
        lowering l = lower(graph_of_text(bounded[i]), true);
        const opq_loops *k = &l.lowered.loops;
        int64_t bytes[OPQ_BUFFER_MAX];
        for (int b = 0; b < k->buffer_count; b++)
            bytes[b] = opq_type_bytes(&opq_node_at(l.graph, l.lowered.buffers[b])->type);
        expect_ok(opq_loops_verify(k));
        expect_ok(opq_loops_verify_bounds(k, l.lowered.dims, bytes));
        for (int b = 0; b < k->buffer_count; b++) { /* one byte too few */
            bytes[b]--;
            assert_int_equal(opq_loops_verify_bounds(k, l.lowered.dims, bytes), OPQ_INVALID);
            bytes[b]++;
        }
        for (int a = 0; a < k->access_count; a++) { /* from one element too early on, and too late */
            int64_t *offset = &l.lowered.dims[opq_dims_of(k->rank, a)];
            if (k->accesses[a].buffer < 0)
                continue;
            for (int by = -1; by <= 1; by += 2) {
                *offset += by;
                assert_int_equal(opq_loops_verify_bounds(k, l.lowered.dims, bytes), OPQ_INVALID);
                *offset -= by;
            }
        }
        l.lowered.dims[0] = -1;
        assert_int_equal(opq_loops_verify_bounds(k, l.lowered.dims, bytes), OPQ_INVALID);
        drop(&l);
    }
}

/* What no index moves has no bound of an index, also buffers of the kernel's own: whatever was in the memory that holds it. */
static void test_bounds_of_own_buffers(void **state)
{
    (void)state;
    mallopt(M_PERTURB, 0x5a);
    lowering l = lower(graph_of_text("graph @whole {\n  %0 = input f32[300000]\n  %1 = abs f32[300000] %0\n"
                                     "  %2 = sum f32[1] %1 {axes=[0], tree=lanes}\n  output %2\n}\n"),
                       true);
    mallopt(M_PERTURB, 0);
    const opq_loops *k = &l.lowered.loops;
    assert_true(k->access_count > 2);
    for (int a = 0; a < k->access_count; a++)
        assert_int_equal(l.lowered.dims[opq_dims_of(k->rank, a) + 2 + k->rank], 0);
    drop(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_column),
        cmocka_unit_test(test_no_matrix),
        cmocka_unit_test(test_bounds_of_own_buffers),
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_limits_of_reductions),
        cmocka_unit_test(test_all_dims),
        cmocka_unit_test(test_one_loop_too_many),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_every_refusal_has_a_name_a_text_and_a_remedy),
        cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
