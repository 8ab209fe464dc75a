/* The code of a plan's kernels: made at once, and what the compiler refuses is one kernel for each op. The linker puts the function below in front of
 * the compiler, see CMakeLists.txt.
 */
#include "tests/runtime/machine.h"

#include "tests/codegen/wrapped_compiler.h"
#include "graph/clock.h"

#include <pthread.h>

enum { THREADS = 3 };

static const char *refused; /* kernels of this name */

opq_status __wrap_opq_compiler_object(opq_compiler *c, const opq_module *module, const char *symbol,
                                      LLVMMemoryBufferRef *out_object)
{
    const char *name = ((const opq_loops *)module->data)->name;
    if (refused && strcmp(name, refused) == 0)
        return opq_fail(OPQ_CODEGEN, "the test has no %s", name);
    return __real_opq_compiler_object(c, module, symbol, out_object);
}

/* ---- the host */

typedef struct piece {
    void (*body)(void *data, int64_t begin, int64_t end);
    void *data;
    int64_t begin;
} piece;

static int loops_asked;

static void *run_piece(void *of)
{
    const piece *p = of;
    p->body(p->data, p->begin, p->begin + 1);
    return NULL;
}

static void parallel_for(void *self, int64_t count, int64_t grain, void (*body)(void *data, int64_t begin, int64_t end),
                         void *data)
{
    pthread_t threads[THREADS];
    piece pieces[THREADS];
    (void)self;
    loops_asked++;
    assert_true(count <= THREADS && grain == 1);
    for (int i = 0; i < count; i++) {
        pieces[i] = (piece){body, data, i};
        assert_int_equal(pthread_create(&threads[i], NULL, run_piece, &pieces[i]), 0);
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static int thread_count(void *self)
{
    (void)self;
    return THREADS;
}

static int make_machine(void **state)
{
    refused = NULL;
    loops_asked = 0;
    int failed = create_machine(state, parallel_for);
    if (!failed)
        ((machine *)*state)->host.thread_count = thread_count;
    return failed;
}

/* ---- tests */

/* Two kernels of several ops, two of equal code, and products that have their operand in common. */
static const char text[] = "graph @several {\n"
                           "  %0 = input f32[40,60]\n"
                           "  %1 = input f32[60,48]\n"
                           "  %2 = input f32[60,48]\n"
                           "  %3 = neg f32[40,60] %0\n"
                           "  %4 = exp f32[40,60] %3\n"
                           "  %5 = sum f32[40,1] %4 {axes=[1], tree=lanes}\n"
                           "  %6 = tanh f32[60,48] %1\n"
                           "  %7 = abs f32[60,48] %6\n"
                           "  %8 = tanh f32[60,48] %2\n"
                           "  %9 = abs f32[60,48] %8\n"
                           "  %10 = matmul f32[40,48] %0, %7\n"
                           "  %11 = matmul f32[40,48] %0, %9\n"
                           "  %12 = sqrt f32[40,48] %11\n"
                           "  output %5, %7, %9, %10, %12\n"
                           "}\n";

/* A part's code is the step's too: it is launched by it. */
static void expect_code(const opq_step *step)
{
    bool is_any = step->part_count == 0;
    assert_non_null(step->code);
    assert_non_null(step->code->fn);
    for (int i = 0; i < step->part_count; i++) {
        assert_true(step->parts[i].code || step->block);
        is_any = is_any || step->parts[i].code == step->code;
    }
    assert_true(is_any);
}

static opq_plan *expect_plan(machine *m, int fallbacks)
{
    double begun = opq_now();
    opq_plan *plan = plan_of_graph(m, graph_of_text(text));
    double seconds = opq_now() - begun;
    assert_int_equal(plan->fallback_count, fallbacks);
    for (int32_t i = 0; i < plan->step_count; i++)
        expect_code(&plan->steps[i]);
    assert_true(plan->compile_seconds <= seconds); /* what kernels that were compiled at once took together is counted once */
    assert_int_equal(plan->compile_seconds > 0, plan->compiled > 0);
    return plan;
}

static void test_kernels_are_made_at_once(void **state)
{
    opq_plan *plan = expect_plan(*state, 0);
    int codes = 0;
    for (const opq_code_use *use = plan->codes; use; use = use->next)
        codes++;
    assert_int_equal(loops_asked, 1);
    assert_int_equal(plan->compiled, codes);
    assert_true(codes > 2);
    opq_plan *again = expect_plan(*state, 0);
    assert_int_equal(loops_asked, 1);
    assert_int_equal(again->compiled, 0);
    opq_plan_release(plan);
    opq_plan_release(again);
}

/* Others are compiled at the first try, and not again. */
static void test_what_the_compiler_refuses_is_split(void **state)
{
    refused = "neg_exp_sum_0";
    opq_plan *plan = expect_plan(*state, 1);
    assert_string_equal(plan->fallbacks->kernel, refused);
    assert_string_equal(plan->fallbacks->reason, "the test has no neg_exp_sum_0");
    assert_int_equal(plan->compiled, 3); /* its ops */
    opq_plan_release(plan);
}

int main(void)
{
    setenv("OPAQUE_CACHE", "off", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_kernels_are_made_at_once, make_machine, drop_machine),
        cmocka_unit_test_setup_teardown(test_what_the_compiler_refuses_is_split, make_machine, drop_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
