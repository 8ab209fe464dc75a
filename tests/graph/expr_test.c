/* Expansion of composite rows: graph in, graph out, as text. */
#include "tests/support.h"

#include "graph/graph.h"

#include <stdio.h>

enum { NODES_MAX = 64 };

/* A copy with every composite row expanded; NULL after a failure. */
static opq_graph *expanded(const opq_graph *in)
{
    opq_ref renamed[NODES_MAX], operands[8];
    opq_graph *out;
    assert_in_range(in->count, 0, NODES_MAX);
    expect_ok(opq_graph_create(in->name, &out));
    for (opq_ref n = 0; n < in->count; n++) {
        const opq_node *node = opq_node_at(in, n);
        bool plain =
            opq_op_lowering((opq_op)node->op)->kind != OPQ_LOWER_EXPAND && opq_node_class(node) != OPQ_CLASS_COMPOSITE;
        for (int k = 0; !plain && k < node->arity; k++)
            operands[k] = renamed[node->operand[k]];
        opq_status status = plain ? opq_graph_copy_node(out, in, n, renamed, &renamed[n])
                                  : opq_expand_node(out, node, operands, &renamed[n]);
        if (status != OPQ_OK) {
            opq_graph_destroy(out);
            return NULL;
        }
    }
    for (int i = 0; i < in->output_count; i++)
        expect_ok(opq_graph_output(out, renamed[in->outputs[i]]));
    return out;
}

