/* Building graphs: casts where operands need them, attributes in order, nothing appended on failure, copies that own their parts. */
#include "tests/support.h"

#include "graph/graph.h"

#include <math.h>

static opq_graph *new_graph(void)
{
    opq_graph *graph = NULL;
    expect_ok(opq_graph_create("g", &graph));
    return graph;
}

static opq_ref input(opq_graph *graph, opq_dtype dtype, int rank, const int64_t *size)
{
    opq_type type = opq_type_make(dtype, rank, size);
    opq_ref ref = -1;
    expect_ok(opq_graph_input(graph, &type, &ref));
    return ref;
}

static opq_ref op(opq_graph *graph, opq_op which, const opq_ref *operands, int arity, const opq_attr *attrs,
                  int attr_count)
{
    opq_ref ref = -1;
    expect_ok(opq_graph_op(graph, which, operands, arity, attrs, attr_count, &ref));
    return ref;
}

static void expect_graph(opq_graph *graph, const char *expected)
{
    char *text = text_of_graph(graph);
    expect_text(text, expected, "graph @%s", graph->name);
    expect_ok(opq_graph_verify(graph));
    free(text);
    opq_graph_destroy(graph);
}

static const int64_t two_three[] = {2, 3};

static void operands_are_cast_to_the_compute_dtype(void **state)
{
    (void)state;
    opq_graph *g = new_graph();
    opq_ref i = input(g, OPQ_i64, 2, two_three), h = input(g, OPQ_f16, 1, two_three + 1);
    opq_ref sum = op(g, OPQ_OP_add, (opq_ref[]){i, h}, 2, NULL, 0);
    opq_ref twice = op(g, OPQ_OP_div, (opq_ref[]){i, i}, 2, NULL, 0);
    opq_ref less = op(g, OPQ_OP_lt, (opq_ref[]){sum, twice}, 2, NULL, 0);
    op(g, OPQ_OP_where, (opq_ref[]){less, i, h}, 3, NULL, 0);
    expect_graph(g, "graph @g {\n"
                    "  %0 = input i64[2,3]\n"
                    "  %1 = input f16[3]\n"
                    "  %2 = cast f16[2,3] %0\n"
                    "  %3 = add f16[2,3] %2, %1\n"
                    "  %4 = cast f32[2,3] %0\n"
                    "  %5 = div f32[2,3] %4, %4\n"
                    "  %6 = cast f32[2,3] %3\n"
                    "  %7 = lt bool[2,3] %6, %5\n"
                    "  %8 = cast f16[2,3] %0\n"
                    "  %9 = where f16[2,3] %7, %8, %1\n"
                    "}\n");
}

/* The same number counts as a Python number once it is weak, and as a 0-d tensor before. */
static void weak_numbers_do_not_widen(void **state)
{
    (void)state;
    opq_graph *g = new_graph();
    opq_ref x = input(g, OPQ_f16, 0, NULL), s, c;
    expect_ok(opq_graph_scalar(g, OPQ_f64, (opq_number){.f = 0.1}, &s));
    op(g, OPQ_OP_mul, (opq_ref[]){x, s}, 2, NULL, 0);
    g->nodes[s].type.weak = 1;
    op(g, OPQ_OP_mul, (opq_ref[]){x, s}, 2, NULL, 0);
    expect_ok(opq_graph_const(g, OPQ_i64, (opq_number){.i = -3}, &c));
    expect_graph(g, "graph @g {\n"
                    "  %0 = input f16[]\n"
                    "  %1 = scalar f64[] {value=0.1}\n"
                    "  %2 = cast f64[] %0\n"
                    "  %3 = mul f64[] %2, %1\n"
                    "  %4 = cast f16[] %1\n"
                    "  %5 = mul f16[] %0, %4\n"
                    "  %6 = const i64[] {value=-3}\n"
                    "}\n");
}

