/* Trees as bytes: every field that code generation reads, one by one: no padding, no name, no field that the statement does not use. */
#include "fusion/loop.h"

#define PUT(key, field) opq_text_bytes(key, &(field), sizeof(field))

static bool has_value(const opq_stmt *stmt)
{
    if (stmt->op >= OPQ_OP_COUNT)
        return false;
    opq_class class_ = opq_op_info_of((opq_op)stmt->op)->class_;
    return class_ == OPQ_CLASS_CONST || class_ == OPQ_CLASS_SCALAR || class_ == OPQ_CLASS_CAST ||
           class_ == OPQ_CLASS_SCAN;
}

static void put_stmt(opq_text *key, const opq_stmt *stmt)
{
    PUT(key, stmt->op);
    PUT(key, stmt->dtype);
    if (stmt->op == OPQ_STMT_loop) {
        PUT(key, stmt->role);
        PUT(key, stmt->variable);
        PUT(key, stmt->within);
        PUT(key, stmt->variables);
        PUT(key, stmt->value);
        PUT(key, stmt->end);
    } else if (stmt->op == OPQ_STMT_local) {
        PUT(key, stmt->variables);
    } else {
        PUT(key, stmt->operand);
        PUT(key, stmt->access);
    }
    if (has_value(stmt))
        PUT(key, stmt->value);
}

void opq_loops_key(const opq_loops *loops, opq_text *out_key)
{
    PUT(out_key, loops->rank);
    PUT(out_key, loops->access_count);
    PUT(out_key, loops->by_rows);
    PUT(out_key, loops->stmt_count);
    for (int a = 0; a < loops->access_count; a++) {
        PUT(out_key, loops->accesses[a].buffer);
        PUT(out_key, loops->accesses[a].dtype);
        opq_text_bytes(out_key, loops->accesses[a].stride, (size_t)loops->rank);
    }
    for (int i = 0; i < loops->stmt_count; i++)
        put_stmt(out_key, &loops->stmts[i]);
}
