/* Cells: a storage is its size and its current value.
 *
 * A read gives the value as the window sees it, as a view node; a write gives the cell a new value: the written one if it covers the
 * cell, else an update of the old one. Readers that came before keep the value they took, so nothing is ever refreshed.
 */
#include "opaque/capturing.h"

#include <stdlib.h>
#include <string.h>

/* ---- holders, with the lock held */

static void join_list(opq_cell *cell, opq_cell **list)
{
    cell->list = list;
    cell->before = NULL;
    cell->next = *list;
    if (*list)
        (*list)->before = cell;
    *list = cell;
}

static void leave_list(opq_cell *cell)
{
    if (!cell->list)
        return;
    if (cell->before)
        cell->before->next = cell->next;
    else
        *cell->list = cell->next;
    if (cell->next)
        cell->next->before = cell->before;
    cell->list = NULL;
}

void opq_cells_settled(opq_value *value)
{
    for (opq_cell *cell = value->holders; cell; cell = cell->next_holder)
        leave_list(cell);
}

static void let_go(opq_cell *cell)
{
    opq_value *value = cell->value;
    if (value == NULL)
        return;
    if (cell->previous_holder)
        cell->previous_holder->next_holder = cell->next_holder;
    else
        value->holders = cell->next_holder;
    if (cell->next_holder)
        cell->next_holder->previous_holder = cell->previous_holder;
    cell->next_holder = cell->previous_holder = NULL;
    cell->value = NULL;
    leave_list(cell);
}

void opq_cell_hold(opq_cell *cell, opq_value *value)
{
    let_go(cell);
    cell->value = value;
    if (value == NULL)
        return;
    cell->next_holder = value->holders;
    if (value->holders)
        value->holders->previous_holder = cell;
    value->holders = cell;
    if (value->state == OPQ_VALUE_pending)
        join_list(cell, &cell->ctx->pending_cells);
    else if (cell->made_in && opq_capturing_is_open(cell->ctx, cell->made_in))
        join_list(cell, &cell->ctx->copied_cells);
}

/* ---- life */

