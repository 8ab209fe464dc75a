/* A cell's memory, for a call outside the core that reads or writes it. */
#include "opaque/context.h"

#include <string.h>

/* With the lock held: is this the cell's value, and data of the cell's whole size that nobody else reads? The caller has a reference. */
static bool owns_memory(const opq_cell *cell, const opq_value *value)
{
    const opq_buffer *buffer = value->buffer;
    return cell->value == value && atomic_load(&value->refs) == 2 && atomic_load(&buffer->refs) == 1 &&
           atomic_load(&buffer->packed) == NULL && buffer->size_class >= 0 && (int64_t)buffer->bytes >= cell->bytes;
}

/* A leaf of the cell's size that begins with the bytes of `old`, which may be NULL. */
static opq_status copy_whole(const opq_cell *cell, const opq_value *old, opq_dtype dtype, opq_value **out_value)
{
    opq_buffer *buffer;
    if (cell->bytes % opq_dtype_bytes(dtype) != 0)
        dtype = OPQ_raw8;
    int64_t count = cell->bytes / opq_dtype_bytes(dtype);
    opq_type type = opq_type_make(dtype, 1, &count);
    if (old && opq_type_bytes(&old->type) == cell->bytes)
        type = old->type;
    OPQ_TRY(opq_pool_buffer(cell->ctx->runtime.pool, (size_t)cell->bytes, &buffer));
    if (old) {
        size_t kept = (size_t)opq_type_bytes(&old->type);
        memcpy(buffer->data, old->buffer->data, kept < (size_t)cell->bytes ? kept : (size_t)cell->bytes);
    }
    opq_status status = opq_value_leaf(cell->ctx, &type, buffer, out_value);
    opq_buffer_release(buffer);
    return status;
}

/* Gives the cell a copy of `old`, which is its value, unless somebody has written meanwhile: then nothing happens. */
static opq_status own_copy(opq_cell *cell, opq_value *old, opq_dtype dtype)
{
    opq_value *copy;
    OPQ_TRY(copy_whole(cell, old, dtype, &copy));
    if (!opq_cell_replace(cell, &old, copy))
        opq_value_release(copy);
    return OPQ_OK;
}

opq_status opq_cell_lend(opq_ctx *ctx, opq_cell *cell, opq_dtype dtype, opq_reason reason, opq_buffer **out_buffer)
{
    opq_status status = OPQ_OK;
    for (bool own = false; status == OPQ_OK && !own;) {
        opq_value *value = opq_cell_value(cell);
        if (value)
            status = opq_materialize(ctx, &value, 1, reason);
        if (status == OPQ_OK && value) {
            opq_spin_lock(&ctx->lock);
            own = owns_memory(cell, value);
            if (own)
                opq_buffer_lend(*out_buffer = value->buffer);
            opq_spin_unlock(&ctx->lock);
        }
        if (status == OPQ_OK && !own)
            status = own_copy(cell, value, dtype);
        opq_value_release(value);
    }
    return status;
}
