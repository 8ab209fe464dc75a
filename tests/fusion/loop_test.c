/* Loops: the tree of every kernel of the golden graphs, run statement by statement, gives the bits of its machine code, and of the graph
 * evaluated node by node. There halves are rounded in other places: at every node.
 */
#include "tests/fusion/golden.h"

#include "fusion/loop.h"
#include "fusion/pass.h"

#include <math.h>

static void expect_equal(const opq_type *type, const void *got, const void *want, const char *name, bool exact)
{
    if (exact && array_difference(type, got, want) >= 0)
        fail_msg("%s: the loops give other bits", name);
    for (int64_t k = 0; !exact && k < opq_type_count(type); k++) {
        float a = opq_f16_to_f32(((const uint16_t *)got)[k]), b = opq_f16_to_f32(((const uint16_t *)want)[k]);
        if (fabsf(a - b) > 0x1p-9f * (1 + fabsf(b)))
            fail_msg("%s: element %lld is %g, not %g", name, (long long)k, (double)a, (double)b);
    }
}

/* What is printed is read back to the same text; cut short or with a byte changed it is read or refused, and never more. */
static void expect_round_trip(const opq_program *program, const char *stage, const char *first)
{
    char *text = NULL, *again = NULL;
    expect_ok(opq_program_print(program, stage, &text));
    for (char *at = text, *next; at && *at; at = next) {
        next = strstr(at + 1, first);
        size_t length = next ? (size_t)(next - at) : strlen(at);
        opq_arena arena = {0};
        opq_loops loops;
        opq_text printed = {0};
        expect_ok(opq_loops_parse(at, length, &arena, &loops));
        opq_loops_print(&loops, &printed);
        expect_ok(opq_text_take(&printed, &again));
        if (strlen(again) != length || memcmp(again, at, length) != 0)
            fail_msg("read back as\n%s\nfrom\n%.*s", again, (int)length, at);
        free(again);
        opq_arena_drop(&arena);
        for (size_t cut = 0; cut + 2 < length; cut += 7) { /* without its last "}" */
            assert_int_equal(opq_loops_parse(at, cut, &arena, &loops), OPQ_INVALID);
            assert_memory_equal(opq_error(), "line ", 5); /* and not by the verifier: the end is missing */
            opq_arena_drop(&arena);
            char before = at[cut];
            at[cut] = "%}{,b9 e\n"[cut % 9];
            (void)!opq_loops_parse(at, length, &arena, &loops);
            opq_arena_drop(&arena);
            at[cut] = before;
        }
    }
    free(text);
}

static bool has_halves(const opq_graph *graph)
{
    for (opq_ref n = 0; n < graph->count; n++)
        if (opq_node_at(graph, n)->type.dtype == OPQ_f16 || opq_node_at(graph, n)->type.dtype == OPQ_bf16)
            return true;
    return false;
}

static char *printed(const opq_program *program, const char *stage)
{
    char *text = NULL;
    expect_ok(opq_program_print(program, stage, &text));
    return text;
}

/* A program that was planned only says what the compiled one says, kernel by kernel too, and does not run. */
static void expect_planned_alike(opq_ctx *ctx, const opq_graph *graph, opq_fusion fusion, const opq_program *compiled)
{
    static const char *const stages[] = {"fused", "kernels", "json"};
    opq_program *planned = NULL;
    char *text = NULL, *all = NULL;
    size_t length = 0;
    int32_t kernel = 0;
    expect_ok(opq_program_plan(ctx, graph, fusion, &planned));
    for (int i = 0; i < 3; i++) {
        char *one = printed(planned, stages[i]), *other = printed(compiled, stages[i]);
        assert_string_equal(one, other);
        free(one);
        free(other);
    }
    expect_ok(opq_program_print(planned, "kernels", &all));
    for (; opq_program_print_kernel(planned, kernel, "kernels", &text) == OPQ_OK; kernel++) {
        assert_non_null(strstr(all, text));
        length += strlen(text);
        free(text);
    }
    assert_int_equal(length, strlen(all));
    assert_int_equal(opq_program_print_kernel(planned, -1, "kernels", &text), OPQ_INVALID);
    assert_int_equal(opq_run(ctx, planned, NULL, NULL), OPQ_INVALID);
    free(all);
    opq_program_release(planned);
}

/* What the context makes of the graph. */
static arrays run(opq_ctx *ctx, const opq_graph *graph, opq_fusion fusion, const arrays *in)
{
    arrays out = arrays_of_outputs(graph);
    opq_program *program = NULL;
    expect_ok(opq_compile(ctx, graph, fusion, &program));
    expect_ok(opq_run(ctx, program, (const void *const *)in->data, out.data));
    expect_round_trip(program, "kernels", "kernel @");
    expect_round_trip(program, "schedule", "schedule @");
    expect_planned_alike(ctx, graph, fusion, program);
    opq_program_release(program);
    return out;
}

static opq_ctx *compiling, *evaluating, *scheduling;

static void test_golden(void **state)
{
    golden file = golden_read(*state);
    opq_graph *graph = golden_graph(&file);
    bool halves = has_halves(graph);
    arrays in = golden_inputs(graph), want = arrays_evaluated(graph, in.data);
    for (int fusion = OPQ_FUSED; fusion <= OPQ_UNFUSED; fusion++) {
        arrays loops = run(evaluating, graph, (opq_fusion)fusion, &in),
               schedule = run(scheduling, graph, (opq_fusion)fusion, &in),
               code = run(compiling, graph, (opq_fusion)fusion, &in);
        for (int i = 0; i < want.count; i++) {
            opq_type type = opq_graph_output_type(graph, i);
            expect_equal(&type, loops.data[i], want.data[i], graph->name, !(halves && type.dtype == OPQ_f16));
            expect_equal(&type, loops.data[i], code.data[i], graph->name, true);
            expect_equal(&type, schedule.data[i], code.data[i], graph->name, true);
        }
        arrays_drop(&loops);
        arrays_drop(&schedule);
        arrays_drop(&code);
    }
    arrays_drop(&in);
    arrays_drop(&want);
    opq_graph_destroy(graph);
    free(file.text);
}

int main(void)
{
    expect_ok(opq_ctx_create(NULL, &compiling));
    setenv("OPAQUE_EXECUTOR", "reference", 1);
    expect_ok(opq_ctx_create(NULL, &evaluating));
    setenv("OPAQUE_EXECUTOR", "schedule", 1);
    expect_ok(opq_ctx_create(NULL, &scheduling));
    int failed = golden_main("loops", test_golden, true);
    opq_ctx_destroy(compiling);
    opq_ctx_destroy(evaluating);
    opq_ctx_destroy(scheduling);
    return failed;
}