/* Bodies of graphs: what stands between the braces. */
static const struct {
    const char *in, *out;
} rows[] = {
    {"  %0 = input f32[2,3]\n"
     "  %1 = silu f32[2,3] %0\n"
     "  output %1\n",
     "  %0 = input f32[2,3]\n"
     "  %1 = sigmoid f32[2,3] %0\n"
     "  %2 = mul f32[2,3] %0, %1\n"
     "  output %2\n"},
    /* operands broadcast; a number takes their dtype, signs belong to numbers, equal numbers are one const */
    {"  %0 = input f32[5]\n"
     "  %1 = input f32[2,1]\n"
     "  %2 = hardsigmoid_backward f32[2,5] %0, %1\n"
     "  output %2\n",
     "  %0 = input f32[5]\n"
     "  %1 = input f32[2,1]\n"
     "  %2 = const f32[] {value=-3}\n"
     "  %3 = gt bool[2,1] %1, %2\n"
     "  %4 = const f32[] {value=3}\n"
     "  %5 = lt bool[2,1] %1, %4\n"
     "  %6 = bitwise_and bool[2,1] %3, %5\n"
     "  %7 = const f32[] {value=6}\n"
     "  %8 = div f32[5] %0, %7\n"
     "  %9 = const f32[] {value=0}\n"
     "  %10 = where f32[2,5] %6, %8, %9\n"
     "  output %10\n"},
    {"  %0 = input f64[4]\n"
     "  %1 = gelu f64[4] %0\n"
     "  output %1\n",
     "  %0 = input f64[4]\n"
     "  %1 = const f64[] {value=0.5}\n"
     "  %2 = mul f64[4] %1, %0\n"
     "  %3 = const f64[] {value=0.7071067811865476}\n"
     "  %4 = mul f64[4] %0, %3\n"
     "  %5 = erf f64[4] %4\n"
     "  %6 = const f64[] {value=1}\n"
     "  %7 = add f64[4] %6, %5\n"
     "  %8 = mul f64[4] %2, %7\n"
     "  output %8\n"},
    /* a minus before an operand is neg, and calls nest */
    {"  %0 = input f32[4]\n"
     "  %1 = log_sigmoid f32[4] %0\n"
     "  output %1\n",
     "  %0 = input f32[4]\n"
     "  %1 = const f32[] {value=0}\n"
     "  %2 = minimum f32[4] %0, %1\n"
     "  %3 = abs f32[4] %0\n"
     "  %4 = neg f32[4] %3\n"
     "  %5 = exp f32[4] %4\n"
     "  %6 = log1p f32[4] %5\n"
     "  %7 = sub f32[4] %2, %6\n"
     "  output %7\n"},
    /* parts come first, and are built once; subtraction is from the left */
    {"  %0 = input f16[4]\n"
     "  %1 = silu_backward f16[4] %0, %0\n"
     "  output %1\n",
     "  %0 = input f16[4]\n"
     "  %1 = sigmoid f16[4] %0\n"
     "  %2 = mul f16[4] %0, %1\n"
     "  %3 = const f16[] {value=1}\n"
     "  %4 = sub f16[4] %3, %1\n"
     "  %5 = mul f16[4] %0, %4\n"
     "  %6 = add f16[4] %3, %5\n"
     "  %7 = mul f16[4] %2, %6\n"
     "  output %7\n"},
    {"  %0 = input f32[2,3]\n"
     "  %1 = softmax f32[2,3] %0 {axes=[0], tree=column}\n"
     "  output %1\n",
     "  %0 = input f32[2,3]\n"
     "  %1 = amax f32[1,3] %0 {axes=[0], tree=column}\n"
     "  %2 = sub f32[2,3] %0, %1\n"
     "  %3 = exp f32[2,3] %2\n"
     "  %4 = sum f32[1,3] %3 {axes=[0], tree=column}\n"
     "  %5 = div f32[2,3] %3, %4\n"
     "  output %5\n"},
    /* an inner row expands, too; later parts use earlier ones */
    {"  %0 = input f32[2,3]\n"
     "  %1 = input f32[]\n"
     "  %2 = var f32[2,1] %0, %1 {axes=[1], tree=lanes}\n"
     "  output %2\n",
     "  %0 = input f32[2,3]\n"
     "  %1 = input f32[]\n"
     "  %2 = sum f32[2,1] %0 {axes=[1], tree=lanes}\n"
     "  %3 = count f32[1,1] %0 {axes=[1], tree=lanes}\n"
     "  %4 = div f32[2,1] %2, %3\n"
     "  %5 = sub f32[2,3] %0, %4\n"
     "  %6 = sub f32[2,3] %0, %4\n"
     "  %7 = mul f32[2,3] %5, %6\n"
     "  %8 = sum f32[2,1] %7 {axes=[1], tree=lanes}\n"
     "  %9 = count f32[1,1] %0 {axes=[1], tree=lanes}\n"
     "  %10 = sub f32[1,1] %9, %1\n"
     "  %11 = const f32[] {value=0}\n"
     "  %12 = maximum f32[1,1] %10, %11\n"
     "  %13 = div f32[2,1] %8, %12\n"
     "  output %13\n"},
    {"  %0 = input f32[3]\n"
     "  %1 = logsumexp f32[1] %0 {axes=[0], tree=lanes}\n"
     "  output %1\n",
     "  %0 = input f32[3]\n"
     "  %1 = amax f32[1] %0 {axes=[0], tree=lanes}\n"
     "  %2 = abs f32[1] %1\n"
     "  %3 = const f32[] {value=inf}\n"
     "  %4 = eq bool[1] %2, %3\n"
     "  %5 = const f32[] {value=0}\n"
     "  %6 = where f32[1] %4, %5, %1\n"
     "  %7 = sub f32[3] %0, %6\n"
     "  %8 = exp f32[3] %7\n"
     "  %9 = sum f32[1] %8 {axes=[0], tree=lanes}\n"
     "  %10 = log f32[1] %9\n"
     "  %11 = add f32[1] %10, %6\n"
     "  output %11\n"},
    /* integers: numbers are integers, and what is none is compared in f32 */
    {"  %0 = input u8[4]\n"
     "  %1 = relu6 u8[4] %0\n"
     "  output %1\n",
     "  %0 = input u8[4]\n"
     "  %1 = const u8[] {value=0}\n"
     "  %2 = maximum u8[4] %1, %0\n"
     "  %3 = const u8[] {value=6}\n"
     "  %4 = minimum u8[4] %2, %3\n"
     "  output %4\n"},
    {"  %0 = input i32[4]\n"
     "  %1 = isneginf bool[4] %0\n"
     "  output %1\n",
     "  %0 = input i32[4]\n"
     "  %1 = cast f32[4] %0\n"
     "  %2 = const f32[] {value=-inf}\n"
     "  %3 = eq bool[4] %1, %2\n"
     "  output %3\n"},
    {"  %0 = input bool[4]\n"
     "  %1 = input bool[]\n"
     "  %2 = logical_xor bool[4] %0, %1\n"
     "  output %2\n",
     "  %0 = input bool[4]\n"
     "  %1 = input bool[]\n"
     "  %2 = const bool[] {value=0}\n"
     "  %3 = ne bool[4] %0, %2\n"
     "  %4 = ne bool[] %1, %2\n"
     "  %5 = bitwise_xor bool[4] %3, %4\n"
     "  output %5\n"},
    /* operands out of order */
    {"  %0 = input f32[2]\n"
     "  %1 = input bool[2]\n"
     "  %2 = input f32[]\n"
     "  %3 = masked_fill f32[2] %0, %1, %2\n"
     "  output %3\n",
     "  %0 = input f32[2]\n"
     "  %1 = input bool[2]\n"
     "  %2 = input f32[]\n"
     "  %3 = where f32[2] %1, %2, %0\n"
     "  output %3\n"},
    /* every new node has the line of the old one */
    {"  %0 = input f32[2]  # train.py:40\n"
     "  %1 = rsqrt f32[2] %0  # train.py:41\n"
     "  output %1\n",
     "  %0 = input f32[2]  # train.py:40\n"
     "  %1 = sqrt f32[2] %0  # train.py:41\n"
     "  %2 = const f32[] {value=1}  # train.py:41\n"
     "  %3 = div f32[2] %2, %1  # train.py:41\n"
     "  output %3\n"},
    {"  %0 = input bf16[2,4,8]\n"
     "  %1 = input bf16[2,6,8]\n"
     "  %2 = input bf16[2,6,3]\n"
     "  %3 = scalar bf16[] {value=0.25}\n"
     "  %4 = input bf16[4,6]\n"
     "  %5 = attention_mask bf16[2,4,3] %0, %1, %2, %3, %4\n"
     "  output %5\n",
     "  %0 = input bf16[2,4,8]\n"
     "  %1 = input bf16[2,6,8]\n"
     "  %2 = input bf16[2,6,3]\n"
     "  %4 = input bf16[4,6]\n"
     "  %5 = matmul bf16[2,4,6] %0, %1 {transpose_b=1}\n"
     "  %6 = mul bf16[2,4,6] %5, 0.25\n"
     "  %7 = add bf16[2,4,6] %6, %4\n"
     "  %8 = amax bf16[2,4,1] %7 {axes=[2], tree=lanes}\n"
     "  %9 = sub bf16[2,4,6] %7, %8\n"
     "  %10 = exp bf16[2,4,6] %9\n"
     "  %11 = sum bf16[2,4,1] %10 {axes=[2], tree=lanes}\n"
     "  %12 = div bf16[2,4,6] %10, %11\n"
     "  %13 = matmul bf16[2,4,3] %12, %2\n"
     "  output %13\n"},
};

