/* A step as C: what its run reads. Trees are left out where nothing reads them, which is all but epilogues' and those that tell what failed. */
#include "opaque/export_plan.h"

#include <stdlib.h>
#include <string.h>

opq_status opq_export_grow(void **items, int64_t count, size_t size)
{
    bool full = (count & (count - 1)) == 0; /* a power of two, or 0 */
    void *grown = full ? realloc(*items, (count ? 2 * (size_t)count : 1) * size) : *items;
    if (grown == NULL)
        return opq_fail(OPQ_NO_MEMORY, "export: out of memory");
    *items = grown;
    return OPQ_OK;
}

int opq_code_list_find(const opq_code_list *list, const opq_code *code)
{
    for (int i = 0; i < list->count; i++)
        if (list->items[i] == code)
            return i;
    return -1;
}

/* ---- values */

void opq_write_ints(opq_text *t, const int64_t *values, int64_t count)
{
    if (values == NULL || count == 0) {
        opq_text_add(t, "NULL");
        return;
    }
    opq_text_add(t, "(int64_t[]){");
    for (int64_t i = 0; i < count; i++)
        opq_text_add(t, "%s%lld", i ? "," : "", (long long)values[i]);
    opq_text_add(t, "}");
}

static void write_int32s(opq_text *t, const int32_t *values, int count)
{
    if (values == NULL || count == 0) {
        opq_text_add(t, "NULL");
        return;
    }
    opq_text_add(t, "(int32_t[]){");
    for (int i = 0; i < count; i++)
        opq_text_add(t, "%s%d", i ? "," : "", values[i]);
    opq_text_add(t, "}");
}

/* A member that is an array. */
static void write_member(opq_text *t, const char *name, const int64_t *values, int count)
{
    if (count == 0)
        return;
    opq_text_add(t, ", .%s = {", name);
    for (int i = 0; i < count; i++)
        opq_text_add(t, "%s%lld", i ? "," : "", (long long)values[i]);
    opq_text_add(t, "}");
}

void opq_write_string(opq_text *t, const char *string)
{
    if (string == NULL) {
        opq_text_add(t, "NULL");
        return;
    }
    opq_text_add(t, "\"");
    for (const char *c = string; *c; c++) {
        if (*c == '"' || *c == '\\')
            opq_text_add(t, "\\%c", *c);
        else if ((unsigned char)*c < ' ' || *c == '?' || (unsigned char)*c > '~')
            opq_text_add(t, "\\%03o", (unsigned)(unsigned char)*c);
        else
            opq_text_add(t, "%c", *c);
    }
    opq_text_add(t, "\"");
}

static void write_type(opq_text *t, const opq_type *type)
{
    opq_text_add(t, "{.dtype = %d, .rank = %d", type->dtype, type->rank);
    write_member(t, "size", type->size, type->rank);
    opq_text_add(t, "}");
}

static void write_attr(opq_text *t, const opq_attr *attr)
{
    opq_text_add(t, "{.key = %d, .is_int = %d, .count = %d, ", attr->key, attr->is_int, attr->count);
    switch (opq_attr_kind_of((opq_attr_key)attr->key)) {
    case OPQ_ATTR_KIND_INTS:
        opq_text_add(t, ".ints = ");
        opq_write_ints(t, attr->ints, attr->count);
        break;
    case OPQ_ATTR_KIND_STR:
        opq_text_add(t, ".str = ");
        opq_write_string(t, attr->str);
        break;
    case OPQ_ATTR_KIND_INT:
    case OPQ_ATTR_KIND_WORD:
    case OPQ_ATTR_KIND_NUMBER: opq_text_add(t, ".i = %lldLL", (long long)attr->i); break;
    }
    opq_text_add(t, "}");
}

/* ---- trees */

static void write_access(opq_text *t, const opq_access *a)
{
    opq_text_add(t, "{%d,%d,{", a->buffer, a->dtype);
    for (int l = 0; l < OPQ_LOOP_MAX; l++)
        opq_text_add(t, "%s%d", l ? "," : "", a->stride[l]);
    opq_text_add(t, "}},");
}

/* What fails is told by the step's checks: 1 + which of them is about the node; 0: none. */
static int check_of(const opq_step *step, opq_ref node)
{
    int i = 0;
    while (i < step->check_count && step->checks[i].node != node)
        i++;
    return i < step->check_count ? i + 1 : 0;
}

