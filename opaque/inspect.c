/* Looking at what is recorded and at what ran. */
#include "opaque/snapshot.h"

#include <stdlib.h>
#include <string.h>

/* ---- snapshots */

typedef struct kept {
    opq_snapshot snapshot; /* first: opq_snapshot_drop frees it as this */
    opq_room room;
} kept;

opq_status opq_snapshot_take(opq_ctx *ctx, opq_value *const *values, int count, opq_snapshot **out_snapshot)
{
    static const opq_scope nothing_else = {.kind = OPQ_SCOPE_asked};
    kept *k = malloc(sizeof *k);
    if (k == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    opq_room_init(&k->room);
    opq_status status = opq_snapshot_collect(ctx, values, count, &nothing_else, &k->room, &k->snapshot);
    if (status == OPQ_OK)
        *out_snapshot = &k->snapshot;
    else
        opq_snapshot_drop(&k->snapshot);
    return status;
}

void opq_snapshot_drop(opq_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    opq_snapshot_unpin(snapshot);
    opq_room_drop(snapshot->room);
    free(snapshot);
}

int opq_snapshot_pending_count(const opq_snapshot *snapshot) { return snapshot->nodes.count; }
int opq_snapshot_leaf_count(const opq_snapshot *snapshot) { return snapshot->leaves.count; }
opq_value *opq_snapshot_leaf(const opq_snapshot *snapshot, int index) { return snapshot->leaves.items[index]; }

int opq_snapshot_node_count(const opq_snapshot *snapshot)
{
    return snapshot->leaves.count + snapshot->scalars.count + snapshot->nodes.count;
}

opq_value *opq_snapshot_node(const opq_snapshot *snapshot, int node)
{
    int first = snapshot->leaves.count + snapshot->scalars.count;
    return node < first ? NULL : snapshot->nodes.items[node - first];
}

opq_status opq_snapshot_bytes(const opq_snapshot *snapshot, opq_fusion fusion, int64_t *out_bytes)
{
    opq_graph *graph;
    OPQ_TRY(opq_snapshot_graph(snapshot, OPQ_OUTPUTS_stored, &graph));
    opq_status status = opq_plan_traffic(&snapshot->ctx->runtime, graph, fusion, out_bytes);
    opq_graph_destroy(graph);
    return status;
}

/* ---- reports */

struct opq_recorder {
    opq_report *report;
    int capacity, run_capacity;
    bool failed, reused;
};

static _Thread_local struct opq_recorder *recorder;
struct opq_recorder *opq_recorder_get(void) { return recorder; }

void opq_report_drop(opq_report *report)
{
    if (report == NULL)
        return;
    for (int i = 0; i < report->launch_count; i++) {
        free((char *)report->launches[i].name);
        free((char *)report->launches[i].shape);
        free((char *)report->launches[i].lines);
    }
    for (int i = 0; i < report->run_count; i++)
        free((char *)report->runs[i].why);
    free(report->runs);
    free(report->launches);
    free(report);
}

static void drop_recorder(struct opq_recorder *dead)
{
    opq_report_drop(dead->report);
    free(dead);
}

void opq_report_begin(opq_ctx *ctx)
{
    (void)ctx;
    if (recorder)
        drop_recorder(recorder);
    recorder = calloc(1, sizeof *recorder);
    if (recorder && (recorder->report = calloc(1, sizeof *recorder->report)) == NULL) {
        free(recorder);
        recorder = NULL;
    }
}

static char *copy_text(struct opq_recorder *r, const char *text)
{
    char *copy = strdup(text ? text : "");
    r->failed = r->failed || copy == NULL;
    return copy;
}

/* Room for one more of `size` bytes; an array that cannot grow stays as it is. */
static bool make_room(struct opq_recorder *r, void *array, int count, int *capacity, size_t size)
{
    void **items = array;
    if (count < *capacity)
        return true;
    int wanted = *capacity ? *capacity * 2 : 32;
    void *grown = realloc(*items, (size_t)wanted * size);
    if (grown == NULL) {
        r->failed = true;
        return false;
    }
    *items = grown;
    *capacity = wanted;
    return true;
}

/* Of the first rows that have others, each once. */
static char *lines_of_rows(struct opq_recorder *r, const opq_step *rows, int32_t count)
{
    enum { LINES_MAX = 16 };
    const char *seen[LINES_MAX];
    opq_text text = {0};
    int seen_count = 0;
    for (int32_t i = 0; i < count && seen_count < LINES_MAX; i++) {
        bool known = *rows[i].lines == 0;
        for (int k = 0; k < seen_count && !known; k++)
            known = strcmp(seen[k], rows[i].lines) == 0;
        if (known)
            continue;
        seen[seen_count++] = rows[i].lines;
        opq_text_add(&text, "%s%s", text.length ? " " : "", rows[i].lines);
    }
    r->failed = r->failed || text.failed;
    return text.data ? text.data : copy_text(r, "");
}

void opq_recorder_launch(struct opq_recorder *r, const opq_step *rows, int32_t count, const opq_launch_times *times)
{
    opq_report *report = r->report;
    if (!make_room(r, &report->launches, report->launch_count, &r->capacity, sizeof *report->launches))
        return;
    opq_launch launch = {.name = copy_text(r, rows->name),
                         .kind = opq_kernel_kind_name(rows->kind),
                         .shape = copy_text(r, opq_type_name(rows->largest).text),
                         .lines = lines_of_rows(r, rows, count),
                         .rows = count,
                         .seconds = times->seconds,
                         .busy = times->busy};
    for (int32_t i = 0; i < count; i++) {
        bool fresh = rows[i].fresh && !r->reused;
        launch.fresh = launch.fresh || fresh;
        launch.compile_seconds += fresh && rows[i].code ? rows[i].code->seconds : 0;
        launch.bytes_read += rows[i].bytes_read;
        launch.bytes_written += rows[i].bytes_written;
        launch.flops += rows[i].flops;
    }
    report->launches[report->launch_count++] = launch;
}

void opq_recorder_plan(struct opq_recorder *r, const opq_plan *plan, char *why, const opq_tier *unwatched)
{
    opq_report *report = r->report;
    r->reused = why == NULL;
    if (make_room(r, &report->runs, report->run_count, &r->run_capacity, sizeof *report->runs))
        report->runs[report->run_count++] =
            (opq_planned){why, plan->step_count, why ? plan->compiled : 0, plan->output_count, *unwatched};
    else
        free(why);
}

opq_status opq_report_end(opq_ctx *ctx, opq_report **out_report)
{
    (void)ctx;
    struct opq_recorder *r = recorder;
    recorder = NULL;
    if (r == NULL)
        return opq_fail(OPQ_INVALID, "no report was begun in this thread");
    opq_report *report = r->report;
    bool failed = r->failed;
    free(r);
    if (failed) {
        opq_report_drop(report);
        return opq_fail(OPQ_NO_MEMORY, "out of memory for the report");
    }
    *out_report = report;
    return OPQ_OK;
}
