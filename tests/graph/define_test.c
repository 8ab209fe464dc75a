/* Rows of the op table that are made at run time. */
#include "tests/support.h"

#include "graph/graph.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static opq_op defined(const char *signature, const char *expression)
{
    opq_op op = OPQ_OP_extern;
    expect_ok(opq_define_op(signature, expression, &op));
    return op;
}

static void a_row_is_found(void **state)
{
    (void)state;
    opq_op op = defined("t::softcap(x, c)", "c * tanh(x / c)"), found;
    const opq_op_info *info = opq_op_info_of(op);
    assert_true(op >= OPQ_OP_DEFINED && op < OPQ_OP_LIMIT && opq_op_exists((int)op));
    assert_false(opq_op_exists(OPQ_OP_LIMIT - 1) || opq_op_exists(OPQ_OP_COUNT) || opq_op_exists(-1));
    assert_string_equal(info->name, "t::softcap");
    assert_string_equal(info->operands, "x, c");
    assert_int_equal(info->arity, 2);
    assert_int_equal(info->class_, OPQ_CLASS_EWISE);
    assert_true(opq_op_find("t::softcap(", 10, &found) && found == op);
    assert_false(opq_op_find("t::soft", 7, &found) || opq_op_find("softcap", 7, &found));
    assert_int_equal(opq_op_operand(info, "c", 1), 1);
    assert_int_equal(opq_op_operand(info, "d", 1), -1);
}

static void the_same_words_are_the_same_row(void **state)
{
    (void)state;
    opq_op op = defined("t::same(x)", "x * 2"), other = OPQ_OP_extern;
    assert_int_equal(defined("t::same( x )", "x * 2"), op);
    expect_failure(opq_define_op("t::same(x)", "x * 3", &other), OPQ_INVALID,
                   "t::same is defined already, as (x) = x * 2");
    expect_failure(opq_define_op("t::same(y)", "y * 2", &other), OPQ_INVALID,
                   "t::same is defined already, as (x) = x * 2");
}

/* The dtypes that a row takes and gives follow from its expression. */
static const struct {
    const char *signature, *expression;
    opq_dtype_rule rule;
    unsigned flags;
} kinds[] = {
    {"t::sum2(x, y)", "x + y", OPQ_RULE_SAME, OPQ_FLAG_CHEAP},
    {"t::exp2x(x)", "exp(2 * x)", OPQ_RULE_FLOAT, 0},
    {"t::half(x)", "0.5 * x", OPQ_RULE_FLOAT, OPQ_FLAG_CHEAP},
    {"t::more(x, y)", "x > y", OPQ_RULE_BOOL, OPQ_FLAG_CHEAP},
    {"t::bits(x, y, k)", "(x ^ y) & k", OPQ_RULE_SAME, OPQ_FLAG_CHEAP | OPQ_FLAG_NOFLOAT},
    {"t::silu2(x)", "silu(x) + x", OPQ_RULE_SAME, OPQ_FLAG_NOINT | OPQ_FLAG_NOBOOL},
    {"t::tan2(x)", "tan(x)", OPQ_RULE_FLOAT, OPQ_FLAG_MATH32},
    {"t::double(x)", "x * 2", OPQ_RULE_SAME, OPQ_FLAG_CHEAP | OPQ_FLAG_NOBOOL},
    {"t::pick(m, x, y)", "where(m, x, y)", OPQ_RULE_SAME, OPQ_FLAG_CHEAP},
    {"t::one(x)", "1", OPQ_RULE_SAME, OPQ_FLAG_CHEAP},
};

static void dtypes_follow_from_the_expression(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const opq_op_info *info = opq_op_info_of(defined(kinds[i].signature, kinds[i].expression));
        print_message("%s\n", kinds[i].signature);
        assert_int_equal(info->rule, kinds[i].rule);
        assert_int_equal(info->flags, kinds[i].flags);
    }
}