static void write_stmt(opq_text *t, const opq_stmt *s, const opq_step *step)
{
    opq_text_add(t, "{.op = %d, .dtype = %d, .role = %d, .variable = %d, .within = %d, .by = %d, .variables = %d, ",
                 s->op, s->dtype, s->role, s->variable, s->within, s->by, s->variables);
    opq_text_add(t, ".operand = {%d,%d,%d}, .access = %d, .end = %d, .value = {%lldLL}, .node = %d},", s->operand[0],
                 s->operand[1], s->operand[2], s->access, s->end, (long long)s->value.i, check_of(step, s->node));
}

typedef enum loops_detail { LOOPS_arguments, LOOPS_accesses, LOOPS_statements } loops_detail;

static void write_loops(opq_text *t, const opq_loops *k, loops_detail detail, const opq_step *step)
{
    opq_text_add(t, "{.rank = %d, .buffer_count = %d, .scalar_count = %d", k->rank, k->buffer_count, k->scalar_count);
    if (k->buffer_count > 0) {
        opq_text_add(t, ", .written = (uint8_t[]){");
        for (int i = 0; i < k->buffer_count; i++)
            opq_text_add(t, "%s%d", i ? "," : "", k->written[i]);
        opq_text_add(t, "}");
    }
    if (detail >= LOOPS_accesses && k->access_count > 0) {
        opq_text_add(t, ", .access_count = %d, .accesses = (opq_access[]){", k->access_count);
        for (int i = 0; i < k->access_count; i++)
            write_access(t, &k->accesses[i]);
        opq_text_add(t, "}");
    }
    if (detail >= LOOPS_statements) {
        opq_text_add(t, ", .stmt_count = %d, .stmts = (opq_stmt[]){", k->stmt_count);
        for (int i = 0; i < k->stmt_count; i++)
            write_stmt(t, &k->stmts[i], step);
        opq_text_add(t, "}");
    }
    opq_text_add(t, "}");
}

/* ---- products */

static void write_padded(opq_text *t, const opq_padded *p)
{
    opq_text_add(t, "&(opq_padded){.rank = %d, .offset = %lld, .count = %lld, .summed = %d, .reused = %d, .dim = {",
                 p->rank, (long long)p->offset, (long long)p->count, p->summed, p->reused);
    for (int i = 0; i < p->rank; i++)
        opq_text_add(t, "{%lld,%lld,%lld,%lld},", (long long)p->dim[i].stride, (long long)p->dim[i].first,
                     (long long)p->dim[i].count, (long long)p->dim[i].extent);
    opq_text_add(t, "}}");
}

static void write_table(opq_text *t, const char *name, const int64_t *values, int64_t count)
{
    if (values == NULL)
        return;
    opq_text_add(t, ", .%s = ", name);
    opq_write_ints(t, values, count);
}

static void write_matrix(opq_text *t, const opq_matrix *m, int64_t rows, int64_t columns)
{
    opq_text_add(t, "{.row_stride = %lld, .column_stride = %lld, .batch_stride = %lld, .dtype = %d",
                 (long long)m->row_stride, (long long)m->column_stride, (long long)m->batch_stride, (int)m->dtype);
    write_table(t, "rows", m->rows, rows);
    write_table(t, "columns", m->columns, columns);
    if (m->padded) {
        opq_text_add(t, ", .padded = ");
        write_padded(t, m->padded);
    }
    opq_text_add(t, "}");
}

static void write_contract(opq_text *t, const opq_contract *c, const opq_step *step)
{
    opq_text_add(t, "{.tile = %d, .product = %d, .m = %lld, .n = %lld, .k = %lld, .pairs = %d, .batch_rank = %d",
                 c->tile, c->product, (long long)c->m, (long long)c->n, (long long)c->k, c->pairs, c->batch_rank);
    write_member(t, "batch_extent", c->batch_extent, c->batch_rank);
    opq_text_add(t, ", .batch_strides = ");
    opq_write_ints(t, c->batch_strides, (int64_t)c->batch_rank * c->epilogue.access_count);
    opq_text_add(t, ", .dims = ");
    opq_write_ints(t, c->dims, opq_loops_dims_count(&c->epilogue));
    opq_text_add(t, ", .operand = {");
    for (int o = 0; o < 2; o++) {
        opq_text_add(t, "{.buffer = %d, .dtype = %d, .offset = %lld, .row_stride = %lld, .column_stride = %lld",
                     c->operand[o].buffer, (int)c->operand[o].dtype, (long long)c->operand[o].offset,
                     (long long)c->operand[o].row_stride, (long long)c->operand[o].column_stride);
        write_member(t, "batch_stride", c->operand[o].batch_stride, c->batch_rank);
        opq_text_add(t, "},");
    }
    opq_text_add(t, "}, .epilogue = ");
    write_loops(t, &c->epilogue, LOOPS_statements, step);
    opq_text_add(t, "}");
}

