/* Text: what is printed parses to the same graph, what is written by hand is brought to that form, what is wrong is refused
 * with its place, and nothing at all crashes.
 */
#include "tests/support.h"

#include "graph/graph.h"

/* ---- round trips */

static const char *const canonical[] = {
    "graph @empty {\n}\n",
    "graph @g0 {\n"
    "  %0 = input f32[128,768]\n"
    "  %1 = input f32[3072,768]\n"
    "  %2 = input f32[3072]\n"
    "  %3 = matmul f32[128,3072] %0, %1 {transpose_b=1}\n"
    "  %4 = add f32[128,3072] %3, %2  # train.py:41\n"
    "  %5 = gelu f32[128,3072] %4\n"
    "  output %5\n"
    "}\n",
    /* every kind of attribute */
    "graph @attributes-1.b_azAZ09 {\n"
    "  %0 = iota i64[2,3] {axis=1}\n"
    "  %1 = permute i64[3,2] %0 {dims=[1,0]}\n"
    "  %2 = slice i64[2,1] %1 {start=[0,1], step=[2,1]}\n"
    "  %3 = strided i64[] %1 {offset=5, strides=[]}\n"
    "  %4 = update i64[3,2] %1, %2 {offset=0, sizes=[2,1], strides=[4,1]}\n"
    "  %5 = sum i64[1,1] %4 {axes=[0,1], tree=lanes}\n"
    "  %6 = sum i64[1,2] %4 {axes=[0], tree=column}\n"
    "  %7 = extern f32[0] %6, %3 {key=\"a \\\"b\\\" \\\\ \\x0a\\x7f \xc3\xa9 # }\"}  # \xc3\xa9.py:3\n"
    "  %8 = extern_result raw128[2] %7 {result=1}\n"
    "  %9 = matmul i64[3,3] %1, %4 {transpose_a=0, transpose_b=1}\n"
    "  output %8, %5, %8\n"
    "}\n",
    /* numbers */
    "graph @numbers {\n"
    "  %0 = const f64[] {value=0}\n"
    "  %1 = const f64[] {value=-0}\n"
    "  %2 = const f64[] {value=1}\n"
    "  %3 = const f64[] {value=-0.1}\n"
    "  %4 = const f64[] {value=5e-324}\n"
    "  %5 = const f64[] {value=1.1125369292536007e-308}\n"
    "  %6 = const f64[] {value=1.7976931348623157e+308}\n"
    "  %7 = const f64[] {value=inf}\n"
    "  %8 = const f64[] {value=-inf}\n"
    "  %9 = const f64[] {value=nan}\n"
    "  %10 = const f64[] {value=-nan}\n"
    "  %11 = const f64[] {value=nan(0x7ff4000000000001)}\n"
    "  %12 = const f64[] {value=nan(0xfff8000000000001)}\n"
    "  %13 = scalar f32[] {value=1e-45}\n"
    "  %14 = scalar f32[] {value=nan(0x7ff8000020000000)}\n"
    "  %15 = scalar f16[] {value=6.55e+04}\n"
    "  %16 = scalar bf16[] {value=1.01}\n"
    "  %17 = const i64[] {value=-9223372036854775808}\n"
    "  %18 = const i64[] {value=9223372036854775807}\n"
    "  %19 = const u8[] {value=255}\n"
    "  %20 = const bool[] {value=1}\n"
    "}\n",
    /* kernels */
    "graph @fused {\n"
    "  %0 = input f32[4,8]\n"
    "  kernel row @softmax_0 {\n"
    "    %1 = amax f32[4,1] %0 {axes=[1], tree=lanes}  # model.py:12\n"
    "    %2 = sub f32[4,8] %0, %1\n"
    "  }\n"
    "  kernel map @exp.1 {\n"
    "    %3 = exp f32[4,8] %2\n"
    "  }\n"
    "  %4 = input f32[4,8]\n"
    "  kernel update @u {\n"
    "    %5 = update f32[4,8] %4, %3 {offset=0, sizes=[4,8], strides=[8,1]}\n"
    "  }\n"
    "  output %3\n"
    "}\n",
};

static void canonical_text_stays(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(canonical); i++) {
        opq_graph *graph = graph_of_text(canonical[i]);
        char *text = text_of_graph(graph);
        expect_text(text, canonical[i], "row %zu", i);
        expect_ok(opq_graph_verify(graph));
        free(text);
        opq_graph_destroy(graph);
    }
}

