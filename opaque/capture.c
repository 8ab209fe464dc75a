/* From what a function recorded to a capture: whose leaves are cells, whose numbers the caller's, and where results go. See capture.h. */
#include "opaque/capture_plan.h"
#include "opaque/capturing.h"
#include "opaque/execution.h"

#include <stdlib.h>
#include <string.h>

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory for a captured function"); }

typedef struct maker {
    opq_ctx *ctx;
    opq_capturing *capturing;
    opq_room room;
    opq_snapshot taken, planned;
    const opq_snapshot *snapshot; /* one of them */
    opq_value **values;           /* of the cells that were written, then of the results; references */
    int32_t *cell_of;             /* per value: a cell's number, or -1 - that of a result */
    int count;
    opq_capture_sink *undefined; /* results that hold nothing */
    int undefined_count;
    opq_capture *made;
} maker;

/* What is to be stored: what the cells and the results hold now. */
static opq_status list_values(maker *m, opq_cell *const *results, int count)
{
    const opq_capturing *c = m->capturing;
    int room = c->count + count;
    m->values = opq_room_take(&m->room, (size_t)room * sizeof *m->values);
    m->cell_of = opq_room_take(&m->room, (size_t)room * sizeof *m->cell_of);
    m->undefined = opq_room_take(&m->room, (size_t)count * sizeof *m->undefined);
    if (m->values == NULL || m->cell_of == NULL || m->undefined == NULL)
        return out_of_memory();
    opq_spin_lock(&m->ctx->lock);
    for (int i = 0; i < room; i++) {
        opq_value *value = i < c->count ? c->met[i].cell->value : results[i - c->count]->value;
        if (value == NULL && i >= c->count)
            m->undefined[m->undefined_count++] = (opq_capture_sink){
                .cell = -1 - (i - c->count), .output = -1, .leaf = -1, .bytes = results[i - c->count]->bytes};
        if (value == NULL || (i < c->count && (!c->met[i].written || value == c->met[i].leaf)))
            continue;
        opq_value_retain(value);
        m->cell_of[m->count] = i < c->count ? i : -1 - (i - c->count);
        m->values[m->count++] = value;
    }
    opq_spin_unlock(&m->ctx->lock);
    return OPQ_OK;
}

/* ---- sources */

/* The cell whose value a leaf is, or is read as another dtype; -1: one that the function made. *out_which: two may be. */
static int32_t cell_of_leaf(const maker *m, const opq_value *leaf, bool *out_which)
{
    const opq_capturing *c = m->capturing;
    int32_t found = -1;
    for (int i = 0; i < c->count; i++)
        if (c->met[i].leaf == leaf)
            return i;
    for (int i = 0; i < c->count; i++) {
        if (c->met[i].leaf == NULL || c->met[i].leaf->buffer != leaf->buffer)
            continue;
        *out_which = found >= 0;
        found = i;
    }
    return found;
}

static opq_status add_leaf(maker *m, int i)
{
    opq_value *leaf = m->snapshot->leaves.items[i];
    const opq_view *view = opq_snapshot_leaf_view(m->snapshot, i);
    const opq_type *type = opq_snapshot_leaf_type(m->snapshot, i);
    bool two = false;
    opq_capture_leaf *made = &m->made->leaves[i];
    *made = (opq_capture_leaf){.cell = cell_of_leaf(m, leaf, &two), .bytes = opq_type_bytes(type), .whole = view == NULL};
    made->upload = -1;
    for (int k = 0; k < m->capturing->upload_count; k++)
        if (m->capturing->uploads[k].leaf == leaf)
            made->upload = m->capturing->uploads[k].id;
    made->first = view ? view->first * opq_dtype_bytes((opq_dtype)view->leaf.dtype) : 0;
    if (two)
        return opq_fail(OPQ_UNSUPPORTED, "two tensors that have the same memory are read as another dtype");
    if (made->cell < 0 && leaf->op != OPQ_OP_input)
        return opq_fail(OPQ_UNSUPPORTED, "a part of it (%s) ran while it was captured",
                        opq_op_info_of((opq_op)leaf->op)->name);
    if (made->cell < 0) {
        opq_value_retain(leaf);
        made->constant = leaf;
    } else {
        m->made->cells[made->cell].bytes = opq_type_bytes(&m->capturing->met[made->cell].leaf->type);
        m->made->cells[made->cell].dtype = m->capturing->met[made->cell].leaf->type.dtype;
    }
    return OPQ_OK;
}