static void rows_expand_as_written(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[2048], expect[2048];
        snprintf(text, sizeof text, "graph @g {\n%s}\n", rows[i].in);
        snprintf(expect, sizeof expect, "graph @g {\n%s}\n", rows[i].out);
        opq_graph *in = graph_of_text(text), *out = expanded(in);
        if (out == NULL)
            fail_msg("row %zu: %s", i, opq_error());
        char *printed = text_of_graph(out);
        expect_text(printed, expect, "row %zu", i);
        expect_ok(opq_graph_verify(out));
        free(printed);
        opq_graph_destroy(in);
        opq_graph_destroy(out);
    }
}

/* ---- all rows of the table, for all dtypes that they take */

static bool build(opq_graph *graph, opq_op op, opq_dtype dtype)
{
    const opq_op_info *info = opq_op_info_of(op);
    const int64_t axes[] = {1};
    const opq_attr attr = {.key = OPQ_ATTR_axes, .count = 1, .ints = axes};
    opq_ref operands[8], ref;
    for (int k = 0; k < info->arity; k++) {
        bool condition = !opq_operand_promotes(op, k);
        opq_type type = opq_type_make(condition ? OPQ_bool : dtype, 2, (const int64_t[]){k == 0 ? 2 : 1, 3});
        expect_ok(opq_graph_input(graph, &type, &operands[k]));
    }
    if (opq_graph_op(graph, op, operands, info->arity, &attr, info->class_ == OPQ_CLASS_COMPOSITE, &ref) != OPQ_OK)
        return false;
    expect_ok(opq_graph_output(graph, ref));
    return true;
}