static const struct {
    const char *signature, *expression, *message;
} mistakes[] = {
    {"softcap(x)", "x", "signature 'softcap(x)', column 8: the name wants a namespace, as in ns::name"},
    {"t::(x)", "x", "signature 't::(x)', column 4: a name expected"},
    {"t::e x", "x", "signature 't::e x', column 6: '(' expected"},
    {"t::e()", "1", "signature 't::e()', column 6: an operand's name expected"},
    {"t::e(x, x)", "x", "signature 't::e(x, x)', column 9: two operands of one name"},
    {"t::e(inf)", "1", "signature 't::e(inf)', column 6: this word has another meaning in expressions"},
    {"t::e(x", "x", "signature 't::e(x', column 7: ',' or ')' expected"},
    {"t::e(x) y", "x", "signature 't::e(x) y', column 8: text behind the signature"},
    {"t::e(a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q)", "a",
     "signature 't::e(a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q)', column 38: too many operands"},
    {"t::e(x)", "", "t::e: expression, column 1: operand expected"},
    {"t::e(x)", "x + y", "t::e: expression, column 5: no operand or part is named 'y'"},
    {"t::e(x)", "2 * tahn(x)", "t::e: expression, column 5: no function is named 'tahn'"},
    {"t::e(x)", "(x + 1", "t::e: expression, column 7: ')' expected"},
    {"t::e(x)", "x 2", "t::e: expression, column 3: operator expected"},
    {"t::e(x)", "x + sum(x)", "t::e: expression, column 5: sum is not elementwise"},
    {"t::e(x)", "pow(x)", "t::e: expression, column 1: pow takes 2 operands, not 1"},
    {"t::e(x)", "x & 0.5", "t::e: expression, column 3: bitwise_and: not implemented for f32"},
    {"t::e(x)", "x * p where p = x * q", "t::e: expression, column 21: no operand or part is named 'q'"},
    {"t::e(x)", "x where x = 1", "t::e: expression, column 9: not a name for a part"},
    {"t::e(x)", "p where p = 1; p = 2", "t::e: expression, column 16: not a name for a part"},
    {"t::e(x)", "t::same(x)", "t::e: expression, column 1: no operand or part is named 't'"},
};

static void mistakes_name_the_column(void **state)
{
    (void)state;
    opq_op op = OPQ_OP_extern, found;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        expect_failure(opq_define_op(mistakes[i].signature, mistakes[i].expression, &op), OPQ_INVALID,
                       mistakes[i].message);
    assert_int_equal(op, OPQ_OP_extern);
    assert_false(opq_op_find("t::e", 4, &found));
}

/* What a process has that does not know the row is in the text. */
static void text_has_the_definition(void **state)
{
    (void)state;
    static const char text[] = "define t::gate(a, b) = a * sigmoid(b)\n"
                               "define t::twice(x) = t where t = x + x\n"
                               "graph @g {\n"
                               "  %0 = input f32[2,3]\n"
                               "  %1 = input f32[3]\n"
                               "  %2 = t::gate f32[2,3] %0, %1  # a.py:1\n"
                               "  %3 = t::twice f32[2,3] %2\n"
                               "  %4 = t::gate f32[2,3] %3, %0\n"
                               "  output %4\n"
                               "}\n";
    opq_graph *graph = graph_of_text(text);
    char *printed;
    expect_ok(opq_graph_verify(graph));
    expect_ok(opq_graph_print(graph, &printed));
    assert_string_equal(printed, text);
    free(printed);
    opq_graph_destroy(graph);
}

