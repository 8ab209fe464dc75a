/* Loops: the tree of every kernel of the golden graphs, run statement by statement, gives what the graph means.
 *
 * Functions are libm's on both sides, so f32 and integers must have the same bits; halves are rounded in other places.
 */
#include "tests/support.h"

#include "fusion/loop.h"
#include "fusion/pass.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>

enum { ARRAYS_MAX = 16 };

static opq_graph *golden_graph(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char text[8192];
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *end = strstr(text, "# expect:");
    assert_non_null(end);
    *end = 0;
    return graph_of_text(text);
}

static void fill(const opq_type *type, int number, void *data)
{
    for (int64_t k = 0; k < opq_type_count(type); k++) {
        float value = (float)((k * 7 + number * 3) % 23 - 11) / 8;
        switch ((int)type->dtype) {
        case OPQ_f32: ((float *)data)[k] = value; break;
        case OPQ_f16: ((uint16_t *)data)[k] = opq_f32_to_f16(value); break;
        case OPQ_i64: ((int64_t *)data)[k] = (k + number) % 3; break;
        default: fail_msg("no numbers for %s", opq_dtype_name((opq_dtype)type->dtype)); break;
        }
    }
}

static void expect_equal(const opq_type *type, const void *got, const void *want, const char *name, bool exact)
{
    if (exact && memcmp(got, want, (size_t)opq_type_bytes(type)) != 0)
        fail_msg("%s: the loops give another value than the graph", name);
    for (int64_t k = 0; !exact && k < opq_type_count(type); k++) {
        float a = opq_f16_to_f32(((const uint16_t *)got)[k]), b = opq_f16_to_f32(((const uint16_t *)want)[k]);
        if (fabsf(a - b) > 0x1p-9f * (1 + fabsf(b)))
            fail_msg("%s: element %lld is %g, not %g", name, (long long)k, (double)a, (double)b);
    }
}

/* What is printed is read back to the same text; cut short or with a byte changed it is read or refused, and never more. */
static void expect_round_trip(const opq_program *program)
{
    char *text = NULL, *again = NULL;
    expect_ok(opq_program_print(program, "loops", &text));
    for (char *at = text, *next; at && *at; at = next) {
        next = strstr(at + 1, "kernel @");
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
            assert_memory_equal(opq_error(), "line ", 5);
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

static void test_golden(void **state)
{
    opq_graph *graph = golden_graph(*state);
    void *in[ARRAYS_MAX], *want[ARRAYS_MAX], *got[ARRAYS_MAX];
    int inputs = opq_graph_input_count(graph), outputs = opq_graph_output_count(graph);
    bool halves = false;
    assert_true(inputs <= ARRAYS_MAX && outputs <= ARRAYS_MAX);
    for (int i = 0; i < inputs; i++) {
        opq_type type = opq_graph_input_type(graph, i);
        in[i] = calloc((size_t)opq_type_bytes(&type) + 1, 1);
        fill(&type, i, in[i]);
    }
    for (opq_ref n = 0; n < graph->count; n++)
        halves |= opq_node_at(graph, n)->type.dtype == OPQ_f16 || opq_node_at(graph, n)->type.dtype == OPQ_bf16;
    for (int i = 0; i < outputs; i++) {
        opq_type type = opq_graph_output_type(graph, i);
        want[i] = calloc((size_t)opq_type_bytes(&type) + 1, 1);
        got[i] = calloc((size_t)opq_type_bytes(&type) + 1, 1);
    }
    opq_ctx *ctx = NULL;
    opq_program *program = NULL;
    expect_ok(opq_graph_eval(graph, (const void *const *)in, want));
    expect_ok(opq_ctx_create(NULL, &ctx));
    for (int fusion = OPQ_FUSED; fusion <= OPQ_UNFUSED; fusion++) {
        expect_ok(opq_compile(ctx, graph, (opq_fusion)fusion, &program));
        expect_ok(opq_run(ctx, program, (const void *const *)in, got));
        for (int i = 0; i < outputs; i++) {
            opq_type type = opq_graph_output_type(graph, i);
            expect_equal(&type, got[i], want[i], graph->name, !(halves && type.dtype == OPQ_f16));
        }
        expect_round_trip(program);
        opq_program_release(program);
    }
    opq_ctx_destroy(ctx);
    for (int i = 0; i < inputs; i++)
        free(in[i]);
    for (int i = 0; i < outputs; i++)
        free(want[i]), free(got[i]);
    opq_graph_destroy(graph);
}

int main(void)
{
    glob_t files;
    setenv("OPAQUE_EXECUTOR", "reference", 1);
    if (glob(OPAQUE_GOLDEN "/*.ir", 0, NULL, &files) != 0)
        return 1;
    struct CMUnitTest *tests = calloc(files.gl_pathc, sizeof *tests);
    for (size_t i = 0; i < files.gl_pathc; i++)
        tests[i] = (struct CMUnitTest){
            .name = strrchr(files.gl_pathv[i], '/') + 1, .test_func = test_golden, .initial_state = files.gl_pathv[i]};
    int failed = _cmocka_run_group_tests("loops", tests, files.gl_pathc, NULL, NULL);
    free(tests);
    globfree(&files);
    return failed;
}