static const struct {
    const char *written, *printed;
} by_hand[] = {
    {"# a file\n\n  # and its\r\n graph  @g {  # name\r\n\t%0=input f32[ 2 , 3 ]\n\n%1   =  neg f32[2,3] %0#no blank\n"
     "  # dropped\n  %2 = neg f32[2,3] %1           # a.py:1 \r\n  %3 = neg f32[2,3] %2 #\noutput %2 # dropped\n "
     "output "
     "%1,%0\n} # end\n#",
     "graph @g {\n  %0 = input f32[2,3]\n  %1 = neg f32[2,3] %0  # no blank\n  %2 = neg f32[2,3] %1  # a.py:1 \n"
     "  %3 = neg f32[2,3] %2\n  output %2, %1, %0\n}\n"},
    {"graph @g {\n%0 = input f32[2]\n%1 = sum f32[1] %0 { tree = lanes , axes = [ 0 ] }\n"
     "kernel  map  @k {  # why\n # dropped\n %2 = exp f32[1] %1\n } # end\n}",
     "graph @g {\n  %0 = input f32[2]\n  %1 = sum f32[1] %0 {axes=[0], tree=lanes}\n  kernel map @k {\n"
     "    %2 = exp f32[1] %1\n  }\n}\n"},
    {"graph @g {\n%0 = const f64[] {value=3}\n%1 = const f64[] {value=-0}\n%2 = const f32[] {value=0.1}\n"
     "%3 = const f64[] {value=1e-3}\n%4 = const f64[] {value=0x.8p0}\n%5 = const f64[] {value=0x10p-4}\n"
     "%6 = const f64[] {value=nan(0x7ff8000000000000)}\n%7 = const f16[] {value=1e9}\n%8 = const bool[] {value=7}\n"
     "%9 = const f64[] {value=0x1p-2000}\n}",
     "graph @g {\n  %0 = const f64[] {value=3}\n  %1 = const f64[] {value=-0}\n"
     "  %2 = const f32[] {value=0.1}\n  %3 = const f64[] {value=0.001}\n"
     "  %4 = const f64[] {value=0.5}\n  %5 = const f64[] {value=1}\n  %6 = const f64[] {value=nan}\n"
     "  %7 = const f16[] {value=inf}\n  %8 = const bool[] {value=1}\n  %9 = const f64[] {value=0}\n}\n"},
    {"graph @g {\n%0 = input f32[2]\n%1 = mul f32[2] %0, 0x1p-1\n%2 = ne bool[2] %1, f32 -inf\n output %2\n}",
     "graph @g {\n  %0 = input f32[2]\n  %2 = mul f32[2] %0, 0.5\n  %4 = ne bool[2] %2, f32 -inf\n  output %4\n}\n"},
    {"graph @g {\n%0 = extern f32[] {key=\"\\x41\\x0A\"} # a\tb\x01\n}",
     "graph @g {\n  %0 = extern f32[] {key=\"A\\x0a\"}  # a?b?\n}\n"},
};

static void text_by_hand_is_normalised(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(by_hand); i++) {
        opq_graph *graph = graph_of_text(by_hand[i].written), *again;
        char *text = text_of_graph(graph), *twice;
        expect_text(text, by_hand[i].printed, "row %zu", i);
        again = graph_of_text(text);
        twice = text_of_graph(again);
        assert_string_equal(twice, text);
        free(text);
        free(twice);
        opq_graph_destroy(graph);
        opq_graph_destroy(again);
    }
}

/* Every double, by its bits. */
static void numbers_round_trip(void **state)
{
    (void)state;
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < 5000; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        opq_number number = {.i = (int64_t)(i % 3 ? random : random & 0x800fffffffffffffu)};
        opq_graph *graph, *again;
        opq_ref ref;
        expect_ok(opq_graph_create("g", &graph));
        expect_ok(opq_graph_const(graph, OPQ_f64, number, &ref));
        char *text = text_of_graph(graph);
        again = graph_of_text(text);
        assert_memory_equal(&again->nodes[0].attr[0].number, &number, sizeof number);
        free(text);
        opq_graph_destroy(graph);
        opq_graph_destroy(again);
    }
}

/* ---- errors */

#define NODES "graph @g {\n  %0 = input f32[2,3]\n"

