/* Each invariant of the IR, broken by hand in one graph that has all kinds of nodes. */
#include "tests/support.h"

#include "graph/graph.h"

#include <stdio.h>

static const char valid[] = "graph @g {\n"
                            "  %0 = input f32[4,8]\n"
                            "  %1 = scalar f32[] {value=0x1p-1}\n"
                            "  kernel row @softmax_0 {\n"
                            "    %2 = amax f32[4,1] %0 {axes=[1], tree=lanes}\n"
                            "    %3 = sub f32[4,8] %0, %2\n"
                            "  }\n"
                            "  kernel map @map_1 {\n"
                            "    %4 = lt bool[4,8] %3, %1\n"
                            "    %5 = cast i64[4,8] %4\n"
                            "  }\n"
                            "  %6 = extern f32[2] %5 {key=\"call\"}\n"
                            "  %7 = extern_result f32[3] %6 {result=1}\n"
                            "  %8 = const i8[] {value=3}\n"
                            "  output %7, %3\n"
                            "}\n";

static opq_node *node(opq_graph *g, opq_ref n) { return &g->nodes[n]; }
static opq_attr *attr(opq_graph *g, opq_ref n, int i) { return (opq_attr *)g->nodes[n].attr + i; }
static opq_ref *operand(opq_graph *g, opq_ref n, int i) { return (opq_ref *)g->nodes[n].operand + i; }

static void operand_forward(opq_graph *g) { *operand(g, 3, 1) = 4; }
static void operand_itself(opq_graph *g) { *operand(g, 3, 1) = 3; }
static void operand_negative(opq_graph *g) { *operand(g, 3, 0) = -1; }
static void operand_uncast(opq_graph *g) { node(g, 1)->type.dtype = OPQ_f64; }
static void operand_no_call(opq_graph *g) { *operand(g, 7, 0) = 5; }
static void arity_wrong(opq_graph *g) { node(g, 3)->arity = 1; }
static void arity_negative(opq_graph *g) { node(g, 3)->arity = -1; }
static void op_unknown(opq_graph *g) { node(g, 3)->op = OPQ_OP_COUNT; }
static void shape_wrong(opq_graph *g) { node(g, 3)->type.size[1] = 9; }
static void dtype_wrong(opq_graph *g) { node(g, 4)->type.dtype = OPQ_u8; }
static void dtype_unknown(opq_graph *g) { node(g, 0)->type.dtype = OPQ_DTYPE_COUNT; }
static void rank_too_high(opq_graph *g) { node(g, 0)->type.rank = 13; }
static void size_negative(opq_graph *g) { node(g, 0)->type.size[0] = -4; }
static void attr_missing(opq_graph *g) { node(g, 2)->attr_count = 0; }
static void attr_tree_missing(opq_graph *g) { node(g, 2)->attr_count = 1; }
static void attr_unsorted(opq_graph *g)
{
    attr(g, 2, 0)->key = OPQ_ATTR_tree;
    attr(g, 2, 0)->i = 0;
}
static void attr_unknown(opq_graph *g) { attr(g, 2, 1)->key = OPQ_ATTR_COUNT; }
static void attr_foreign(opq_graph *g) { attr(g, 1, 0)->key = OPQ_ATTR_axis; }
static void attr_no_tree(opq_graph *g) { attr(g, 2, 1)->i = 2; }
static void attr_no_ints(opq_graph *g) { attr(g, 2, 0)->ints = NULL; }
static void attr_no_string(opq_graph *g) { attr(g, 6, 0)->str = NULL; }
static void attr_result_negative(opq_graph *g) { attr(g, 7, 0)->i = -1; }
static void axis_out_of_range(opq_graph *g) { *(int64_t *)attr(g, 2, 0)->ints = 2; }
static void number_kind(opq_graph *g) { attr(g, 1, 0)->is_int = 1; }
static void number_kind_int(opq_graph *g) { attr(g, 8, 0)->is_int = 0; }
static void number_not_rounded(opq_graph *g) { attr(g, 1, 0)->number.f = 0.1; }
static void number_too_large(opq_graph *g) { attr(g, 8, 0)->number.i = 300; }
static void kernel_forgotten(opq_graph *g) { node(g, 3)->kernel = -1; }
static void kernel_claimed(opq_graph *g) { node(g, 6)->kernel = 1; }
static void kernel_swapped(opq_graph *g) { node(g, 3)->kernel = 1; }
static void kernel_overlap(opq_graph *g) { g->kernels[1].first = 3; }
static void kernel_leaves(opq_graph *g) { g->kernels[1].count = 6; }
static void kernel_empty(opq_graph *g) { g->kernels[1].count = 0; }
static void kernel_kind(opq_graph *g) { g->kernels[1].kind = OPQ_KERNEL_KIND_COUNT; }
static void kernel_name(opq_graph *g) { g->kernels[1].name = "a b"; }
static void output_missing(opq_graph *g) { g->outputs[1] = 9; }