static opq_status add_number(maker *m, int i)
{
    const opq_value *scalar = m->snapshot->scalars.items[i];
    opq_capture_number *made = &m->made->numbers[i];
    *made = (opq_capture_number){.value = scalar->scalar};
    made->id = opq_value_number_id(scalar, made->dtypes, OPQ_CAPTURE_CASTS, &made->count);
    if (made->count > OPQ_CAPTURE_CASTS)
        return opq_fail(OPQ_UNSUPPORTED, "a number is cast %d times", made->count - 1);
    m->made->id_count = made->id >= m->made->id_count ? made->id + 1 : m->made->id_count;
    return OPQ_OK;
}

/* ---- sinks */

static int32_t output_of_node(const opq_snapshot *s, int32_t node)
{
    int i = 0;
    while (s->outputs.items[i] != node)
        i++;
    return i;
}

/* The output may take the memory of the whole value that its cell held, if only this cell had it. */
static int32_t replaceable(const maker *m, int32_t cell)
{
    for (int i = 0; i < m->made->leaf_count; i++)
        if (m->made->leaves[i].cell == cell && m->made->leaves[i].whole)
            return i;
    return -1;
}

static void add_sink(maker *m, int i)
{
    int32_t code = m->snapshot->asked.items[i], number = opq_code_number(code);
    opq_capture *made = m->made;
    opq_capture_sink *sink = &made->sinks[made->sink_count++];
    *sink = (opq_capture_sink){.cell = m->cell_of[i], .output = -1, .leaf = -1};
    if (opq_code_set(code) == OPQ_SET_leaf) {
        sink->leaf = number;
        return;
    }
    sink->output = output_of_node(m->snapshot, number);
    made->types[sink->output] = m->snapshot->nodes.items[number]->type;
    made->lines[sink->output] = m->snapshot->nodes.items[number]->line;
    made->ops[sink->output] = m->snapshot->nodes.items[number]->op;
    bool alone = sink->cell >= 0 && made->replaces[sink->output] == OPQ_NOT_STORED;
    made->replaces[sink->output] = alone ? replaceable(m, sink->cell) : -1;
}

/* Does somebody get what the cell held, as it was, or is a part of it a leaf of its own, of which the plan does not know where it lies? */
static bool is_needed(const opq_capture *made, int32_t leaf)
{
    int32_t cell = made->leaves[leaf].cell;
    for (int i = 0; i < made->sink_count; i++)
        if (made->sinks[i].leaf >= 0 && made->leaves[made->sinks[i].leaf].cell == cell)
            return true;
    for (int i = 0; i < made->leaf_count; i++)
        if (i != leaf && made->leaves[i].cell == cell)
            return true;
    return false;
}

/* One output for each memory at most, and of those that are stored alone. */
static void settle_replacements(opq_capture *made)
{
    for (int i = 0; i < made->output_count; i++) {
        if (made->replaces[i] >= 0 && is_needed(made, made->replaces[i]))
            made->replaces[i] = -1;
        for (int k = 0; k < i && made->replaces[i] >= 0; k++)
            if (made->replaces[k] == made->replaces[i])
                made->replaces[i] = -1;
    }
}

/* Which leaves outputs may take the memory of: what they lie in stays one leaf, with its views. */
static opq_status find_replaced(maker *m)
{
    opq_snapshot *s = &m->taken;
    s->replaces.items = opq_room_take(&m->room, ((size_t)s->outputs.count + 1) * sizeof *s->replaces.items);
    if (s->replaces.items == NULL)
        return out_of_memory();
    for (s->replaces.count = 0; s->replaces.count < s->outputs.count; s->replaces.count++)
        s->replaces.items[s->replaces.count] = -1;
    for (int i = 0; i < m->count; i++) {
        int32_t code = s->asked.items[i];
        for (int k = 0; k < s->leaves.count && m->cell_of[i] >= 0 && opq_code_set(code) == OPQ_SET_node; k++)
            if (s->leaves.items[k] == m->capturing->met[m->cell_of[i]].leaf)
                s->replaces.items[output_of_node(s, opq_code_number(code))] = k;
    }
    return OPQ_OK;
}

