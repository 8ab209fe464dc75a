/* An error names the first bad index in row-major order of the op that stands first: fused or not, compiled or evaluated, however the
 * work is cut.
 */
#include "tests/support.h"

#include "opaque/opaque.h"

#include <stdio.h>

enum { ROWS = 64, COLUMNS = 512, EXTENT = 8 };

static void forwards(void *self, int64_t count, int64_t grain, void (*body)(void *, int64_t, int64_t), void *data)
{
    (void)self;
    for (int64_t begin = 0; begin < count; begin += grain)
        body(data, begin, begin + grain < count ? begin + grain : count);
}

static void backwards(void *self, int64_t count, int64_t grain, void (*body)(void *, int64_t, int64_t), void *data)
{
    (void)self;
    for (int64_t end = count; end > 0; end -= grain)
        body(data, end > grain ? end - grain : 0, end);
}

static void whole(void *self, int64_t count, int64_t grain, void (*body)(void *, int64_t, int64_t), void *data)
{
    (void)self;
    (void)grain;
    if (count > 0)
        body(data, 0, count);
}

static const opq_host hosts[] = {{.parallel_for = whole}, {.parallel_for = forwards}, {.parallel_for = backwards}};

/* %0 is f32[64,8], %1 the indices i64[64,512]; some graphs have indices i64[512] beside them, or others of both. */
static const struct fault_case {
    const char *what, *text, *told;
} cases[] = {
    {"gather", "  %2 = gather f32[64,512] %0, %1 {axis=1}\n  %3 = exp f32[64,512] %2\n  output %3\n",
     "gather: index 1000 is out of bounds for dimension 1 with size 8"},
    {"gather, transposed",
     "  %2 = gather f32[64,512] %0, %1 {axis=1}\n  %3 = permute f32[512,64] %2 {dims=[1,0]}\n"
     "  %4 = exp f32[512,64] %3\n  output %4\n",
     "index 1000 "},
    {"gather, backwards",
     "  %2 = gather f32[64,512] %0, %1 {axis=1}\n  %3 = slice f32[64,512] %2 {start=[63,511], step=[-1,-1]}\n"
     "  %4 = exp f32[64,512] %3\n  output %4\n",
     "index 1000 "},
    {"gather, summed over rows",
     "  %2 = gather f32[64,512] %0, %1 {axis=1}\n  %3 = sum f32[64,1] %2 {axes=[1], tree=lanes}\n  output %3\n",
     "index 1000 "},
    {"gather, summed over columns",
     "  %2 = gather f32[64,512] %0, %1 {axis=1}\n  %3 = sum f32[1,512] %2 {axes=[0], tree=column}\n  output %3\n",
     "index 1000 "},
    {"gather at computed indices",
     "  %2 = const i64[] {value=3}\n  %3 = mul i64[64,512] %1, %2\n  %4 = scalar i64[] {value=1}\n"
     "  %5 = sub i64[64,512] %3, %4\n  %6 = const i64[] {value=1}\n  %7 = maximum i64[64,512] %5, %6\n"
     "  %8 = gather f32[64,512] %0, %7 {axis=1}\n  output %8\n",
     "index 2999 "},
    {"two gathers",
     "  %2 = permute i64[512,64] %1 {dims=[1,0]}\n  %3 = input f32[512,8]\n"
     "  %4 = gather f32[512,64] %3, %2 {axis=1}\n  %5 = permute f32[64,512] %4 {dims=[1,0]}\n"
     "  %6 = gather f32[64,512] %0, %1 {axis=1}\n  %7 = add f32[64,512] %5, %6\n  output %7\n",
     "index 2000 "}, /* of the first one: by columns */
    {"index_select",
     "  %2 = slice i64[1,512] %1 {start=[2,0], step=[1,1]}\n  %3 = reshape i64[512] %2\n"
     "  %4 = index_select f32[64,512] %0, %3 {axis=1}\n  %5 = neg f32[64,512] %4\n  output %5\n",
     "index_select: index 1000 "},
    {"scatter_add", "  %2 = input f32[64,512]\n  %3 = scatter_add f32[64,8] %0, %1, %2 {axis=1}\n  output %3\n",
     "index 1000 "},
    {"index_add",
     "  %2 = input f32[64,512]\n  %3 = slice i64[1,512] %1 {start=[2,0], step=[1,1]}\n  %4 = reshape i64[512] %3\n"
     "  %5 = index_add f32[64,8] %0, %4, %2 {axis=1}\n  output %5\n",
     "index 1000 "},
};

static int64_t indices[ROWS][COLUMNS];
static float numbers[ROWS * COLUMNS];

static void make_indices(void)
{
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < COLUMNS; k++)
            indices[i][k] = (i + k) % 2;
    indices[2][400] = 1000;
    indices[2][410] = -4;
    indices[3][5] = -7;
    indices[40][77] = 3000;
    indices[63][0] = 2000;
}

static void expect_told(opq_ctx *ctx, const struct fault_case *c, opq_fusion fusion, const char *where)
{
    char text[2048];
    snprintf(text, sizeof text, "graph @fault {\n  %%0 = input f32[64,8]\n  %%1 = input i64[64,512]\n%s}\n", c->text);
    opq_graph *graph = graph_of_text(text);
    opq_program *program = NULL;
    static float out[ROWS * COLUMNS];
    expect_ok(opq_compile(ctx, graph, fusion, &program));
    opq_status status = opq_run(ctx, program, (const void *const[]){numbers, indices, numbers}, (void *const[]){out});
    if (status == OPQ_OK || strstr(opq_error(), c->told) == NULL)
        fail_msg("%s, %s, %s: \"%s\", not \"%s\"", c->what, where, fusion == OPQ_FUSED ? "fused" : "unfused",
                 status == OPQ_OK ? "no error" : opq_error(), c->told);
    opq_program_release(program);
    opq_graph_destroy(graph);
}

static void check_all(const char *executor)
{
    static const char *const cuts[] = {"whole", "forwards", "backwards"};
    for (size_t h = 0; h < COUNT(hosts); h++) {
        opq_ctx *ctx = NULL;
        if (executor)
            setenv("OPAQUE_EXECUTOR", executor, 1);
        expect_ok(opq_ctx_create(&hosts[h], &ctx));
        unsetenv("OPAQUE_EXECUTOR");
        for (size_t i = 0; i < COUNT(cases); i++) {
            expect_told(ctx, &cases[i], OPQ_FUSED, cuts[h]);
            expect_told(ctx, &cases[i], OPQ_UNFUSED, cuts[h]);
        }
        opq_ctx_destroy(ctx);
    }
}

static void test_compiled(void **state)
{
    (void)state;
    check_all(NULL);
}

static void test_evaluated(void **state)
{
    (void)state;
    check_all("reference");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_compiled), cmocka_unit_test(test_evaluated)};
    make_indices();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
