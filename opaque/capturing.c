/* What a function does while it is captured: which cells it reads and writes that it has not made. See capture.h.
 *
 * A cell that is read gets a value of its own, so that a leaf of the graph tells which cell it was: two cells hold one value after a copy.
 */
#include "opaque/capturing.h"
#include "opaque/snapshot.h"
#include "graph/eval.h"

#include <stdlib.h>

atomic_int opq_capturings;

opq_capturing *opq_capturing_here(opq_ctx *ctx)
{
    if (atomic_load_explicit(&opq_capturings, memory_order_relaxed) == 0)
        return NULL;
    uint32_t origin = opq_origin_get();
    opq_spin_lock(&ctx->lock);
    opq_capturing *found = ctx->capturings;
    while (found && found->origin != origin)
        found = found->next;
    opq_spin_unlock(&ctx->lock);
    return found;
}

bool opq_capturing_is_open(const opq_ctx *ctx, uint32_t id)
{
    const opq_capturing *c = ctx->capturings;
    while (c && c->id != id)
        c = c->next;
    return c != NULL;
}

opq_status opq_capturing_forbids(opq_ctx *ctx, opq_reason reason)
{
    if (opq_capturing_here(ctx) == NULL)
        return OPQ_OK;
    return opq_fail(OPQ_INVALID,
                    "a value is needed here (%s) while the function is captured: what is computed then runs after it, "
                    "at each call. "
                    "Return the tensor and look at it outside",
                    opq_reason_name(reason));
}

void *opq_capturing_host(const opq_capturing *c) { return c->host; }
uint32_t opq_capturing_id(const opq_capturing *c) { return c->id; }

uint32_t opq_capturing_of(const opq_cell *cell)
{
    const opq_capturing *here = opq_capturing_here(cell->ctx);
    return here ? here->id : 0;
}