static void write_matmul(opq_text *t, const opq_matmul_step *m, const opq_step *step)
{
    opq_text_add(t, ",\n    .matmul = &(opq_matmul_step){.batch = %lld, .outer_rank = %d, .dtype = %d",
                 (long long)m->batch, m->outer_rank, (int)m->dtype);
    write_member(t, "outer_extent", m->outer_extent, m->outer_rank);
    if (m->outer_rank > 0)
        opq_text_add(t, ", .outer_stride = {");
    for (int o = 0; o < 2 && m->outer_rank > 0; o++) {
        opq_text_add(t, "{");
        for (int i = 0; i < m->outer_rank; i++)
            opq_text_add(t, "%lld,", (long long)m->outer_stride[o][i]);
        opq_text_add(t, "},");
    }
    opq_text_add(t, "%s,\n      .matrix = {", m->outer_rank > 0 ? "}" : "");
    write_matrix(t, &m->matrix[0], m->contract.m, m->contract.k);
    opq_text_add(t, ", ");
    write_matrix(t, &m->matrix[1], m->contract.k, m->contract.n);
    opq_text_add(t, "},\n      .contract = ");
    write_contract(t, &m->contract, step);
    opq_text_add(t, "}");
}

static void write_block(opq_text *t, const opq_block *b)
{
    opq_text_add(
        t,
        ",\n    .block = &(opq_block){.first_count = %d, .second_count = %d, .sums = %d, .matrix_count = %d, "
        ".place_count = %d, .count = %lld, .columns = %lld, .row_stride = %lld, .causal = %lld, .sampled = %d, "
        ".local_count = %d, .taken = {",
        b->first_count, b->second_count, b->sums, b->matrix_count, b->place_count, (long long)b->count,
        (long long)b->columns, (long long)b->row_stride, (long long)b->causal, b->sampled, b->local_count);
    for (int i = 0; i < b->second_count; i++)
        opq_text_add(t, "%d,", b->taken[i]);
    opq_text_add(t, "}, .sums_rows = {");
    for (int i = 0; i < b->second_count; i++)
        opq_text_add(t, "%d,", b->sums_rows[i]);
    opq_text_add(t, "}, .matrix = {");
    for (int i = 0; i < b->matrix_count; i++)
        opq_text_add(t, "{%d,%d},", b->matrix[i].buffer, b->matrix[i].place);
    opq_text_add(t, "}}");
}

/* ---- what else a step has */

static void write_checks(opq_text *t, const opq_step *s)
{
    if (s->check_count == 0)
        return;
    opq_text_add(t, ",\n    .check_count = %d, .checks = (opq_check[]){", s->check_count);
    for (int i = 0; i < s->check_count; i++) {
        const opq_check *c = &s->checks[i];
        opq_text_add(t, "{.node = %d, .divides = %d, .text = ", check_of(s, c->node), c->divides);
        opq_write_string(t, c->text);
        opq_text_add(t, ", .says = ");
        opq_write_string(t, c->says);
        opq_text_add(t, ", .words = {.axis = %d, .kind = %d, .wraps = %d, .by_position = %d, .type = ", c->words.axis,
                     (int)c->words.kind, c->words.wraps, c->words.by_position);
        write_type(t, &c->words.type);
        if (c->words.sizes) {
            opq_text_add(t, ", .sizes = &(opq_attr)");
            write_attr(t, c->words.sizes);
        }
        opq_text_add(t, "}},");
    }
    opq_text_add(t, "}");
}