static opq_status make(opq_ctx *ctx, int64_t bytes, opq_value *value, opq_cell **out_cell)
{
    opq_cell *cell = malloc(sizeof *cell); /* glibc's calloc passes its thread's cache by */
    if (cell == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    *cell = (opq_cell){.ctx = ctx, .refs = 1, .bytes = bytes};
    opq_capturing_made(cell);
    if (value)
        opq_value_retain(value);
    opq_spin_lock(&ctx->lock);
    opq_cell_hold(cell, value);
    opq_spin_unlock(&ctx->lock);
    *out_cell = cell;
    return OPQ_OK;
}

opq_status opq_cell_create(opq_ctx *ctx, int64_t bytes, opq_cell **out_cell)
{
    if (bytes < 0)
        return opq_fail(OPQ_INVALID, "a storage of %lld bytes", (long long)bytes);
    if (bytes > (64 << 20))
        OPQ_TRY(opq_pool_check(ctx->runtime.pool, bytes));
    return make(ctx, bytes, NULL, out_cell);
}

static opq_status run_now(opq_ctx *ctx, opq_value *value)
{
    if (!(opq_modes_get() & OPQ_MODE_EAGER) || value->state != OPQ_VALUE_pending)
        return OPQ_OK;
    return opq_materialize(ctx, &value, 1, OPQ_REASON_eager);
}

/* A number is an argument, not something that can be stored: a cell holds a node that reads it. */
static opq_status storable(opq_ctx *ctx, opq_value *value, opq_value **out_value)
{
    if (value->op == OPQ_OP_scalar && value->state == OPQ_VALUE_pending) {
        opq_type type = value->type;
        type.weak = 0;
        return opq_record_typed(ctx, OPQ_OP_expand, &type, &value, 1, NULL, 0, out_value);
    }
    opq_value_retain(value);
    *out_value = value;
    return OPQ_OK;
}

/* More than a process can address. What no machine has but kernels may never store is not refused. */
static opq_status check_size(const opq_value *value)
{
    int64_t bytes = opq_type_bytes(&value->type);
    if (bytes <= (int64_t)1 << 47)
        return OPQ_OK;
    return opq_fail(OPQ_NO_MEMORY, "%s: can't allocate memory: you tried to allocate %lld bytes",
                    opq_op_info_of((opq_op)value->op)->name, (long long)bytes);
}

opq_status opq_cell_from_value(opq_ctx *ctx, opq_value *value, opq_cell **out_cell)
{
    opq_value *stored;
    OPQ_TRY(check_size(value));
    OPQ_TRY(storable(ctx, value, &stored));
    opq_status status = run_now(ctx, stored);
    if (status == OPQ_OK)
        status = make(ctx, opq_type_bytes(&stored->type), stored, out_cell);
    opq_value_release(stored);
    return status;
}

void opq_cell_retain(opq_cell *cell) { atomic_fetch_add_explicit(&cell->refs, 1, memory_order_relaxed); }

void opq_cell_release(opq_cell *cell)
{
    if (cell == NULL || atomic_fetch_sub_explicit(&cell->refs, 1, memory_order_acq_rel) != 1)
        return;
    opq_ctx *ctx = cell->ctx;
    opq_spin_lock(&ctx->lock);
    opq_value *value = cell->value;
    let_go(cell);
    opq_spin_unlock(&ctx->lock);
    opq_value_release(value);
    for (int i = 0; i < cell->history_count; i++)
        opq_value_release(cell->history[i]);
    free(cell);
}

int opq_cell_references(const opq_cell *cell) { return atomic_load(&cell->refs); }
int64_t opq_cell_bytes(const opq_cell *cell) { return cell->bytes; }

uint64_t opq_cell_address(opq_cell *cell)
{
    static _Atomic(uint64_t) next = 1ull << 60; /* no canonical address of a 64-bit processor */
    uint64_t address = atomic_load(&cell->address);
    if (address == 0) {
        uint64_t fresh = atomic_fetch_add(&next, ((uint64_t)cell->bytes + 4096 + 63) / 64 * 64);
        if (atomic_compare_exchange_strong(&cell->address, &address, fresh))
            address = fresh;
    }
    return address;
}

/* ---- reading */

opq_value *opq_cell_computed(opq_cell *cell)
{
    opq_spin_lock(&cell->ctx->lock);
    opq_value *value = cell->value;
    if (value && value->state == OPQ_VALUE_pending)
        value = cell->history_count > 0 ? cell->history[0] : NULL;
    if (value && value->state == OPQ_VALUE_computed)
        opq_value_retain(value);
    else
        value = NULL;
    opq_spin_unlock(&cell->ctx->lock);
    return value;
}

opq_value *opq_cell_value(opq_cell *cell)
{
    opq_capturing_read(cell);
    return opq_cell_value_unseen(cell);
}

opq_value *opq_cell_value_unseen(opq_cell *cell)
{
    opq_spin_lock(&cell->ctx->lock);
    opq_value *value = cell->value;
    if (value)
        opq_value_retain(value);
    opq_spin_unlock(&cell->ctx->lock);
    return value;
}

bool opq_cell_in_memory(opq_cell *cell)
{
    opq_spin_lock(&cell->ctx->lock);
    const opq_value *value = cell->value;
    bool found = value && (value->state == OPQ_VALUE_computed || opq_op_changes_operand((opq_op)value->op));
    opq_spin_unlock(&cell->ctx->lock);
    return found;
}

int opq_cell_forget(opq_cell *cell, opq_value **out_drop)
{
    int count = cell->history_count;
    memcpy(out_drop, cell->history, (size_t)count * sizeof *out_drop);
    cell->history_count = 0;
    cell->history_lost = false;
    return count;
}

bool opq_cell_replace(opq_cell *cell, opq_value *const *expected, opq_value *value)
{
    opq_capturing_write(cell);
    return opq_cell_replace_unseen(cell, expected, value);
}

bool opq_cell_replace_unseen(opq_cell *cell, opq_value *const *expected, opq_value *value)
{
    opq_value *drop[OPQ_HISTORY_MAX + 1];
    int count = 0;
    opq_spin_lock(&cell->ctx->lock);
    opq_value *old = cell->value;
    if (expected && *expected != old) {
        opq_spin_unlock(&cell->ctx->lock);
        return false;
    }
    opq_cell_hold(cell, value);
    if (value->state != OPQ_VALUE_pending || (old && old->state == OPQ_VALUE_computed))
        count = opq_cell_forget(cell, drop);
    if (old && (old->state == OPQ_VALUE_failed || value->state != OPQ_VALUE_pending)) {
        drop[count++] = old;
    } else if (old) {
        if (cell->history_count == OPQ_HISTORY_MAX) { /* the oldest stays: nothing else of it is left to compute */
            drop[count++] = cell->history[1];
            memmove(cell->history + 1, cell->history + 2, (OPQ_HISTORY_MAX - 2) * sizeof *cell->history);
            cell->history_count--;
            cell->history_lost = true;
        }
        cell->history[cell->history_count++] = old;
    }
    opq_spin_unlock(&cell->ctx->lock);
    for (int i = 0; i < count; i++)
        opq_value_release(drop[i]);
    return true;
}

static void replace_value(opq_cell *cell, opq_value *value) { (void)opq_cell_replace(cell, NULL, value); }

/* What the whole cell holds (NULL: nothing was written yet) as a dense value of this dtype: undefined, the value, or its bytes read as
 * another dtype. */
static opq_status whole_value(opq_ctx *ctx, const opq_cell *cell, opq_value *value, opq_dtype dtype, opq_value **out_value)
{
    if (value && value->type.dtype == dtype && opq_type_bytes(&value->type) <= cell->bytes) {
        opq_value_retain(value);
        *out_value = value;
        return OPQ_OK;
    }
    int64_t count = cell->bytes / opq_dtype_bytes(dtype);
    opq_type flat = opq_type_make(dtype, 1, &count);
    if (value == NULL)
        return opq_record_typed(ctx, OPQ_OP_undefined, &flat, NULL, 0, NULL, 0, out_value);
    opq_status status = opq_materialize(ctx, &value, 1, OPQ_REASON_reinterpret);
    if (status == OPQ_OK) {
        count = opq_type_bytes(&value->type) / opq_dtype_bytes(dtype);
        flat = opq_type_make(dtype, 1, &count);
        status = opq_value_leaf(ctx, &flat, value->buffer, out_value);
    }
    return status;
}

/* Floats seen as a row of int64 may leave a rest behind the last. */
static bool has_rest(const opq_cell *cell, opq_dtype dtype) { return cell->bytes % opq_dtype_bytes(dtype) != 0; }

/* What is read where nothing was written: zeros, except of types without numbers. */
static opq_status unwritten(opq_ctx *ctx, const opq_cell *cell, opq_dtype dtype, opq_value **out_value)
{
    dtype = has_rest(cell, dtype) ? OPQ_u8 : dtype;
    int64_t count = cell->bytes / opq_dtype_bytes(dtype);
    opq_type flat = opq_type_make(dtype, 1, &count);
    opq_value *zero;
    if (opq_dtype_kind_of(dtype) == OPQ_KIND_RAW)
        return whole_value(ctx, cell, NULL, dtype, out_value);
    OPQ_TRY(opq_value_scalar(ctx, dtype, (opq_number){0}, false, &zero));
    opq_status status = opq_record_typed(ctx, OPQ_OP_expand, &flat, &zero, 1, NULL, 0, out_value);
    opq_value_release(zero);
    return status;
}

static int64_t geometry_end(const opq_geometry *geometry)
{
    int64_t last = geometry->offset;
    for (int d = 0; d < geometry->rank; d++) {
        if (geometry->size[d] == 0)
            return 0;
        last += (geometry->size[d] - 1) * geometry->stride[d];
    }
    return last + 1;
}

static opq_status check_window(const opq_cell *cell, const opq_geometry *geometry)
{
    int64_t need = geometry_end(geometry) * opq_dtype_bytes(geometry->dtype);
    if (geometry->rank > OPQ_RANK_MAX)
        return opq_fail(OPQ_UNSUPPORTED, "tensors of device opaque have at most %d dimensions, not %d", OPQ_RANK_MAX,
                        geometry->rank);
    if (geometry->offset < 0 || need > cell->bytes)
        return opq_fail(OPQ_INVALID, "a view of %lld bytes is out of bounds for storage of size %lld", (long long)need,
                        (long long)cell->bytes);
    return OPQ_OK;
}

static bool shows_all_of(const opq_geometry *geometry, const opq_type *type)
{
    return geometry->dtype == type->dtype && geometry->rank == type->rank && geometry->offset == 0 &&
           memcmp(geometry->size, type->size, type->rank * sizeof *type->size) == 0 && opq_geometry_contiguous(geometry);
}

opq_status opq_cell_read(opq_ctx *ctx, opq_cell *cell, const opq_geometry *geometry, opq_value **out_value)
{
    opq_value *whole = NULL;
    OPQ_TRY(check_window(cell, geometry));
    opq_value *value = opq_cell_value(cell);
    if (value && shows_all_of(geometry, &value->type)) {
        *out_value = value;
        return OPQ_OK;
    }
    if (value == NULL) { /* whoever reads it again finds the same */
        opq_value *nothing = NULL;
        OPQ_TRY(unwritten(ctx, cell, geometry->dtype, &value));
        opq_value_retain(value);
        if (!opq_cell_replace(cell, &nothing, value))
            opq_value_release(value);
    }
    opq_status status = whole_value(ctx, cell, value, geometry->dtype, &whole);
    if (status == OPQ_OK)
        status = opq_geometry_view(ctx, whole, geometry, out_value);
    opq_value_release(whole);
    opq_value_release(value);
    return status;
}

/* ---- the short way */

/* Of `type`, or one element of its dtype. */
static bool fits(const opq_value *value, const opq_type *type)
{
    return opq_type_equal(&value->type, type) || (value->type.rank == 0 && value->type.dtype == type->dtype);
}

/* Retains what the cells hold, if all of it fits and operand 0 is of `type`. */
static bool take_plain(opq_ctx *ctx, opq_cell *const *cells, opq_value *const *values, int count, const opq_type *type,
                       opq_value **out_values)
{
    bool plain = true;
    for (int i = 0; i < count; i++)
        if (cells[i])
            opq_capturing_read(cells[i]);
    opq_spin_lock(&ctx->lock);
    for (int i = 0; i < count && plain; i++) {
        out_values[i] = cells[i] ? cells[i]->value : values[i];
        plain = out_values[i] && (i > 0 ? fits(out_values[i], type) : opq_type_equal(&out_values[i]->type, type));
    }
    for (int i = 0; i < count && plain; i++)
        opq_value_retain(out_values[i]);
    opq_spin_unlock(&ctx->lock);
    return plain;
}

/* Is the op's result of the type of its operands, or bool? */
static bool is_plain(opq_op op, int arity, const opq_type *type, bool in_place)
{
    const opq_op_info *info = opq_op_info_of(op);
    bool tests = info->rule == OPQ_RULE_BOOL;
    bool same = info->class_ == OPQ_CLASS_EWISE && arity == info->arity &&
                (info->rule == OPQ_RULE_SAME || info->rule == OPQ_RULE_FLOAT || (tests && !in_place));
    bool real =
        opq_dtype_kind_of((opq_dtype)type->dtype) == OPQ_KIND_FLOAT && opq_op_computes(op, (opq_dtype)type->dtype);
    return same && real && !(info->flags & OPQ_FLAG_NOFLOAT);
}

opq_status opq_cell_record(opq_ctx *ctx, opq_op op, opq_cell *const *cells, opq_value *const *values, int arity,
                           const opq_type *type, opq_cell **out_cell)
{
    enum { OPERANDS_MAX = 8 };
    opq_value *operands[OPERANDS_MAX], *made;
    bool in_place = out_cell == NULL;
    if (arity > OPERANDS_MAX || !is_plain(op, arity, type, in_place) ||
        (in_place && cells[0]->bytes != opq_type_bytes(type)) || (opq_modes_get() & OPQ_MODE_EAGER))
        return OPQ_UNSUPPORTED;
    opq_type result = *type;
    result.dtype = opq_op_info_of(op)->rule == OPQ_RULE_BOOL ? OPQ_bool : type->dtype;
    OPQ_TRY(opq_bound_check(ctx, op, &result));
    for (;;) {
        if (!take_plain(ctx, cells, values, arity, type, operands))
            return OPQ_UNSUPPORTED;
        opq_status status = opq_value_new(ctx, op, &result, operands, arity, NULL, 0, &made);
        bool done = !in_place || status != OPQ_OK || opq_cell_replace(cells[0], &operands[0], made);
        for (int i = 0; i < arity; i++)
            opq_value_release(operands[i]);
        OPQ_TRY(status);
        if (done)
            break;
        opq_value_release(made); /* another thread wrote in between: add to that */
    }
    atomic_fetch_add_explicit(&ctx->stats.ops_recorded, 1, memory_order_relaxed);
    if (in_place)
        return OPQ_OK;
    opq_status status = make(ctx, opq_type_bytes(&result), made, out_cell);
    opq_value_release(made);
    return status;
}

/* ---- writing */

/* The cell in memory order: a permuted window is written as the permuted value. */
static opq_status in_memory_order(opq_ctx *ctx, opq_value *value, const int64_t *order, opq_value **out_value)
{
    bool sorted = true;
    for (int d = 0; d < value->type.rank; d++)
        sorted = sorted && order[d] == d;
    if (sorted)
        return storable(ctx, value, out_value);
    opq_attr dims = {.key = OPQ_ATTR_dims, .count = value->type.rank, .ints = order};
    return opq_record(ctx, OPQ_OP_permute, &value, 1, &dims, 1, out_value);
}

static opq_status make_update(opq_ctx *ctx, const opq_cell *cell, opq_value *current, const opq_geometry *geometry,
                              opq_value *value, opq_value **out_value)
{
    opq_value *old;
    OPQ_TRY(whole_value(ctx, cell, current, geometry->dtype, &old));
    opq_attr attrs[] = {
        {.key = OPQ_ATTR_offset, .i = geometry->offset},
        {.key = OPQ_ATTR_sizes, .count = geometry->rank, .ints = geometry->size},
        {.key = OPQ_ATTR_strides, .count = geometry->rank, .ints = geometry->stride},
    };
    opq_value *pair[] = {old, value};
    opq_status status = opq_record(ctx, OPQ_OP_update, pair, 2, attrs, 3, out_value);
    opq_value_release(old);
    return status;
}

/* Runs `next` now in eager mode, then the cell holds it: takes the reference. expected: see opq_cell_replace. */
static opq_status put(opq_ctx *ctx, opq_cell *cell, opq_value *const *expected, opq_value *next, bool *out_done)
{
    opq_status status = run_now(ctx, next);
    *out_done = status == OPQ_OK && opq_cell_replace(cell, expected, next);
    if (!*out_done)
        opq_value_release(next);
    return status;
}

/* A write to a part keeps the rest: also what another thread writes to the rest meanwhile. */
static opq_status write_part(opq_ctx *ctx, opq_cell *cell, const opq_geometry *geometry, opq_value *value)
{
    opq_status status = OPQ_OK;
    for (bool done = false; !done && status == OPQ_OK;) {
        opq_value *current = opq_cell_value(cell), *next;
        status = make_update(ctx, cell, current, geometry, value, &next);
        if (status == OPQ_OK)
            status = put(ctx, cell, &current, next, &done);
        opq_value_release(current);
    }
    return status;
}

/* What lies behind the last element stays too. */
static opq_status write_bytes(opq_ctx *ctx, opq_cell *cell, const opq_geometry *geometry, opq_value *value)
{
    int64_t size[OPQ_RANK_MAX], stride[OPQ_RANK_MAX], width = opq_dtype_bytes(geometry->dtype);
    int rank = geometry->rank;
    if (rank == OPQ_RANK_MAX)
        return opq_fail(OPQ_UNSUPPORTED, "a write of %d dimensions to a storage of %lld bytes, with %lld to an element",
                        rank, (long long)cell->bytes, (long long)width);
    for (int d = 0; d < rank; d++) {
        size[d] = geometry->size[d];
        stride[d] = geometry->stride[d] * width;
    }
    size[rank] = width;
    stride[rank] = 1;
    opq_geometry bytes = {.dtype = OPQ_u8, .rank = rank + 1, .size = size, .stride = stride};
    bytes.offset = geometry->offset * width;
    opq_type type = opq_type_make(OPQ_u8, rank + 1, size);
    opq_value *stored, *leaf;
    OPQ_TRY(storable(ctx, value, &stored));
    opq_status status = opq_materialize(ctx, &stored, 1, OPQ_REASON_reinterpret);
    if (status == OPQ_OK)
        status = opq_value_leaf(ctx, &type, stored->buffer, &leaf);
    opq_value_release(stored);
    OPQ_TRY(status);
    status = write_part(ctx, cell, &bytes, leaf);
    opq_value_release(leaf);
    return status;
}

opq_status opq_cell_write(opq_ctx *ctx, opq_cell *cell, const opq_geometry *geometry, opq_value *value)
{
    int64_t order[OPQ_RANK_MAX];
    opq_type shape = opq_type_make(geometry->dtype, geometry->rank, geometry->size);
    opq_value *next;
    OPQ_TRY(check_window(cell, geometry));
    if (!opq_type_equal(&shape, &value->type))
        return opq_fail(OPQ_INTERNAL, "a write of another dtype or shape than its window");
    if (opq_type_count(&shape) == 0)
        return OPQ_OK;
    if (opq_geometry_overlaps(geometry))
        return opq_fail(
            OPQ_INVALID,
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation.");
    if (has_rest(cell, geometry->dtype))
        return write_bytes(ctx, cell, geometry, value);
    if (!opq_geometry_covers(geometry, cell->bytes / opq_dtype_bytes(geometry->dtype), order))
        return write_part(ctx, cell, geometry, value);
    bool done;
    OPQ_TRY(in_memory_order(ctx, value, order, &next));
    return put(ctx, cell, NULL, next, &done);
}

opq_status opq_cell_resize(opq_ctx *ctx, opq_cell *cell, int64_t bytes)
{
    if (bytes == cell->bytes)
        return OPQ_OK;
    OPQ_TRY(opq_pool_check(ctx->runtime.pool, bytes));
    opq_value *value = opq_cell_value(cell);
    if (value) {
        OPQ_TRY(opq_capturing_forbids(ctx, OPQ_REASON_reinterpret));
        int64_t kept = opq_type_bytes(&value->type) < bytes ? opq_type_bytes(&value->type) : bytes;
        opq_type flat = opq_type_make(OPQ_raw8, 1, &bytes);
        opq_buffer *buffer = NULL;
        opq_value *leaf = NULL;
        opq_status status = opq_materialize(ctx, &value, 1, OPQ_REASON_reinterpret);
        if (status == OPQ_OK)
            status = opq_pool_buffer(ctx->runtime.pool, (size_t)bytes, &buffer);
        if (status == OPQ_OK) {
            memcpy(buffer->data, value->buffer->data, (size_t)kept);
            flat = value->type;
            int64_t count = bytes / opq_dtype_bytes((opq_dtype)flat.dtype);
            flat = opq_type_make((opq_dtype)flat.dtype, 1, &count);
            status = opq_value_leaf(ctx, &flat, buffer, &leaf);
        }
        opq_buffer_release(buffer);
        opq_value_release(value);
        OPQ_TRY(status);
        replace_value(cell, leaf);
    }
    cell->bytes = bytes;
    return OPQ_OK;
}