opq_status opq_capturing_begin(opq_ctx *ctx, void *host, opq_capturing **out_capturing)
{
    static atomic_uint last;
    if (opq_capturing_here(ctx))
        return opq_fail(OPQ_INVALID, "this thread is capturing a function already");
    const opq_scope pending = {.kind = OPQ_SCOPE_origin, .origin = opq_origin_get(), .runs = true};
    OPQ_TRY(opq_run_pending(ctx, NULL, 0, &pending, OPQ_REASON_capture));
    opq_capturing *made = calloc(1, sizeof *made);
    if (made == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    made->ctx = ctx;
    made->host = host;
    made->origin = opq_origin_get();
    made->began = opq_sequence(ctx);
    made->id = atomic_fetch_add(&last, 1) + 1;
    opq_spin_lock(&ctx->lock);
    made->next = ctx->capturings;
    ctx->capturings = made;
    opq_spin_unlock(&ctx->lock);
    atomic_fetch_add(&opq_capturings, 1);
    *out_capturing = made;
    return OPQ_OK;
}

void opq_capturing_end(opq_capturing *c)
{
    if (c->ended)
        return;
    c->ended = true;
    opq_spin_lock(&c->ctx->lock);
    opq_capturing **at = &c->ctx->capturings;
    while (*at && *at != c)
        at = &(*at)->next;
    if (*at)
        *at = c->next;
    opq_spin_unlock(&c->ctx->lock);
    atomic_fetch_sub(&opq_capturings, 1);
}

void opq_capturing_drop(opq_capturing *c)
{
    if (c == NULL)
        return;
    opq_capturing_end(c);
    for (int i = 0; i < c->count; i++) {
        opq_value_release(c->met[i].before);
        opq_value_release(c->met[i].leaf);
        opq_cell_release(c->met[i].cell);
    }
    for (int i = 0; i < c->upload_count; i++)
        opq_value_release(c->uploads[i].leaf);
    free(c->uploads);
    free(c->met);
    free(c);
}

int opq_capturing_cell_count(const opq_capturing *c) { return c->count; }
opq_cell *opq_capturing_cell(const opq_capturing *c, int i) { return c->met[i].cell; }
bool opq_capturing_wrote(const opq_capturing *c, int i) { return c->met[i].written; }

int opq_capturing_find(const opq_capturing *c, const opq_cell *cell)
{
    int i = c->count - 1;
    while (i >= 0 && c->met[i].cell != cell)
        i--;
    return i;
}

bool opq_capturing_made_it(const opq_capturing *c, const opq_cell *cell) { return cell->made_in == c->id; }

void opq_capturing_upload(opq_capturing *c, opq_value *leaf, int id)
{
    if (c->upload_count == c->upload_capacity) {
        int capacity = c->upload_capacity ? 2 * c->upload_capacity : 8;
        struct opq_upload *grown = realloc(c->uploads, (size_t)capacity * sizeof *grown);
        c->lost |= grown == NULL;
        if (grown == NULL)
            return;
        c->uploads = grown;
        c->upload_capacity = capacity;
    }
    opq_value_retain(leaf);
    c->uploads[c->upload_count++] = (struct opq_upload){leaf, id};
}

/* ---- noting */

static opq_met *meet(opq_capturing *c, opq_cell *cell)
{
    if (c->count == c->capacity) {
        int capacity = c->capacity ? 2 * c->capacity : 64;
        opq_met *grown = realloc(c->met, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            c->lost = true;
            return NULL;
        }
        c->met = grown;
        c->capacity = capacity;
    }
    opq_cell_retain(cell);
    c->met[c->count] = (opq_met){.cell = cell, .before = opq_cell_value_unseen(cell)};
    cell->met_in = c->id;
    cell->met = c->count;
    return &c->met[c->count++];
}

/* NULL: it was not met yet. Another thread that captures may have met it since. */
static opq_met *known(const opq_capturing *c, const opq_cell *cell)
{
    if (cell->met_in == c->id)
        return &c->met[cell->met];
    int i = atomic_load_explicit(&opq_capturings, memory_order_relaxed) > 1 ? opq_capturing_find(c, cell) : -1;
    return i >= 0 ? &c->met[i] : NULL;
}

void opq_capturing_meet(opq_capturing *c, opq_cell *cell)
{
    if (known(c, cell) == NULL)
        (void)meet(c, cell);
}

/* The cell's value, computed, as one that only it holds. NULL: it holds nothing, or there was no way. */
static opq_value *own_leaf(opq_capturing *c, opq_cell *cell, bool *out_nothing)
{
    static const opq_scope alone = {.kind = OPQ_SCOPE_asked, .runs = true};
    for (;;) {
        opq_value *old = opq_cell_value_unseen(cell), *leaf = NULL;
        *out_nothing = old == NULL;
        if (old == NULL)
            return NULL;
        bool computed =
            old->state == OPQ_VALUE_computed || opq_run_pending(c->ctx, &old, 1, &alone, OPQ_REASON_capture) == OPQ_OK;
        bool made = computed && old->state == OPQ_VALUE_computed &&
                    opq_value_leaf(c->ctx, &old->type, old->buffer, &leaf) == OPQ_OK;
        if (made)
            opq_value_retain(leaf);
        bool replaced = made && opq_cell_replace_unseen(cell, &old, leaf);
        opq_value_release(old);
        if (!made || replaced)
            return leaf;
        opq_value_release(leaf); /* another thread was first: once more, of what the cell holds now */
        opq_value_release(leaf);
    }
}

void opq_capturing_note(opq_cell *cell, bool write)
{
    opq_capturing *c = opq_capturing_here(cell->ctx);
    if (c == NULL)
        return;
    if (cell->made_in == c->id)
        return;
    opq_met *met = known(c, cell);
    met = met ? met : meet(c, cell);
    if (met == NULL)
        return;
    if (write) {
        met->written = true;
        return;
    }
    if (met->written || met->leaf || met->nothing)
        return;
    bool nothing;
    int number = (int)(met - c->met);
    opq_value *leaf = own_leaf(c, cell, &nothing);
    met = &c->met[number]; /* a run may have met others */
    met->leaf = leaf;
    met->nothing = nothing;
    c->lost |= !nothing && leaf == NULL;
}

int opq_capturing_escaped(opq_capturing *c, opq_cell *const *results, int count, opq_cell **out_cells, int max)
{
    opq_ctx *ctx = c->ctx;
    int found = 0;
    opq_spin_lock(&ctx->lock);
    for (int copied = 0; copied < 2; copied++)
        for (opq_cell *cell = copied ? ctx->copied_cells : ctx->pending_cells; cell; cell = cell->next) {
            bool other = cell->made_in != c->id ||
                         (!copied && (cell->value->origin != c->origin || cell->value->sequence < c->began));
            for (int i = 0; i < count && !other; i++)
                other = results[i] == cell;
            if (other)
                continue;
            if (found < max) {
                opq_cell_retain(cell);
                out_cells[found] = cell;
            }
            found++;
        }
    opq_spin_unlock(&ctx->lock);
    return found;
}

void opq_capturing_restore(opq_capturing *c)
{
    for (int i = 0; i < c->count; i++) {
        opq_value *before = c->met[i].before;
        if (before == NULL)
            continue;
        opq_value_retain(before);
        (void)opq_cell_replace_unseen(c->met[i].cell, NULL, before);
    }
}

opq_status opq_cell_take(opq_cell *cell, opq_cell *from)
{
    if (cell->bytes != from->bytes)
        return opq_fail(OPQ_INTERNAL, "a cell of %lld bytes takes %lld", (long long)cell->bytes, (long long)from->bytes);
    opq_value *value = opq_cell_value(from);
    if (value)
        (void)opq_cell_replace(cell, NULL, value);
    return OPQ_OK;
}

uint32_t opq_cell_line(opq_cell *cell)
{
    opq_spin_lock(&cell->ctx->lock);
    uint32_t line = cell->value ? cell->value->line : 0;
    opq_spin_unlock(&cell->ctx->lock);
    return line;
}

/* ---- numbers: an attribute has the id, conversions have what they convert as operand */

opq_status opq_value_number(opq_ctx *ctx, opq_dtype dtype, opq_number number, bool weak, int id, opq_value **out_value)
{
    opq_type type = opq_type_make(dtype, 0, NULL);
    opq_attr attr = {.key = OPQ_ATTR_result, .i = id};
    type.weak = weak;
    OPQ_TRY(opq_value_new(ctx, OPQ_OP_scalar, &type, NULL, 0, &attr, 1, out_value));
    (*out_value)->scalar = opq_eval_rounded(dtype, number);
    return OPQ_OK;
}

int opq_value_number_id(const opq_value *value, opq_dtype *out_dtypes, int max, int *out_count)
{
    int count = 1;
    for (const opq_value *v = value; v->arity == 1; v = v->operands[0])
        count++;
    *out_count = count;
    for (; count > 0; count--) {
        if (count <= max)
            out_dtypes[count - 1] = (opq_dtype)value->type.dtype;
        if (count > 1)
            value = value->operands[0];
    }
    return value->attr_count == 1 ? (int)value->attrs[0].i : -1;
}
