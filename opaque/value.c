/* Values: one allocation each, released without recursion, so that a chain of any length can go. */
#include "graph/eval.h"
#include "opaque/context.h"

#include <stdlib.h>
#include <string.h>

static size_t ints_count(const opq_attr *attrs, int count)
{
    size_t total = 0;
    for (int i = 0; i < count; i++)
        if (opq_attr_kind_of((opq_attr_key)attrs[i].key) == OPQ_ATTR_KIND_INTS)
            total += (size_t)attrs[i].count;
    return total;
}

static size_t text_bytes(const opq_attr *attrs, int count)
{
    size_t total = 0;
    for (int i = 0; i < count; i++)
        if (opq_attr_kind_of((opq_attr_key)attrs[i].key) == OPQ_ATTR_KIND_STR)
            total += strlen(attrs[i].str) + 1;
    return total;
}

static void copy_attrs(opq_value *value, const opq_attr *attrs, int count, int64_t *ints, char *text)
{
    for (int i = 0; i < count; i++) {
        value->attrs[i] = attrs[i];
        opq_attr_kind kind = opq_attr_kind_of((opq_attr_key)attrs[i].key);
        if (kind == OPQ_ATTR_KIND_INTS) {
            value->attrs[i].ints = ints;
            for (int32_t k = 0; k < attrs[i].count; k++)
                *ints++ = attrs[i].ints[k];
        } else if (kind == OPQ_ATTR_KIND_STR) {
            size_t bytes = strlen(attrs[i].str) + 1;
            memcpy(text, attrs[i].str, bytes);
            value->attrs[i].str = text;
            text += bytes;
        }
    }
}

opq_status opq_value_new(opq_ctx *ctx, opq_op op, const opq_type *type, opq_value *const *operands, int arity,
                         const opq_attr *attrs, int attr_count, opq_value **out_value)
{
    size_t operand_bytes = (size_t)arity * sizeof *operands, attr_bytes = (size_t)attr_count * sizeof *attrs;
    size_t int_bytes = ints_count(attrs, attr_count) * sizeof(int64_t);
    int size_class;
    opq_value *value = opq_value_pool_take(
        &ctx->values, sizeof *value + operand_bytes + attr_bytes + int_bytes + text_bytes(attrs, attr_count),
        &size_class);
    if (value == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while recording %s", opq_op_info_of(op)->name);
    memset(value, 0, offsetof(opq_value, type));
    value->ctx = ctx;
    value->size_class = (int8_t)size_class;
    atomic_init(&value->refs, 1);
    value->op = (uint16_t)op;
    atomic_init(&value->state, OPQ_VALUE_pending);
    value->attr_count = (uint8_t)attr_count;
    value->arity = arity;
    opq_call_note(value);
    value->origin = opq_origin_get();
    value->sequence = atomic_fetch_add_explicit(&ctx->sequence, 1, memory_order_relaxed);
    value->type = *type;
    char *behind = (char *)(value + 1);
    value->operands = (opq_value **)behind;
    value->attrs = (opq_attr *)(behind + operand_bytes);
    for (int k = 0; k < arity; k++) {
        value->operands[k] = operands[k];
        opq_value_retain(operands[k]);
    }
    copy_attrs(value, attrs, attr_count, (int64_t *)(behind + operand_bytes + attr_bytes),
               behind + operand_bytes + attr_bytes + int_bytes);
    if (op != OPQ_OP_scalar)
        atomic_fetch_add_explicit(&ctx->pending, 1, memory_order_relaxed);
    *out_value = value;
    return OPQ_OK;
}

void opq_value_retain(opq_value *value) { atomic_fetch_add_explicit(&value->refs, 1, memory_order_relaxed); }

static void destroy(opq_value *value)
{
    opq_ctx *ctx = value->ctx;
    if (value->state == OPQ_VALUE_computed)
        opq_buffer_release(value->buffer);
    else if (value->state == OPQ_VALUE_failed)
        free(value->error);
    else if (value->op == OPQ_OP_extern && value->payload && ctx->host.release_payload)
        ctx->host.release_payload(ctx->host.self, value->payload);
    if (value->state == OPQ_VALUE_pending && value->op != OPQ_OP_scalar)
        atomic_fetch_sub_explicit(&ctx->pending, 1, memory_order_relaxed);
    opq_value_pool_give(&ctx->values, value, value->size_class);
}

void opq_value_release(opq_value *value)
{
    if (value == NULL || atomic_fetch_sub_explicit(&value->refs, 1, memory_order_acq_rel) != 1)
        return;
    value->next_free = NULL;
    for (opq_value *list = value; list;) {
        opq_value *dead = list;
        list = dead->next_free;
        for (int k = 0; k < dead->arity; k++) {
            opq_value *operand = dead->operands[k];
            if (atomic_fetch_sub_explicit(&operand->refs, 1, memory_order_acq_rel) == 1) {
                operand->next_free = list;
                list = operand;
            }
        }
        destroy(dead);
    }
}

void opq_value_drop_operands(opq_value *value)
{
    int32_t arity = value->arity;
    value->arity = 0;
    for (int k = 0; k < arity; k++)
        opq_value_release(value->operands[k]);
}

opq_type opq_value_type(const opq_value *value) { return value->type; }
opq_buffer *opq_value_buffer(const opq_value *value)
{
    return value->state == OPQ_VALUE_computed ? value->buffer : NULL;
}

opq_status opq_value_scalar(opq_ctx *ctx, opq_dtype dtype, opq_number number, bool weak, opq_value **out_value)
{
    opq_type type = opq_type_make(dtype, 0, NULL);
    type.weak = weak;
    OPQ_TRY(opq_value_new(ctx, OPQ_OP_scalar, &type, NULL, 0, NULL, 0, out_value));
    (*out_value)->scalar = opq_eval_rounded(dtype, number); /* integers wrap */
    return OPQ_OK;
}

opq_status opq_value_leaf(opq_ctx *ctx, const opq_type *type, opq_buffer *buffer, opq_value **out_value)
{
    if (opq_type_bytes(type) > (int64_t)opq_buffer_bytes(buffer))
        return opq_fail(OPQ_INVALID, "a value of %lld bytes in a buffer of %zu", (long long)opq_type_bytes(type),
                        opq_buffer_bytes(buffer));
    OPQ_TRY(opq_value_new(ctx, OPQ_OP_input, type, NULL, 0, NULL, 0, out_value));
    (*out_value)->buffer = buffer;
    if (atomic_load_explicit(&buffer->maker, memory_order_relaxed) == 0)
        opq_buffer_made(buffer, OPQ_OP_input, (*out_value)->line);
    atomic_store_explicit(&(*out_value)->state, OPQ_VALUE_computed, memory_order_relaxed);
    opq_buffer_retain(buffer);
    atomic_fetch_sub_explicit(&ctx->pending, 1, memory_order_relaxed);
    return OPQ_OK;
}