static void numbers_are_rounded_to_their_dtype(void **state)
{
    (void)state;
    static const struct {
        opq_dtype dtype;
        opq_number in, out;
    } rows[] = {
        {OPQ_f64, {.f = 0.1}, {.f = 0.1}},        {OPQ_f32, {.f = 0.1}, {.f = 0x1.99999ap-4}},
        {OPQ_bf16, {.f = 0.1}, {.f = 0x1.9ap-4}}, {OPQ_f16, {.f = 0.1}, {.f = 0x1.998p-4}},
        {OPQ_f16, {.f = 1e9}, {.f = INFINITY}},   {OPQ_f32, {.f = -1e-300}, {.f = -0.0}},
        {OPQ_bool, {.i = 5}, {.i = 1}},           {OPQ_i8, {.i = -128}, {.i = -128}},
        {OPQ_u8, {.i = 255}, {.i = 255}},         {OPQ_i64, {.i = INT64_MIN}, {.i = INT64_MIN}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        opq_number number = rows[i].in;
        expect_ok(opq_number_fit("const", rows[i].dtype, &number));
        assert_memory_equal(&number, &rows[i].out, sizeof number);
    }
    opq_number wide = {.i = 128}, negative = {.i = -1};
    expect_failure(opq_number_fit("const", OPQ_i8, &wide), OPQ_INVALID, "const: 128 does not fit i8");
    expect_failure(opq_number_fit("const", OPQ_u8, &negative), OPQ_INVALID, "const: -1 does not fit u8");
    expect_failure(opq_number_fit("const", OPQ_raw8, &wide), OPQ_INVALID, "const: not implemented for raw8");
}

static void attributes_are_sorted_and_completed(void **state)
{
    (void)state;
    opq_graph *g = new_graph();
    opq_ref x = input(g, OPQ_f32, 2, two_three), slice;
    int64_t zero = 0, one = 1, start[] = {1, 0}, step[] = {1, 2}, size[] = {1, 2};
    opq_attr rows = {.key = OPQ_ATTR_axes, .count = 1, .ints = &one},
             columns = {.key = OPQ_ATTR_axes, .count = 1, .ints = &zero};
    op(g, OPQ_OP_sum, &x, 1, &rows, 1);
    op(g, OPQ_OP_softmax, &x, 1, &columns, 1);
    opq_attr lanes[] = {{.key = OPQ_ATTR_tree, .i = OPQ_TREE_lanes}, columns};
    op(g, OPQ_OP_sum, &x, 1, lanes, 2);
    opq_attr steps[] = {{.key = OPQ_ATTR_step, .count = 2, .ints = step},
                        {.key = OPQ_ATTR_start, .count = 2, .ints = start}};
    opq_type type = opq_type_make(OPQ_f32, 2, size);
    expect_ok(opq_graph_op_typed(g, OPQ_OP_slice, &type, &x, 1, steps, 2, &slice));
    opq_attr turns[] = {{.key = OPQ_ATTR_transpose_b, .i = 1}, {.key = OPQ_ATTR_transpose_a, .i = 0}};
    op(g, OPQ_OP_matmul, (opq_ref[]){x, x}, 2, turns, 2);
    start[0] = size[0] = one = 77; /* the graph has its own copies */
    expect_graph(g, "graph @g {\n"
                    "  %0 = input f32[2,3]\n"
                    "  %1 = sum f32[2,1] %0 {axes=[1], tree=lanes}\n"
                    "  %2 = softmax f32[2,3] %0 {axes=[0], tree=column}\n"
                    "  %3 = sum f32[1,3] %0 {axes=[0], tree=lanes}\n"
                    "  %4 = slice f32[1,2] %0 {start=[1,0], step=[1,2]}\n"
                    "  %5 = matmul f32[2,2] %0, %0 {transpose_b=1}\n"
                    "}\n");
}

static void failures_append_nothing(void **state)
{
    (void)state;
    opq_graph *g = new_graph(), *none = NULL;
    opq_ref x = input(g, OPQ_i64, 2, two_three), y = input(g, OPQ_f32, 1, two_three), out = -1;
    opq_attr twice[] = {{.key = OPQ_ATTR_axis, .i = 0}, {.key = OPQ_ATTR_axis, .i = 0}};
    opq_type negative = opq_type_make(OPQ_f32, 1, (int64_t[]){-1});
    expect_failure(opq_graph_op(g, OPQ_OP_add, (opq_ref[]){x, y}, 2, NULL, 0, &out), OPQ_INVALID,
                   "add: shapes [2,3] and [2] do not broadcast (axis 1: 3 and 2)");
    expect_failure(opq_graph_op(g, OPQ_OP_neg, (opq_ref[]){2}, 1, NULL, 0, &out), OPQ_INVALID,
                   "neg: no node %2 in a graph of 2");
    expect_failure(opq_graph_op(g, OPQ_OP_concat, &x, 1, twice, 2, &out), OPQ_INVALID,
                   "concat: attribute axis given twice");
    expect_failure(opq_graph_op(g, OPQ_OP_const, NULL, 0, NULL, 0, &out), OPQ_INVALID, "const: has a builder of its own");
    assert_int_equal(opq_graph_op(g, OPQ_OP_COUNT, NULL, 0, NULL, 0, &out), OPQ_INVALID);
    expect_failure(opq_graph_input(g, &negative, &out), OPQ_INVALID, "input: negative extent in [-1]");
    expect_failure(opq_graph_output(g, 2), OPQ_INVALID, "output: no node %2 in a graph of 2");
    expect_failure(opq_graph_create("a b", &none), OPQ_INVALID, "a graph cannot be named 'a b'");
    assert_int_equal(g->count, 2);
    assert_int_equal(out, -1);
    opq_graph_destroy(g);
}

static void accessors_read_in_order(void **state)
{
    (void)state;
    opq_graph *g = new_graph();
    opq_ref a = input(g, OPQ_f32, 2, two_three);
    opq_ref n = op(g, OPQ_OP_neg, &a, 1, NULL, 0);
    input(g, OPQ_i8, 0, NULL);
    expect_ok(opq_graph_output(g, n));
    expect_ok(opq_graph_output(g, a));
    opq_type first = opq_graph_input_type(g, 0), second = opq_graph_input_type(g, 1), out = opq_graph_output_type(g, 0);
    assert_int_equal(opq_graph_input_count(g), 2);
    assert_int_equal(opq_graph_output_count(g), 2);
    assert_int_equal(first.dtype, OPQ_f32);
    assert_int_equal(second.dtype, OPQ_i8);
    assert_int_equal(out.size[1], 3);
    assert_int_equal(opq_type_count(&out), 6);
    assert_int_equal(opq_type_bytes(&out), 24);
    assert_int_equal(opq_type_count(&second), 1);
    opq_graph_destroy(g);
}

/* A copied node has its own operands, attributes and line; the graph it came from may go. */
static void copies_outlive_their_source(void **state)
{
    (void)state;
    int payload;
    opq_graph *from = graph_of_text("graph @from {\n"
                                    "  %0 = input f32[2,3]\n"
                                    "  %1 = input f32[2,3]\n"
                                    "  kernel extern @k {\n"
                                    "    %2 = extern f32[2] %1, %0 {key=\"call\"}  # a.py:1\n"
                                    "  }\n"
                                    "}\n");
    opq_graph *to = new_graph();
    opq_ref renamed[3] = {-1, -1, -1};
    from->nodes[2].payload = &payload;
    expect_ok(opq_graph_copy_node(to, from, 1, renamed, &renamed[1]));
    expect_ok(opq_graph_copy_node(to, from, 0, renamed, &renamed[0]));
    expect_ok(opq_graph_copy_node(to, from, 2, renamed, &renamed[2]));
    assert_int_equal(from->nodes[2].operand[0], 1);
    opq_graph_destroy(from);
    assert_ptr_equal(to->nodes[2].payload, &payload);
    assert_int_equal(to->nodes[2].kernel, -1);
    expect_graph(to, "graph @g {\n"
                     "  %0 = input f32[2,3]\n"
                     "  %1 = input f32[2,3]\n"
                     "  %2 = extern f32[2] %0, %1 {key=\"call\"}  # a.py:1\n"
                     "}\n");
}

static void kernels_take_free_nodes(void **state)
{
    (void)state;
    opq_graph *g = new_graph();
    opq_ref a = input(g, OPQ_f32, 2, two_three);
    for (int i = 0; i < 4; i++)
        a = op(g, OPQ_OP_neg, &a, 1, NULL, 0);
    expect_ok(opq_graph_add_kernel(g, OPQ_KERNEL_map, "k0", 1, 2));
    assert_int_equal(g->nodes[0].kernel, -1);
    assert_int_equal(g->nodes[2].kernel, 0);
    expect_failure(opq_graph_add_kernel(g, OPQ_KERNEL_map, "k1", 2, 2), OPQ_INVALID,
                   "kernel k1: 2 nodes from %2, but %3 .. %4 are free");
    expect_failure(opq_graph_add_kernel(g, OPQ_KERNEL_map, "k1", 4, 2), OPQ_INVALID,
                   "kernel k1: 2 nodes from %4, but %3 .. %4 are free");
    expect_failure(opq_graph_add_kernel(g, OPQ_KERNEL_map, "k1", 3, 0), OPQ_INVALID,
                   "kernel k1: 0 nodes from %3, but %3 .. %4 are free");
    expect_failure(opq_graph_add_kernel(g, OPQ_KERNEL_map, "", 3, 1), OPQ_INVALID, "a kernel cannot be named ''");
    expect_ok(opq_graph_add_kernel(g, OPQ_KERNEL_row, "k1", 3, 2));
    expect_ok(opq_graph_verify(g));
    opq_graph_destroy(g);
}

static void arenas_align_and_zero(void **state)
{
    (void)state;
    opq_arena arena = {0};
    for (size_t bytes = 0; bytes < 9000; bytes = bytes * 2 + 1) {
        unsigned char *block = opq_arena_alloc(&arena, bytes);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % 16, 0);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(block[i], 0);
        memset(block, 0xff, bytes);
    }
    assert_null(opq_arena_alloc(&arena, SIZE_MAX - 8));
    assert_string_equal(opq_arena_text(&arena, "text"), "text");
    opq_arena_drop(&arena);
    assert_null(arena.blocks);
}