static void wrong_definitions_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } texts[] = {
        {"define t::h(x) x\ngraph @g {\n}\n", "line 1, column 17: expected '='"},
        {"define t::h(x) = x +\ngraph @g {\n}\n", "line 1, column 8: t::h: expression, column 4: operand expected"},
        {"define t::gate(a, b) = a\ngraph @g {\n}\n",
         "line 1, column 8: t::gate is defined already, as (a, b) = a * sigmoid(b)"},
        {"graph @g {\n  %0 = input f32[2]\n  %1 = t::nobody f32[2] %0\n}\n",
         "line 3, column 8: no op is named 't::nobody'"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        opq_graph *graph;
        expect_failure(opq_graph_parse(texts[i].text, strlen(texts[i].text), &graph), OPQ_INVALID, texts[i].message);
    }
}

/* One node, whose value is that of its expression: numbers of any form, parts, masks. */
static void rows_are_evaluated(void **state)
{
    (void)state;
    opq_op op = defined("t::mixed(x, mask, scale)",
                        "where(mask & (x > -1e9), big * scale + .5, - x) where big = x * 2.5e-1; _unused = big + 1");
    opq_graph *graph;
    opq_type row = opq_type_make(OPQ_f32, 1, (int64_t[]){3}), number = opq_type_make(OPQ_f32, 0, NULL);
    opq_type mask = opq_type_make(OPQ_bool, 1, (int64_t[]){3});
    opq_ref refs[3], result;
    expect_ok(opq_graph_create("g", &graph));
    expect_ok(opq_graph_input(graph, &row, &refs[0]));
    expect_ok(opq_graph_input(graph, &mask, &refs[1]));
    expect_ok(opq_graph_input(graph, &number, &refs[2]));
    expect_ok(opq_graph_op(graph, op, refs, 3, NULL, 0, &result));
    expect_ok(opq_graph_output(graph, result));
    float x[] = {4, 8, -3}, scale = 2, y[3];
    unsigned char m[] = {1, 0, 1};
    expect_ok(opq_graph_eval(graph, (const void *[]){x, m, &scale}, (void *[]){y}));
    assert_true(y[0] == 2.5f && y[1] == -8 && y[2] == -1);
    opq_graph_destroy(graph);
}

static void an_expression_is_a_graph(void **state)
{
    (void)state;
    opq_graph *graph;
    char *text;
    expect_ok(opq_graph_expression("t::any(x)", "silu(x) * 2", OPQ_f64, false, &graph));
    expect_ok(opq_graph_print(graph, &text));
    assert_string_equal(text, "graph @expression {\n"
                              "  %0 = input f64[]\n"
                              "  %1 = silu f64[] %0\n"
                              "  %2 = const f64[] {value=2}\n"
                              "  %3 = mul f64[] %1, %2\n"
                              "  output %3\n"
                              "}\n");
    free(text);
    opq_graph_destroy(graph);
    expect_failure(opq_graph_expression("t::any(x)", "x & x", OPQ_f64, true, &graph), OPQ_INVALID,
                   "t::any: expression, column 3: bitwise_and: not implemented for f64");
}

enum { THREADS = 8, NAMES = 64 };

static void *define_all(void *out)
{
    for (int i = 0; i < NAMES; i++) {
        char signature[32];
        snprintf(signature, sizeof signature, "t::thread%d(x)", i);
        if (opq_define_op(signature, "x + 1", &((opq_op *)out)[i]) != OPQ_OK)
            return out;
    }
    return NULL;
}

static void threads_agree(void **state)
{
    (void)state;
    static opq_op ops[THREADS][NAMES];
    pthread_t threads[THREADS];
    void *failed;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, define_all, ops[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    for (int i = 1; i < THREADS; i++)
        assert_memory_equal(ops[0], ops[i], sizeof ops[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_found),
        cmocka_unit_test(the_same_words_are_the_same_row),
        cmocka_unit_test(dtypes_follow_from_the_expression),
        cmocka_unit_test(mistakes_name_the_column),
        cmocka_unit_test(text_has_the_definition),
        cmocka_unit_test(wrong_definitions_are_refused),
        cmocka_unit_test(rows_are_evaluated),
        cmocka_unit_test(an_expression_is_a_graph),
        cmocka_unit_test(threads_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