static const struct {
    const char *text, *message;
} errors[] = {
    {"", "line 1, column 1: expected 'graph '"},
    {"\n  grape", "line 2, column 3: expected 'graph '"},
    {"graph g {", "line 1, column 7: expected '@'"},
    {"graph @ {", "line 1, column 8: expected a name of 1 to 255 characters"},
    {"graph @g", "line 1, column 9: expected '{'"},
    {"graph @g { }", "line 1, column 12: expected the end of the line"},
    {"graph @g {\n", "line 2, column 1: expected a node, a kernel, output or '}'"},
    {"graph @g {\n}\nx", "line 3, column 1: text after the graph"},
    {"graph @g {\n}\n}", "line 3, column 1: text after the graph"},
    {NODES "  %2 = neg f32[2,3] %0\n}",
     "line 3, column 3: 1 numbers of nodes are left out up to here, but only 0 scalars are operands"},
    {NODES "  % = neg", "line 3, column 5: expected an integer"},
    {NODES "  %99999999999999999999 = neg", "line 3, column 4: integer out of range"},
    {NODES "  %1 neg", "line 3, column 6: expected '='"},
    {NODES "  %1 = nag f32[2,3] %0\n}", "line 3, column 8: no op is named 'nag'"},
    {NODES "  %1 = neg\n}", "line 3, column 11: expected a word"},
    {NODES "  %1 = neg f33[2,3] %0\n}", "line 3, column 12: no dtype is named 'f33'"},
    {NODES "  %1 = neg f32 %0\n}", "line 3, column 16: expected '['"},
    {NODES "  %1 = neg f32[2,] %0\n}", "line 3, column 18: expected an integer"},
    {NODES "  %1 = neg f32[2 3] %0\n}", "line 3, column 18: expected ']'"},
    {NODES "  %1 = input f32[-1]\n}", "line 3, column 14: type: negative extent in [-1]"},
    {NODES "  %1 = input f32[4611686018427387904,0]\n}",
     "line 3, column 14: type: shape [4611686018427387904,0] is too large"},
    {NODES "  %1 = input f32[1,1,1,1,1,1,1,1,1,1,1,1,1]\n}", "line 3, column 42: more than 12 dimensions"},
    {NODES "  %1 = neg f32[2,3] %1\n}", "line 3, column 21: no node of that number before this line"},
    {NODES "  %1 = neg f32[2,3] %-1\n}", "line 3, column 21: no node of that number before this line"},
    {NODES "  %1 = neg f32[2,3] %0,\n}", "line 3, column 24: expected '%' or a number"},
    {NODES "  %1 = neg f32[2,3] %0 %0\n}", "line 3, column 24: expected the end of the line"},
    {NODES "  %1 = neg f32[2,3]\n}", "line 3, column 8: neg: takes 1 operands, got 0"},
    {NODES "  %1 = neg f32[3,2] %0\n}", "line 3, column 8: neg: gives f32[2,3], not f32[3,2]"},
    {NODES "  %1 = neg f64[2,3] %0\n}", "line 3, column 8: neg: gives f32[2,3], not f64[2,3]"},
    {NODES "  %1 = input i64[3]\n  %2 = add f32[2,3] %0, %1\n}",
     "line 4, column 8: add: operand 1 is i64 and needs a cast to f32"},
    {NODES "  %1 = sum f32[2,1] %0 {axes=[1]}\n}", "line 3, column 8: sum: attribute tree missing"},
    {NODES "  %1 = sum f32[2,1] %0 {axes=[1], tree=oak}\n}", "line 3, column 40: expected lanes or column"},
    {NODES "  %1 = sum f32[2,1] %0 {axis=1}\n}", "line 3, column 8: sum: attribute tree missing"},
    {NODES "  %1 = sum f32[2,1] %0 {axis=1, tree=lanes}\n}", "line 3, column 8: sum: has no attribute axis"},
    {NODES "  %1 = neg f32[2,3] %0 {axes=[1]}\n}", "line 3, column 8: neg: has no attribute axes"},
    {NODES "  %1 = neg f32[2,3] %0 {}\n}", "line 3, column 25: expected a word"},
    {NODES "  %1 = neg f32[2,3] %0 {size=1}\n}", "line 3, column 25: no attribute is named 'size'"},
    {NODES "  %1 = iota i64[3] {axis=0, axis=0}\n}", "line 3, column 29: attribute axis given twice"},
    {NODES "  %1 = iota i64[3] {axis=x}\n}", "line 3, column 26: expected an integer"},
    {NODES "  %1 = iota i64[3] {axis=0\n}", "line 3, column 27: expected '}'"},
    {NODES "  %1 = extern f32[2] {key=\"ab}\n}", "line 3, column 27: string without an end"},
    {NODES "  %1 = extern f32[2] {key=\"a\\n\"}\n}", "line 3, column 29: no such escape in a string"},
    {NODES "  %1 = extern f32[2] {key=\"a\\x00\"}\n}", "line 3, column 29: no such escape in a string"},
    {NODES "  %1 = extern f32[2] {key=\"a\tb\"}\n}", "line 3, column 29: control character in a string"},
    {NODES "  %1 = extern_result f32[2] %0 {result=1}\n}", "line 3, column 8: extern_result: %0 is no extern call"},
    {NODES "  %1 = const f32[] {value=}\n}", "line 3, column 27: expected a number"},
    {NODES "  %1 = mul f32[2] %0, 1x\n}", "line 3, column 24: expected the end of the line"},
    {NODES "  %1 = mul f32[2] %0, f31 1\n}", "line 3, column 23: expected a number"},
    {NODES "  %1 = mul f32[2] %0, i8 300\n}", "line 3, column 26: value: 300 does not fit i8"},
    {NODES "  %2 = mul f32[2] %0, %1\n}", "line 3, column 23: no node of that number before this line"},
    {NODES "  %3 = mul f32[2,3] %0, 1\n}",
     "line 3, column 3: 2 numbers of nodes are left out up to here, but only 1 scalars are operands"},
    {NODES "  %1 = const f32[] {value=0x1}\n}", "line 3, column 30: expected 'p'"},
    {NODES "  %1 = const f32[] {value=0x1p}\n}", "line 3, column 31: expected an integer"},
    {NODES "  %1 = const f32[] {value=0xp1}\n}", "line 3, column 27: expected a hexadecimal float"},
    {NODES "  %1 = const f32[] {value=0x1p99999999}\n}", "line 3, column 27: exponent out of range"},
    {NODES "  %1 = const f32[] {value=0x1p2000}\n}", "line 3, column 27: number out of range"},
    {NODES "  %1 = const f32[] {value=1e999}\n}", "line 3, column 27: number out of range"},
    {NODES "  %1 = const f32[] {value=1.2.3}\n}", "line 3, column 27: expected a number"},
    {NODES "  %1 = const f32[] {value=0x123456789abcdef01p0}\n}", "line 3, column 27: more digits than a double has"},
    {NODES "  %1 = const f32[] {value=nan(0x7ff8)}\n}",
     "line 3, column 27: expected nan(0x...) with 16 digits and no sign"},
    {NODES "  %1 = const f32[] {value=nan(0x7ff0000000000000)}\n}", "line 3, column 27: the bits are no NaN"},
    {NODES "  %1 = const i8[] {value=0x1p+0}\n}", "line 3, column 27: expected '}'"},
    {NODES "  %1 = const i8[] {value=128}\n}", "line 3, column 26: value: 128 does not fit i8"},
    {NODES "  %1 = const i64[] {value=9223372036854775808}\n}", "line 3, column 27: integer out of range"},
    {NODES "  %1 = const raw8[] {value=1}\n}", "line 3, column 28: value: not implemented for raw8"},
    {NODES "  %1 = permute f32[3,2] %0 {dims=1,0]}\n}", "line 3, column 34: expected '['"},
    {NODES "  kernel map @a {\n  }\n}", "line 3, column 3: kernel a: 0 nodes from %1, but %0 .. %0 are free"},
    {NODES "  kernel mop @a {\n  }\n}", "line 3, column 10: no kind of kernel is named 'mop'"},
    {NODES "  kernel map a {\n  }\n}", "line 3, column 14: expected '@'"},
    {NODES "  kernel map @a {\n  kernel map @b {\n  }\n  }\n}", "line 4, column 3: a kernel inside a kernel"},
    {NODES "  kernel map @a {\n  output %0\n  }\n}", "line 4, column 3: output inside a kernel"},
    {NODES "  kernel map @a {\n    %1 = neg f32[2,3] %0\n  }\n",
     "line 6, column 1: expected a node, a kernel, output or '}'"},
    {NODES "  output\n}", "line 3, column 3: expected a node, a kernel, output or '}'"},
    {NODES "  output %1\n}", "line 3, column 10: no node of that number before this line"},
    {NODES "  output %0 %0\n}", "line 3, column 13: expected the end of the line"},
};