/* ---- */

static void *zeros(size_t count, size_t size) { return calloc(count ? count : 1, size); }

static opq_status allocate(maker *m, int results)
{
    const opq_snapshot *s = m->snapshot;
    opq_capture *c = m->made = calloc(1, sizeof *c);
    if (c == NULL)
        return out_of_memory();
    *c = (opq_capture){.ctx = m->ctx,
                       .cell_count = m->capturing->count,
                       .result_count = results,
                       .leaf_count = s->leaves.count,
                       .number_count = s->scalars.count,
                       .output_count = s->outputs.count,
                       .op_count = s->nodes.count};
    c->cells = zeros((size_t)c->cell_count, sizeof *c->cells);
    c->leaves = zeros((size_t)c->leaf_count, sizeof *c->leaves);
    c->numbers = zeros((size_t)c->number_count, sizeof *c->numbers);
    c->sinks = zeros((size_t)(m->count + m->undefined_count), sizeof *c->sinks);
    c->types = zeros((size_t)c->output_count, sizeof *c->types);
    c->lines = zeros((size_t)c->output_count, sizeof *c->lines);
    c->ops = zeros((size_t)c->output_count, sizeof *c->ops);
    c->replaces = zeros((size_t)c->output_count, sizeof *c->replaces);
    bool all = c->cells && c->leaves && c->numbers && c->sinks && c->types && c->lines && c->ops && c->replaces;
    for (int i = 0; i < c->output_count && all; i++)
        c->replaces[i] = OPQ_NOT_STORED;
    return all ? OPQ_OK : out_of_memory();
}

static opq_status bind(maker *m, int results)
{
    const opq_capturing *c = m->capturing;
    OPQ_TRY(allocate(m, results));
    for (int i = 0; i < c->count; i++)
        m->made->cells[i] = (opq_capture_cell){.nothing = c->met[i].nothing, .written = c->met[i].written};
    for (int i = 0; i < m->made->leaf_count; i++)
        OPQ_TRY(add_leaf(m, i));
    for (int i = 0; i < m->made->number_count; i++)
        OPQ_TRY(add_number(m, i));
    for (int i = 0; i < m->undefined_count; i++)
        m->made->sinks[m->made->sink_count++] = m->undefined[i];
    for (int i = 0; i < m->count; i++)
        add_sink(m, i);
    settle_replacements(m->made);
    return OPQ_OK;
}

/* Finds or makes the plan; what is already there for other lines is made again, so that a failure names these. */
static opq_status plan(maker *m)
{
    bool found;
    const opq_runner runner = {.ctx = m->ctx, .room = &m->room};
    if (m->snapshot->outputs.count == 0)
        return OPQ_OK;
    opq_snapshot given = *m->snapshot;
    opq_execution p = {.runner = &runner, .given = &given, .own_lines = true};
    opq_run_enter(m->ctx);
    opq_status status = opq_execution_find(&p, false, &found);
    if (status == OPQ_OK && p.plan == NULL)
        status = opq_execution_build(&p);
    if (status == OPQ_OK) {
        m->made->plan = p.plan;
        p.plan = NULL;
        m->made->key = malloc(given.key_bytes);
        m->made->key_bytes = given.key_bytes;
        status = m->made->key ? OPQ_OK : out_of_memory();
    }
    if (status == OPQ_OK)
        memcpy(m->made->key, given.key, given.key_bytes);
    opq_execution_drop(&p);
    opq_run_leave(m->ctx);
    return status;
}