/* The routine's node stands behind its operands, of which nothing is read but their types. */
static void write_routine(opq_text *t, const opq_step *s)
{
    const opq_node *node = s->routine;
    opq_text_add(t, ",\n    .routine = &(opq_node){.op = %d, .arity = %d, .attr_count = %d, .type = ", node->op,
                 node->arity, node->attr_count);
    write_type(t, &node->type);
    opq_text_add(t, ", .operand = (opq_ref[]){");
    for (int i = 0; i < node->arity; i++)
        opq_text_add(t, "%d,", i);
    opq_text_add(t, "}, .attr = (opq_attr[]){");
    for (int i = 0; i < node->attr_count; i++) {
        write_attr(t, &node->attr[i]);
        opq_text_add(t, ",");
    }
    opq_text_add(t, "{0}}}, .graph = &(opq_graph){.count = %d, .nodes = (opq_node[]){", node->arity);
    for (int i = 0; i < node->arity; i++) {
        opq_text_add(t, "{.type = ");
        write_type(t, &opq_node_at(s->graph, node->operand[i])->type);
        opq_text_add(t, "},");
    }
    opq_text_add(t, "}}");
}

static void write_step(opq_text *t, const opq_step *s, const opq_step *whole, const opq_code_list *codes);

static void write_parts(opq_text *t, const opq_step *s, const opq_code_list *codes)
{
    if (s->part_count == 0)
        return;
    opq_text_add(t, ",\n    .part_count = %d, .parts = (opq_step[]){\n", s->part_count);
    for (int i = 0; i < s->part_count; i++)
        write_step(t, &s->parts[i], s, codes);
    opq_text_add(t, "}");
}

/* Without the number that tells it from others of the graph. */
static void write_name(opq_text *t, const char *name)
{
    const char *end = strrchr(name, '_');
    bool numbered = end && end[1 + strspn(end + 1, "0123456789")] == '\0';
    opq_text_add(t, "\"%.*s\"", numbered ? (int)(end - name) : (int)strlen(name), name);
}

/* whole: whose part it is, or itself. */
static void write_step(opq_text *t, const opq_step *s, const opq_step *whole, const opq_code_list *codes)
{
    opq_text_add(t, "  {.kind = %d, .order = %d, .copy_from = %d, .copy_to = %d, .name = ", (int)s->kind, s->order,
                 s->copy_from, s->copy_to);
    write_name(t, s->name);
    opq_text_add(t, ", .lines = ");
    opq_write_string(t, s->lines ? s->lines : "");
    opq_text_add(t, ",\n    .bytes_read = %lld, .bytes_written = %lld, .flops = %lld, .scratch = %lld, .phases = %d",
                 (long long)s->bytes_read, (long long)s->bytes_written, (long long)s->flops, (long long)s->scratch,
                 s->phases);
    write_member(t, "units", s->units, s->phases);
    if (s->code)
        opq_text_add(t, ", .code = &code_%d", opq_code_list_find(codes, s->code));
    opq_text_add(t, ",\n    .buffers = ");
    write_int32s(t, s->buffers, s->loops.buffer_count);
    opq_text_add(t, ", .scalars = ");
    write_int32s(t, s->scalars, s->loops.scalar_count);
    if (s->part_count == 0) {
        opq_text_add(t, ", .dims = ");
        opq_write_ints(t, s->dims, opq_loops_dims_count(&s->loops));
    }
    opq_text_add(t, ", .loops = ");
    write_loops(t, &s->loops,
                s->part_count > 0                  ? LOOPS_arguments
                : s->check_count > 0 && !s->matmul ? LOOPS_statements
                                                   : LOOPS_accesses,
                whole);
    if (s->operand_count > 0 || s->result_count > 0) {
        opq_text_add(t, ",\n    .operand_count = %d, .result_count = %d, .operands = ", s->operand_count,
                     s->result_count);
        write_int32s(t, s->operands, s->operand_count);
        opq_text_add(t, ", .results = ");
        write_int32s(t, s->results, s->result_count);
    }
    if (s->matmul)
        write_matmul(t, s->matmul, whole);
    if (s->block)
        write_block(t, s->block);
    if (s->routine)
        write_routine(t, s);
    write_checks(t, s);
    write_parts(t, s, codes);
    opq_text_add(t, "},\n");
}

void opq_write_step(opq_text *t, const opq_step *step, const opq_code_list *codes) { write_step(t, step, step, codes); }