static void errors_name_their_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(errors); i++) {
        opq_graph *graph = NULL;
        opq_status status = opq_graph_parse(errors[i].text, strlen(errors[i].text), &graph);
        expect_text(status == OPQ_INVALID ? opq_error() : "no error", errors[i].message, "%s", errors[i].text);
        assert_null(graph);
    }
}

static void limits_hold(void **state)
{
    (void)state;
    opq_graph *graph = NULL;
    assert_int_equal(opq_graph_parse("graph", ((size_t)64 << 20) + 1, &graph), OPQ_INVALID);

    opq_text ints = {0};
    opq_text_add(&ints, "%s  %%1 = permute f32[2,3] %%0 {dims=[0", NODES);
    for (int i = 0; i < 4096; i++)
        opq_text_add(&ints, ",0");
    opq_text_add(&ints, "]}\n}\n");
    assert_int_equal(opq_graph_parse(ints.data, ints.length, &graph), OPQ_INVALID);
    assert_non_null(strstr(opq_error(), "more than 4096 integers"));
    opq_text_drop(&ints);

    opq_text operands = {0};
    opq_text_add(&operands, "%s  %%1 = concat f32[2,196608] %%0", NODES);
    for (int i = 1; i < 65536; i++)
        opq_text_bytes(&operands, ", %0", 4);
    size_t full = operands.length;
    opq_text_add(&operands, " {axis=1}\n}\n");
    expect_ok(opq_graph_parse(operands.data, operands.length, &graph));
    opq_graph_destroy(graph);
    operands.length = full;
    opq_text_add(&operands, ", %%0 {axis=1}\n}\n");
    assert_int_equal(opq_graph_parse(operands.data, operands.length, &graph), OPQ_INVALID);
    assert_non_null(strstr(opq_error(), "more than 65536 operands"));
    opq_text_drop(&operands);
}