/* Launches of some microseconds in all, which never wait for the host. */
static bool is_small(const opq_plan *plan)
{
    enum { SMALL_STEPS = 16, SMALL_WORK = 1 << 18 };
    int64_t work = 0;
    bool small = plan == NULL || plan->step_count <= SMALL_STEPS;
    for (int i = 0; plan && i < plan->step_count && small; i++) {
        const opq_step *step = &plan->steps[i];
        small = step->kind != OPQ_KERNEL_extern && step->routine == NULL;
        work += step->bytes_read + step->bytes_written + step->flops;
    }
    return small && work <= SMALL_WORK;
}

/* Cells that nothing reads but such views, and nothing writes. */
static void find_shiftable(maker *m)
{
    opq_capture *made = m->made;
    const opq_codes *operands = &m->snapshot->operands;
    bool *used = opq_room_take(&m->room, (size_t)made->leaf_count + 1);
    if (used == NULL)
        return; /* none */
    memset(used, 0, (size_t)made->leaf_count + 1);
    for (int i = 0; i < operands->count; i++)
        if (opq_code_set(operands->items[i]) == OPQ_SET_leaf)
            used[opq_code_number(operands->items[i])] = true;
    for (int i = 0; i < made->cell_count; i++)
        made->cells[i].shiftable = !made->cells[i].written;
    for (int i = 0; i < made->leaf_count; i++)
        if (used[i] && made->leaves[i].whole && made->leaves[i].cell >= 0)
            made->cells[made->leaves[i].cell].shiftable = false;
    for (int i = 0; i < made->sink_count; i++)
        if (made->sinks[i].leaf >= 0 && made->leaves[made->sinks[i].leaf].cell >= 0)
            made->cells[made->leaves[made->sinks[i].leaf].cell].shiftable = false;
}

static void start(maker *m, opq_capturing *capturing)
{
    m->ctx = capturing->ctx;
    m->capturing = capturing;
    opq_room_init(&m->room);
}

static void finish(maker *m)
{
    for (int i = 0; i < m->count; i++)
        opq_value_release(m->values[i]);
    opq_room_drop(&m->room);
}

/* Of the snapshot that was taken. */
static opq_status make(maker *m, int results, bool planned, opq_graph **out_graph)
{
    m->snapshot = &m->taken;
    if (planned) {
        OPQ_TRY(find_replaced(m));
        OPQ_TRY(opq_snapshot_captured(&m->taken, &m->planned));
        m->snapshot = &m->planned;
    }
    OPQ_TRY(bind(m, results));
    find_shiftable(m);
    if (planned)
        OPQ_TRY(plan(m));
    m->made->small = is_small(m->made->plan);
    return out_graph && m->taken.nodes.count > 0 ? opq_snapshot_graph(&m->taken, OPQ_OUTPUTS_stored, out_graph) : OPQ_OK;
}

static opq_status collect_and_make(opq_capturing *capturing, opq_cell *const *results, int count, bool planned,
                                   opq_capture **out_capture, opq_graph **out_graph)
{
    static const opq_scope alone = {.kind = OPQ_SCOPE_asked};
    maker m = {0};
    if (capturing->lost)
        return out_of_memory();
    if (out_graph)
        *out_graph = NULL;
    start(&m, capturing);
    opq_status status = list_values(&m, results, count);
    if (status == OPQ_OK)
        status = opq_snapshot_collect(m.ctx, m.values, m.count, &alone, &m.room, &m.taken);
    if (status == OPQ_OK) {
        status = make(&m, count, planned, out_graph);
        opq_snapshot_unpin(&m.taken);
    }
    finish(&m);
    if (status != OPQ_OK)
        opq_capture_drop(m.made);
    else
        *out_capture = m.made;
    return status;
}

opq_status opq_capture_make(opq_capturing *capturing, opq_cell *const *results, int count, opq_capture **out_capture,
                            opq_graph **out_graph)
{
    return collect_and_make(capturing, results, count, true, out_capture, out_graph);
}

opq_status opq_capture_read(opq_capturing *capturing, opq_cell *const *results, int count, opq_capture **out_capture,
                            opq_graph **out_graph)
{
    return collect_and_make(capturing, results, count, false, out_capture, out_graph);
}

