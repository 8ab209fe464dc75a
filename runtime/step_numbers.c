/* See step_numbers.h. Statements, accesses, and what a routine's node says are none of them. */
#include "runtime/step_numbers.h"

#include <string.h>

/* A visitor that owns nothing writes nothing either: others may read the step meanwhile. */
static void own(opq_step_visitor *v, void *pointer, int64_t bytes)
{
    void *data;
    memcpy(&data, pointer, sizeof data);
    if (v->own == NULL || data == NULL)
        return;
    data = v->own(v, data, bytes);
    memcpy(pointer, &data, sizeof data);
}

static void sizes(opq_step_visitor *v, int64_t **array, int64_t count)
{
    own(v, array, count * (int64_t)sizeof **array);
    if (*array)
        v->sizes(v, *array, count);
}

static void table(opq_step_visitor *v, const int64_t **array, int64_t count)
{
    own(v, array, count * (int64_t)sizeof **array);
    if (*array)
        v->sizes(v, (int64_t *)*array, count);
}

static void places(opq_step_visitor *v, int32_t **array, int64_t count)
{
    own(v, array, count * (int64_t)sizeof **array);
    if (*array)
        v->places(v, *array, count);
}

static void visit_matrix(opq_step_visitor *v, opq_matrix *m, int64_t rows, int64_t columns)
{
    v->sizes(v, &m->row_stride, 1);
    v->sizes(v, &m->column_stride, 1);
    v->sizes(v, &m->batch_stride, 1);
    table(v, &m->rows, rows);
    table(v, &m->columns, columns);
}

static void visit_matmul(opq_step_visitor *v, opq_matmul_step *m)
{
    opq_contract *c = &m->contract;
    v->sizes(v, &m->batch, 1);
    sizes(v, &c->dims, opq_loops_dims_count(&c->epilogue));
    v->sizes(v, c->batch_extent, c->batch_rank);
    sizes(v, &c->batch_strides, (int64_t)c->batch_rank * c->epilogue.access_count);
    v->sizes(v, m->outer_extent, m->outer_rank);
    for (int o = 0; o < 2; o++) {
        v->sizes(v, &c->operand[o].offset, 1);
        v->sizes(v, &c->operand[o].row_stride, 1);
        v->sizes(v, &c->operand[o].column_stride, 1);
        v->sizes(v, c->operand[o].batch_stride, c->batch_rank);
        visit_matrix(v, &m->matrix[o], o == 0 ? c->m : c->k, o == 0 ? c->k : c->n);
        v->sizes(v, m->outer_stride[o], m->outer_rank);
    }
    v->sizes(v, &c->m, 1); /* behind the tables, whose lengths they are */
    v->sizes(v, &c->n, 1);
    v->sizes(v, &c->k, 1);
}

static void visit_block(opq_step_visitor *v, opq_block *b)
{
    v->sizes(v, &b->count, 1);
    v->sizes(v, &b->columns, 1);
    v->sizes(v, &b->row_stride, 1);
    v->sizes(v, &b->causal, 1);
}

static void visit_places(opq_step_visitor *v, opq_step *s)
{
    if (v->places == NULL)
        return;
    v->places(v, &s->order, 1);
    v->places(v, &s->copy_from, 1);
    v->places(v, &s->copy_to, 1);
    v->sizes(v, &s->scratch, 1);
    v->sizes(v, s->units, s->phases);
    places(v, &s->buffers, s->loops.buffer_count);
    places(v, &s->scalars, s->loops.scalar_count);
    places(v, &s->operands, s->operand_count);
    places(v, &s->results, s->result_count);
}

void opq_step_visit(opq_step_visitor *v, opq_step *s)
{
    visit_places(v, s);
    if (s->part_count == 0)
        sizes(v, &s->dims, opq_loops_dims_count(&s->loops));
    v->sizes(v, &s->bytes_read, 1);
    v->sizes(v, &s->bytes_written, 1);
    v->sizes(v, &s->flops, 1);
    if (s->matmul) {
        own(v, &s->matmul, sizeof *s->matmul);
        if (s->matmul)
            visit_matmul(v, s->matmul);
    }
    if (s->block) {
        own(v, &s->block, sizeof *s->block);
        if (s->block)
            visit_block(v, s->block);
    }
    own(v, &s->parts, s->part_count * (int64_t)sizeof *s->parts);
    for (int i = 0; s->parts && i < s->part_count; i++)
        opq_step_visit(v, &s->parts[i]);
}
