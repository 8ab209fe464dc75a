/* What it takes to plan a graph of one op, of which a program that meets new shapes all the time makes one after another: it is not copied by
 * passes that change nothing, it is lowered once, and arenas that earlier plans left are all but enough. The linker puts the functions below
 * in front of those that are counted, see CMakeLists.txt.
 */
#include "tests/runtime/machine.h"

typedef struct counts {
    int graphs, lowerings, allocations;
} counts;

static counts so_far;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *data, size_t size);
opq_status __real_opq_graph_create(const char *name, opq_graph **out_graph);
opq_status __real_opq_lower(const opq_lower_request *request, opq_arena *arena, opq_lowered *out_lowered);

void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
    so_far.allocations++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size)
{
    so_far.allocations++;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *data, size_t size);
void *__wrap_realloc(void *data, size_t size)
{
    so_far.allocations++;
    return __real_realloc(data, size);
}

opq_status __wrap_opq_graph_create(const char *name, opq_graph **out_graph);
opq_status __wrap_opq_graph_create(const char *name, opq_graph **out_graph)
{
    so_far.graphs++;
    return __real_opq_graph_create(name, out_graph);
}

opq_status __wrap_opq_lower(const opq_lower_request *request, opq_arena *arena, opq_lowered *out_lowered);
opq_status __wrap_opq_lower(const opq_lower_request *request, opq_arena *arena, opq_lowered *out_lowered)
{
    so_far.lowerings++;
    return __real_opq_lower(request, arena, out_lowered);
}

/* ---- plans */

static const struct {
    const char *name, *text;
    counts most;
} plans[] = {
    {"elementwise, of a view",
     "graph @g {\n"
     "  %0 = input f32[6,5]\n"
     "  %1 = input f32[6]\n"
     "  %2 = strided f32[5,6] %0 {offset=0, strides=[1,5]}\n"
     "  %3 = mul f32[5,6] %2, %1\n"
     "  output %3\n"
     "}\n",
     {2, 1, 6}},
    {"sum",
     "graph @g {\n"
     "  %0 = input f32[6,5]\n"
     "  %1 = sum f32[1,5] %0 {axes=[0], tree=column}\n"
     "  %2 = reshape f32[5] %1\n"
     "  output %2\n"
     "}\n",
     {2, 1, 6}},
    {"matmul, of a view",
     "graph @g {\n"
     "  %0 = input f32[6,5]\n"
     "  %1 = input f32[6,24]\n"
     "  %2 = permute f32[5,6] %0 {dims=[1,0]}\n"
     "  %3 = matmul f32[5,24] %2, %1\n"
     "  output %3\n"
     "}\n",
     {2, 1, 6}},
    {"concat",
     "graph @g {\n"
     "  %0 = input f32[6,5]\n"
     "  %1 = concat f32[12,5] %0, %0 {axis=0}\n"
     "  output %1\n"
     "}\n",
     {3, 2, 18}},
    {"softmax",
     "graph @g {\n"
     "  %0 = input f32[6,40]\n"
     "  %1 = softmax f32[6,40] %0 {axes=[1], tree=lanes}\n"
     "  output %1\n"
     "}\n",
     {4, 2, 8}},
};

static int make_machine(void **state) { return create_machine(state, NULL); }

/* With the code that the ones before needed, and the memory that they left. */
static counts count_next(machine *m, const char *text)
{
    counts found = {0};
    for (int i = 0; i < 3; i++) {
        opq_graph *graph = graph_of_text(text);
        opq_plan *plan = NULL;
        so_far = (counts){0};
        expect_ok(opq_plan_compile(&m->runtime, graph, OPQ_FUSED, &plan));
        found = so_far;
        opq_graph_destroy(graph);
        opq_plan_release(plan);
    }
    return found;
}

static void test_little_is_done_for_one_op(void **state)
{
    for (size_t i = 0; i < COUNT(plans); i++) {
        counts found = count_next(*state, plans[i].text), most = plans[i].most;
        if (found.graphs > most.graphs || found.lowerings > most.lowerings || found.allocations > most.allocations)
            fail_msg("%s: %d graphs, %d lowerings, %d allocations", plans[i].name, found.graphs, found.lowerings,
                     found.allocations);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_little_is_done_for_one_op, make_machine, drop_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