opq_status opq_capture_first_run(opq_capturing *capturing, opq_cell *const *results, int count)
{
    maker m = {0};
    start(&m, capturing);
    opq_status status = list_values(&m, results, count);
    if (status == OPQ_OK)
        status = opq_materialize_captured(m.ctx, m.values, m.count);
    finish(&m);
    return status;
}

/* ---- comparing */

/* Where the leaf begins: in a cell that may be shifted, behind the first leaf of it. */
static int64_t first_of(const opq_capture *c, int i)
{
    const opq_capture_leaf *leaf = &c->leaves[i];
    int first = 0;
    if (leaf->cell < 0 || !c->cells[leaf->cell].shiftable)
        return leaf->first;
    while (c->leaves[first].cell != leaf->cell || c->leaves[first].whole)
        first++;
    return leaf->first - c->leaves[first].first;
}

static bool same_leaf(const opq_capture *a, const opq_capture *b, int i)
{
    const opq_capture_leaf *x = &a->leaves[i], *y = &b->leaves[i];
    return x->cell == y->cell && x->upload == y->upload && x->whole == y->whole &&
           (x->whole || first_of(a, i) == first_of(b, i));
}

static bool same_constant(const opq_capture_leaf *a, const opq_capture_leaf *b)
{
    if (a->constant == NULL || a->upload >= 0)
        return true;
    return memcmp((const char *)a->constant->buffer->data + a->first,
                  (const char *)b->constant->buffer->data + b->first, (size_t)a->bytes) == 0;
}

static bool same_sinks(const opq_capture *a, const opq_capture *b)
{
    bool same = a->sink_count == b->sink_count;
    for (int i = 0; i < a->sink_count && same; i++)
        same = a->sinks[i].cell == b->sinks[i].cell && a->sinks[i].output == b->sinks[i].output &&
               a->sinks[i].leaf == b->sinks[i].leaf && a->sinks[i].bytes == b->sinks[i].bytes;
    return same;
}

opq_capture_difference opq_capture_compare(const opq_capture *a, const opq_capture *b, int *out_which)
{
    bool same = a->key_bytes == b->key_bytes && a->leaf_count == b->leaf_count && a->number_count == b->number_count;
    if (!same || (a->key_bytes > 0 && memcmp(a->key, b->key, a->key_bytes) != 0))
        return OPQ_CAPTURE_graph;
    for (int i = 0; i < a->number_count; i++) {
        *out_which = i;
        if (a->numbers[i].id != b->numbers[i].id ||
            (a->numbers[i].id < 0 && a->numbers[i].value.i != b->numbers[i].value.i))
            return OPQ_CAPTURE_number;
    }
    for (int i = 0; i < a->leaf_count; i++)
        if (!same_leaf(a, b, i))
            return OPQ_CAPTURE_cells;
    for (int i = 0; i < a->leaf_count; i++) {
        *out_which = i;
        if (!same_constant(&a->leaves[i], &b->leaves[i]))
            return OPQ_CAPTURE_constant;
    }
    return a->cell_count == b->cell_count && same_sinks(a, b) ? OPQ_CAPTURE_same : OPQ_CAPTURE_cells;
}

void opq_capture_drop(opq_capture *c)
{
    if (c == NULL)
        return;
    for (int i = 0; i < c->leaf_count && c->leaves; i++)
        opq_value_release(c->leaves[i].constant);
    opq_plan_release(c->plan);
    free(c->key);
    free(c->cells);
    free(c->leaves);
    free(c->numbers);
    free(c->sinks);
    free(c->types);
    free(c->lines);
    free(c->ops);
    free(c->replaces);
    free(c);
}

opq_capture_info opq_capture_describe(const opq_capture *c)
{
    opq_capture_info info = {.cells = c->cell_count, .results = c->result_count, .ops = c->op_count};
    info.kernels = c->plan ? c->plan->step_count : 0;
    for (int i = 0; i < c->leaf_count; i++)
        info.constants += c->leaves[i].constant != NULL;
    return info;
}

bool opq_capture_shiftable(const opq_capture *c, int cell) { return c->cells[cell].shiftable; }
