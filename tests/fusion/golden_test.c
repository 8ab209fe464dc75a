/* Golden files: tests/golden/NAME.ir is a graph, the passes to run and the text that must come out; a new case is one file.
 *
 *   # what it shows
 *   # pass: expand,simplify,group
 *   graph @NAME { ... }
 *   # expect:
 *   graph @NAME { ... }
 *   # unfused %3 -> %5: recompute       after group: each edge between two kernels and the reason
 *
 * OPAQUE_UPDATE_GOLDEN=1 writes what comes out behind "# expect:"; read the difference before committing it. Besides the text, each
 * graph must print as it was parsed, and evaluate to the same bits before and after its passes.
 */
#include "tests/fusion/golden.h"

#include "fusion/pass.h"

/* ---- passes */

/* "group" is run by itself, for its reasons. */
static opq_graph *run_passes(const opq_graph *graph, const char *passes, opq_unfused *unfused)
{
    opq_graph *out = NULL, *before = NULL;
    const char *last = strrchr(passes, ',');
    if (last == NULL || strcmp(last + 1, "group") != 0) {
        expect_ok(opq_graph_passes(graph, passes, &out));
        return out;
    }
    char first[128];
    snprintf(first, sizeof first, "%.*s", (int)(last - passes), passes);
    expect_ok(opq_graph_passes(graph, first, &before));
    expect_ok(opq_graph_create(graph->name, &out));
    expect_ok(opq_pass_group(before, OPQ_FUSED, out, unfused));
    opq_graph_destroy(before);
    return out;
}

static char *result_text(const opq_graph *graph, const opq_unfused *unfused)
{
    opq_text text = {0};
    char *printed = text_of_graph(graph), *result = NULL;
    opq_text_add(&text, "%s", printed);
    free(printed);
    for (int i = 0; i < unfused->count; i++) {
        const opq_unfused_edge *edge = &unfused->edges[i];
        opq_text_add(&text, "# unfused %%%d -> %%%d: %s\n", edge->producer, edge->consumer,
                     opq_refusal_name(edge->refusal));
    }
    expect_ok(opq_text_take(&text, &result));
    return result;
}

/* ---- meaning */

static void expect_same_meaning(const opq_graph *before, const opq_graph *after)
{
    arrays inputs = golden_inputs(before), a = arrays_evaluated(before, inputs.data),
           b = arrays_evaluated(after, inputs.data);
    assert_int_equal(a.count, b.count);
    for (int i = 0; i < a.count; i++) {
        opq_type type = opq_graph_output_type(before, i), other = opq_graph_output_type(after, i);
        assert_true(opq_type_equal(&type, &other));
        if (memcmp(a.data[i], b.data[i], (size_t)opq_type_bytes(&type)) != 0)
            fail_msg("output %d is another value after the passes", i);
    }
    arrays_drop(&inputs);
    arrays_drop(&a);
    arrays_drop(&b);
}

static void expect_round_trip(const opq_graph *graph)
{
    char *text = text_of_graph(graph);
    opq_graph *again = graph_of_text(text);
    char *same = text_of_graph(again);
    assert_string_equal(text, same);
    opq_graph_destroy(again);
    free(same);
    free(text);
}

/* ---- a case */

static void rewrite(const char *path, const golden *g, const char *result)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fprintf(file, "%.*s%s", (int)(g->expected - g->text), g->text, result);
    fclose(file);
}

static void test_golden(void **state)
{
    const char *path = *state;
    golden g = golden_read(path);
    opq_graph *graph = golden_graph(&g);
    opq_unfused unfused = {0};
    expect_ok(opq_graph_verify(graph));
    expect_round_trip(graph);
    opq_graph *after = run_passes(graph, g.passes, &unfused);
    expect_ok(opq_graph_verify(after));
    expect_round_trip(after);
    char *result = result_text(after, &unfused);
    if (getenv("OPAQUE_UPDATE_GOLDEN"))
        rewrite(path, &g, result);
    else if (strcmp(result, g.expected) != 0)
        fail_msg("%s: expected\n%sbut got\n%s", path, g.expected, result);
    expect_same_meaning(graph, after);
    free(result);
    free(unfused.edges);
    opq_graph_destroy(after);
    opq_graph_destroy(graph);
    free(g.text);
}

int main(void) { return golden_main("golden", test_golden, false); }