static const struct {
    void (*damage)(opq_graph *graph);
    const char *message;
} rows[] = {
    {operand_forward, "%3: sub: operand %4 does not come before %3"},
    {operand_itself, "%3: sub: operand %3 does not come before %3"},
    {operand_negative, "%3: sub: operand %-1 does not come before %3"},
    {operand_uncast, "%4: lt: operand 1 is f64 and needs a cast to f32"},
    {operand_no_call, "%7: extern_result: %5 is no extern call"},
    {arity_wrong, "%3: sub: takes 2 operands, got 1"},
    {arity_negative, "%3: sub: negative arity"},
    {op_unknown, NULL},
    {shape_wrong, "%3: sub: gives f32[4,8], not f32[4,9]"},
    {dtype_wrong, "%4: lt: gives bool[4,8], not u8[4,8]"},
    {dtype_unknown, NULL},
    {rank_too_high, "%0: input: 13 dimensions are more than 12"},
    {size_negative, "%0: input: negative extent in [-4,8]"},
    {attr_missing, "%2: amax: attribute tree missing"},
    {attr_tree_missing, "%2: amax: attribute tree missing"},
    {attr_unsorted, "%2: amax: attributes are not sorted at tree"},
    {attr_unknown, "%2: amax: has no attribute of that number"},
    {attr_foreign, "%1: scalar: has no attribute axis"},
    {attr_no_tree, "%2: amax: attribute tree has no such value"},
    {attr_no_ints, "%2: amax: attribute axes has no such value"},
    {attr_no_string, "%6: extern: attribute key has no such value"},
    {attr_result_negative, "%7: extern_result: attribute result has no such value"},
    {axis_out_of_range, "%2: amax: axis 2 out of range for 2 dimensions"},
    {number_kind, "%1: scalar: the value of a f32 is no integer"},
    {number_kind_int, "%8: const: the value of a i8 is an integer"},
    {number_not_rounded, "%1: scalar: the value is no f32"},
    {number_too_large, "%8: const: 300 does not fit i8"},
    {kernel_forgotten, "kernel softmax_0: %3 does not know that it is in it"},
    {kernel_claimed, "5 nodes name a kernel, 4 are in one"},
    {kernel_swapped, "kernel softmax_0: %3 does not know that it is in it"},
    {kernel_overlap, "kernel map_1: 2 nodes from %3 overlap or leave the graph"},
    {kernel_leaves, "kernel map_1: 6 nodes from %4 overlap or leave the graph"},
    {kernel_empty, "kernel map_1: 0 nodes from %4 overlap or leave the graph"},
    {kernel_kind, "kernel 1: no such kind or name"},
    {kernel_name, "kernel 1: no such kind or name"},
    {output_missing, "output 1: no node %9 in a graph of 9"},
};

static void every_damage_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        opq_graph *graph = graph_of_text(valid);
        expect_ok(opq_graph_verify(graph));
        rows[i].damage(graph);
        opq_status status = opq_graph_verify(graph);
        if (rows[i].message)
            expect_text(status == OPQ_INVALID ? opq_error() : "no error", rows[i].message, "row %zu", i);
        assert_int_equal(status, OPQ_INVALID);
        opq_graph_destroy(graph);
    }
}

/* A rounded constant may be any NaN; a weak number may stand where its dtype is the computing one. */
static void what_is_allowed(void **state)
{
    (void)state;
    opq_graph *graph = graph_of_text("graph @g {\n"
                                     "  %0 = const f32[] {value=nan(0xfff8000020000000)}\n"
                                     "  %1 = input f32[0]\n"
                                     "  %2 = add f32[0] %1, %0\n"
                                     "  %3 = sum f32[1] %2 {axes=[0], tree=column}\n"
                                     "}\n");
    graph->nodes[0].type.weak = 1;
    expect_ok(opq_graph_verify(graph));
    opq_graph_destroy(graph);
}

/* A fused graph whose kernels would run, with wrong values: an operand that is taken from memory is made by the same kernel. */
static void a_kernel_reads_what_it_makes(void **state)
{
    (void)state;
    static const struct {
        const char *body, *message;
    } kernels[] = {
        {"    %2 = sin f32[8,8] %0\n"
         "    %3 = matmul f32[8,8] %2, %1\n",
         "kernel k: %3 takes %2 from memory, which the same kernel makes"},
        {"    %2 = sin f32[8,8] %0\n"
         "    %3 = permute f32[8,8] %2 {dims=[1,0]}\n"
         "    %4 = matmul f32[8,8] %1, %3\n",
         "kernel k: %4 takes %2 from memory, which the same kernel makes"},
        {"    %2 = sin f32[8,8] %0\n"
         "    %3 = update f32[8,8] %2, %1 {offset=0, sizes=[8,8], strides=[8,1]}\n",
         "kernel k: %3 takes %2 from memory, which the same kernel makes"},
        {"    %2 = permute f32[8,8] %0 {dims=[1,0]}\n"
         "    %3 = matmul f32[8,8] %1, %2\n",
         NULL},
        {"    %2 = sin f32[8,8] %0\n"
         "    %3 = update f32[8,8] %1, %2 {offset=0, sizes=[8,8], strides=[8,1]}\n",
         NULL},
    };
    for (size_t i = 0; i < COUNT(kernels); i++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "graph @g {\n  %%0 = input f32[8,8]\n  %%1 = input f32[8,8]\n  kernel matmul @k {\n%s  }\n}\n",
                 kernels[i].body);
        opq_graph *graph = graph_of_text(text);
        opq_status status = opq_graph_verify(graph);
        expect_text(status == OPQ_OK ? "fine" : opq_error(), kernels[i].message ? kernels[i].message : "fine",
                    "kernel %zu", i);
        opq_graph_destroy(graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_damage_is_named),
        cmocka_unit_test(what_is_allowed),
        cmocka_unit_test(a_kernel_reads_what_it_makes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