/* ---- mutation: any bytes give a graph that prints and verifies, or an error */

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Changes, removes, doubles or moves a few bytes; returns the new length. */
static size_t mutate(char *text, size_t length, uint64_t *random)
{
    static const char bytes[] = "%0123456789-[]{}=,.@#\"\\ \nfiux\0\xff";
    for (uint64_t edits = 1 + next_random(random) % 5 / 3; edits > 0 && length > 1; edits--) {
        size_t at = next_random(random) % length, other = next_random(random) % length;
        size_t run = 1 + next_random(random) % 12;
        run = run > length - at ? length - at : run;
        switch (next_random(random) % 4) {
        case 0: text[at] = bytes[next_random(random) % (sizeof bytes - 1)]; break;
        case 1:
            memmove(text + at, text + at + run, length - at - run);
            length -= run;
            break;
        case 2:
            memmove(text + at + run, text + at, length - at);
            length += run;
            break;
        case 3:
            run = run > length - other ? length - other : run;
            memmove(text + at, text + other, run);
            break;
        }
    }
    return length;
}

static void mutations_do_not_crash(void **state)
{
    (void)state;
    uint64_t random = 0x9e3779b97f4a7c15u;
    int accepted = 0, refused = 0;
    for (int i = 0; i < 20000; i++) {
        const char *source = canonical[1 + i % (COUNT(canonical) - 1)];
        size_t length = strlen(source);
        char *copy = malloc(length + 64), *exact;
        memcpy(copy, source, length);
        length = mutate(copy, length, &random);
        exact = malloc(length); /* to the byte: reading past the end is found */
        memcpy(exact, copy, length);
        opq_graph *graph = NULL;
        opq_status status = opq_graph_parse(exact, length, &graph);
        if (status == OPQ_OK) {
            char *text = text_of_graph(graph), *again;
            expect_ok(opq_graph_verify(graph));
            opq_graph *second = graph_of_text(text);
            again = text_of_graph(second);
            assert_string_equal(again, text);
            free(text);
            free(again);
            opq_graph_destroy(second);
            opq_graph_destroy(graph);
            accepted++;
        } else {
            assert_int_equal(status, OPQ_INVALID);
            assert_memory_equal(opq_error(), "line ", 5);
            refused++;
        }
        free(copy);
        free(exact);
    }
    assert_true(accepted > 500 && refused > 500); /* else the mutations are too tame or too wild to test anything */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(canonical_text_stays), cmocka_unit_test(text_by_hand_is_normalised),
        cmocka_unit_test(numbers_round_trip),   cmocka_unit_test(errors_name_their_place),
        cmocka_unit_test(limits_hold),          cmocka_unit_test(mutations_do_not_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