static bool is_integer(opq_dtype dtype) { return opq_dtype_kind_of(dtype) != OPQ_KIND_FLOAT; }

static void expect_expansion(opq_op op, opq_dtype dtype)
{
    opq_graph *in, *out;
    expect_ok(opq_graph_create("row", &in));
    if (build(in, op, dtype)) {
        out = expanded(in);
        if (out == NULL && !(is_integer(dtype) && strstr(opq_error(), "is not a value of")))
            fail_msg("%s of %s: %s", opq_op_info_of(op)->name, opq_dtype_name(dtype), opq_error());
        if (out != NULL) {
            opq_type from = opq_graph_output_type(in, 0), to = opq_graph_output_type(out, 0);
            assert_true(opq_type_equal(&from, &to));
            expect_ok(opq_graph_verify(out));
            for (opq_ref n = 0; n < out->count; n++)
                assert_int_not_equal(opq_op_lowering((opq_op)opq_node_at(out, n)->op)->kind, OPQ_LOWER_EXPAND);
            opq_graph_destroy(out);
        }
    }
    opq_graph_destroy(in);
}

static void every_row_expands(void **state)
{
    (void)state;
    int found = 0;
    for (int op = 0; op < OPQ_OP_COUNT; op++) {
        if (opq_op_lowering((opq_op)op)->kind != OPQ_LOWER_EXPAND)
            continue;
        found++;
        for (int dtype = OPQ_bool; dtype <= OPQ_f64; dtype++)
            expect_expansion((opq_op)op, (opq_dtype)dtype);
    }
    assert_in_range(found, 50, OPQ_OP_COUNT);
}

static void other_rows_are_refused(void **state)
{
    (void)state;
    opq_graph *graph = graph_of_text("graph @g {\n  %0 = input f32[2]\n  %1 = exp f32[2] %0\n  output %1\n}\n"), *out;
    opq_type type = opq_graph_type(graph, 0);
    opq_ref ref;
    expect_ok(opq_graph_create("out", &out));
    expect_ok(opq_graph_input(out, &type, &ref));
    expect_failure(opq_expand_node(out, opq_node_at(graph, 1), &ref, &ref), OPQ_INVALID, "exp: not a composite row");
    opq_graph_destroy(graph);
    opq_graph_destroy(out);
}

/* A number that the dtype has not is an error, not another number. */
static void numbers_must_fit(void **state)
{
    (void)state;
    opq_graph *in = graph_of_text(
        "graph @g {\n  %0 = input i32[2]\n  %1 = input bool[2]\n  %2 = causal_mask i32[2] %0, %1\n  output %2\n}\n");
    assert_null(expanded(in));
    assert_string_equal(opq_error(), "causal_mask: -inf is not a value of i32");
    opq_graph_destroy(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_expand_as_written),
        cmocka_unit_test(every_row_expands),
        cmocka_unit_test(other_rows_are_refused),
        cmocka_unit_test(numbers_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