static void text_grows(void **state)
{
    (void)state;
    opq_text text = {0};
    char *taken;
    for (int i = 0; i < 1000; i++)
        opq_text_add(&text, "%d,", i);
    opq_text_bytes(&text, "\0x", 2);
    assert_int_equal(text.length, 10 * 2 + 90 * 3 + 900 * 4 + 2);
    assert_int_equal(memcmp(text.data + text.length - 6, "999,\0x", 6), 0);
    expect_ok(opq_text_take(&text, &taken));
    free(taken);
    assert_null(text.data);
    expect_ok(opq_text_take(&text, &taken)); /* nothing added: the empty string */
    assert_string_equal(taken, "");
    free(taken);
}

/* A message may be made from the one before. */
static void messages_nest(void **state)
{
    (void)state;
    assert_int_equal(opq_fail(OPQ_CODEGEN, "inner %d", 1), OPQ_CODEGEN);
    assert_int_equal(opq_fail(OPQ_INVALID, "outer: %s", opq_error()), OPQ_INVALID);
    assert_string_equal(opq_error(), "outer: inner 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_are_cast_to_the_compute_dtype),
        cmocka_unit_test(weak_numbers_do_not_widen),
        cmocka_unit_test(numbers_are_rounded_to_their_dtype),
        cmocka_unit_test(attributes_are_sorted_and_completed),
        cmocka_unit_test(failures_append_nothing),
        cmocka_unit_test(accessors_read_in_order),
        cmocka_unit_test(copies_outlive_their_source),
        cmocka_unit_test(kernels_take_free_nodes),
        cmocka_unit_test(arenas_align_and_zero),
        cmocka_unit_test(text_grows),
        cmocka_unit_test(messages_nest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
