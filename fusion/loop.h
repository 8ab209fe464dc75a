/* A kernel as a tree: loops with roles, around statements in SSA. It says what is computed, in which order values are combined and
 * where they go, and nothing of how that is emitted.
 *
 * Statements stand in one array, in program order; a loop's body is what follows it up to `end`. A statement's number names its value.
 * A value is seen in the rest of the loop that it stands in; a fold's also behind the outermost reducing loop around it, where it is the
 * result, and only there. A scan is a fold whose value is seen in its loop: in each turn, of the turns so far, held `in` another dtype.
 *
 * A role is a permission and never a meaning: running every loop in order, and every fold by its rule, gives the bits. Loops of one letter
 * are one variable of the kernel, which may be run several times: in one sweep after another.
 *
 * A loop `in` another runs a block of OPQ_CHUNK of its turns, which is a turn of the other: of a long row, threads do the blocks, and what
 * they make is combined in a loop that follows. Nested loops in the same one are one sequence, of which a block begins and ends anywhere.
 * Loops one after another at the top are phases: all of one is done before the next begins.
 *
 * A chain's loop may have a number of turns that is part of the kernel. If it is `along` a loop around, a turn of it moves all that both move as a turn
 * of that does: what one reads, the other reads again.
 *
 * A local lives for one iteration of the loop around it. In one that counts blocks of its one variable it has the elements of a block.
 *
 * That is its meaning. A schedule (`scheduled`, fusion/schedule.h) is a tree of the same form that says how it runs, too: rules are spelled out.
 * A loop `by` a number counts blocks of so many turns of those `in` it, which may count blocks, too; its variable is none of the kernel's and has no
 * argument. One that is independent counts blocks of one variable's loops, which are, and other loops may stand between the two: tiles. Before a loop stands a carry, a value that a fold in it makes another: folded with an operand. It begins as what changes nothing, and is
 * behind the loop what the last turn left. One `by` 64 is as many partial results, which folds take in turn; `halves` folds those: each of the first half
 * with its counterpart in the other, and so on. `at` is the turn, of all that folded, which made an argmax or argmin what it is.
 *
 * Run-time arguments, all int64 in one array `dims` (d3 is the fourth of them):
 *   dims[0..rank)                                     extents of the variables
 *   dims[rank + a * (rank + 3) ..]  for access a:     offset, stride per variable (elements), at_stride, at_extent
 */
#ifndef OPAQUE_FUSION_LOOP_H
#define OPAQUE_FUSION_LOOP_H

#include "fusion/limits.h"
#include "graph/graph.h"

/* Elements from turn to turn. Below `any` it is the number itself, which is baked, as -1 is: two to four elements are loaded as vectors that
 * are taken apart, one element backwards as a vector that is turned round. */
typedef enum opq_stride { OPQ_STRIDE_zero, OPQ_STRIDE_one, OPQ_STRIDE_any = 5, OPQ_STRIDE_back } opq_stride;

/* offset + sum over loops of index * stride: an element of a buffer, or (buffer < 0) just that number. */
typedef struct opq_access {
    int16_t buffer;
    uint8_t dtype;                /* in memory */
    uint8_t stride[OPQ_LOOP_MAX]; /* opq_stride */
} opq_access;

/* Where the arguments of an access begin in `dims`. */
static inline int opq_dims_of(int rank, int access) { return rank + access * (rank + 3); }
/* What a dtype is computed in: f16 and bf16 in f32; raw words are moved as integers of their width. */
opq_dtype opq_compute_dtype(opq_dtype dtype);

typedef enum opq_loop_role {
    OPQ_LOOP_parallel, /* iterations are independent: for threads */
    OPQ_LOOP_each,     /* independent */
    OPQ_LOOP_vector,   /* independent: for lanes */
    OPQ_LOOP_unroll, /* independent, and so few that their number is part of the kernel: made at once, what is loaded for one serves all */
    OPQ_LOOP_serial, /* in order; a scan in it carries what it holds from turn to turn */
    OPQ_LOOP_lanes,  /* independent but for folds, which combine by OPQ_TREE_lanes */
    OPQ_LOOP_column, /* the same by OPQ_TREE_column */
    OPQ_LOOP_chain, /* in order; the folds are products: from +0 on, each turn adds one by a fused multiply-add; or of i8 to i32 */
    OPQ_LOOP_pairs,   /* likewise of bf16, two turns at a time by opq_pairs_steps (scalar.h) */
    OPQ_LOOP_pairs16, /* 32 turns at a time */
} opq_loop_role;
const char *opq_loop_role_name(opq_loop_role role);
static inline bool opq_loop_reduces(opq_loop_role role) { return role >= OPQ_LOOP_lanes; }
/* Are the folds in it products? */
static inline bool opq_loop_contracts(opq_loop_role role) { return role >= OPQ_LOOP_chain; }
/* Pairs of a step; 0: it is no such rule. */
static inline int opq_loop_pairs(opq_loop_role role)
{
    return role == OPQ_LOOP_pairs ? 1 : role == OPQ_LOOP_pairs16 ? 16 : 0;
}

/* Statements beyond the rows of the op table. */
typedef enum opq_stmt_op {
    OPQ_STMT_load = OPQ_OP_COUNT, /* access; where operand 0 (bool), if there is one, is false, 0 and nothing is read */
    OPQ_STMT_load_at,      /* access + operand 0 * at_stride; operand 0 (i64) is checked against [0, at_extent) */
    OPQ_STMT_check,        /* operand 0 (i64) is checked against [0, at_extent) of a bufferless access; no value */
    OPQ_STMT_store,        /* access; operand 0 is the value */
    OPQ_STMT_store_add_at, /* access + operand 0 * at_stride gets operand 1 added; checked; all loops are serial */
    OPQ_STMT_number,       /* the access's number, i64 (iota, linear index, extent) */
    OPQ_STMT_inside,       /* is the access's number in [0, at_extent)? bool */
    OPQ_STMT_nonzero,      /* operand 0 (an integer of `dtype`), by which operand 1 is divided, is checked; no value */
    OPQ_STMT_loop,
    OPQ_STMT_local, /* a buffer that lives for one iteration of the loop around it: an element for each turn of `variables` */
    OPQ_STMT_keep, /* operand 0 into the element of local `access` at the loops around */
    OPQ_STMT_kept, /* that element */
    /* of a schedule */
    OPQ_STMT_carry,  /* value.i is the opq_op that folds */
    OPQ_STMT_fold,   /* operand 0 into carry `access` */
    OPQ_STMT_halves, /* of the partial results of carry `access` */
    OPQ_STMT_at,     /* of carry `access`; i64 */
} opq_stmt_op;

/* By the op alone, of the table or of these. A product of matrices is the sum of its operands' products: it reduces, too. */
static inline bool opq_op_contracts(int op)
{
    return op < OPQ_OP_COUNT && opq_op_info_of((opq_op)op)->class_ == OPQ_CLASS_MATMUL;
}
static inline bool opq_op_reduces(int op)
{
    return opq_op_contracts(op) || (op < OPQ_OP_COUNT && opq_op_info_of((opq_op)op)->class_ == OPQ_CLASS_REDUCE);
}
static inline bool opq_op_scans(int op)
{
    return op < OPQ_OP_COUNT && opq_op_info_of((opq_op)op)->class_ == OPQ_CLASS_SCAN;
}
/* May find an index out of range: operand 0. */
static inline bool opq_op_checks(int op)
{
    return op == OPQ_STMT_load_at || op == OPQ_STMT_store_add_at || op == OPQ_STMT_check;
}
/* Has it a value, which a number names? */
static inline bool opq_stmt_gives(int op)
{
    return op < OPQ_OP_COUNT || op == OPQ_STMT_load || op == OPQ_STMT_load_at || op == OPQ_STMT_number ||
           op == OPQ_STMT_inside || op == OPQ_STMT_kept || op == OPQ_STMT_carry || op == OPQ_STMT_halves ||
           op == OPQ_STMT_at;
}

/* dtype is what is computed in: f16 and bf16 are f32 here, loads widen and stores round. A cast to f16 or bf16 has dtype f32 and `value.i` the
 * narrow dtype: it rounds. A scan: `value.i` is the dtype in which it holds what came before. const: `value`. scalar: `value.i` is the slot.
 * uniform, normal: operands are (i64 linear index, i64 seed, i64 offset). */
typedef struct opq_stmt {
    uint16_t op;      /* opq_op or opq_stmt_op */
    uint8_t dtype;    /* local: of an element */
    uint8_t role;     /* loop: opq_loop_role */
    uint8_t variable; /* loop */
    uint8_t within;   /* loop: 1 + the variable whose turn is a block of its turns (opq_loop_turns); 0: all of them */
    uint16_t by; /* loop: turns of those in it that a turn of it runs, if it counts their blocks; carry: partial results; else 0 */
    uint16_t variables; /* local: bit l; loop: of the loop around that it slides along, else 0 */
    int16_t operand[3]; /* statements; -1: none */
    int16_t access;     /* of the kernel; keep, kept: the local's statement; fold, halves, at: the carry's; -1: none */
    int32_t end;        /* loop: the statement behind its body */
    opq_number value;   /* loop: i is the number of turns where that is part of the kernel */
    opq_ref node;       /* of the graph, that may fail here, for messages; not in the key */
} opq_stmt;

/* Has it an access of the kernel? */
static inline bool opq_stmt_walks(const opq_stmt *stmt) { return stmt->access >= 0 && stmt->op < OPQ_STMT_loop; }

typedef enum opq_buffer_use { OPQ_BUFFER_in, OPQ_BUFFER_out, OPQ_BUFFER_own } opq_buffer_use; /* own: between phases */

typedef struct opq_loops {
    const char *name;
    int rank; /* variables */
    int buffer_count, scalar_count, access_count, stmt_count;
    const opq_access *accesses;
    uint8_t *written; /* per buffer: opq_buffer_use */
    opq_stmt *stmts;
    bool by_rows; /* lanes of columns are best run row by row, where rows are read whole: for schedules */
    bool scheduled;
    const int16_t *origin; /* scheduled: per statement, that of the meaning it comes from */
} opq_loops;
/* The number by which a statement is told to those who know the meaning. */
static inline int opq_loops_origin(const opq_loops *k, int stmt) { return k->origin ? k->origin[stmt] : stmt; }

/* Turns [out_from, out_to) of a loop where the loops around are at `index`. */
void opq_loop_turns(const opq_loops *k, int loop, const int64_t *dims, const int64_t *index, int64_t *out_from,
                    int64_t *out_to);
bool opq_tree_has_loops(const opq_loops *k, int from, int to); /* among the statements [from, to) */
bool opq_loop_has_loops(const opq_loops *k, int loop);         /* inside it */
/* The loop of whose turns the blocks are in the end that a loop `by` a number counts, and of how many of them one is: itself and 1 of any other. */
int opq_loop_counted(const opq_loops *k, int loop, int64_t *out_turns);
/* The loop around a local that counts blocks of its one variable, of which the local has elements for one; -1: it has them all. */
int opq_local_blocks(const opq_loops *k, int local);
/* Turns that a block of a loop `in` another has. */
int64_t opq_loop_block(const opq_loops *k, int loop);
/* Is there a loop inside it, or (`around`) around it, in the same block as this one? */
bool opq_loop_shares_block(const opq_loops *k, int loop, bool around);
/* A parallel loop at the top is a phase, what stands between two of them another: phase p is the statements [from[p], from[p + 1]). What
 * stands before the first loop belongs to all. */
typedef struct opq_phases {
    int count; /* may be more than there is room for: opq_loops_verify refuses that */
    int from[OPQ_PHASE_MAX + 1];
} opq_phases;
opq_phases opq_loops_find_phases(const opq_loops *k);
/* Per statement, the variables along which its value varies (bit l). A reduction's no longer does along the loops that it reduces. */
void opq_loops_find_varies(const opq_loops *k, uint16_t *out);
/* Elements by which an access moves from turn to turn of a variable. */
static inline int64_t opq_loops_stride(const opq_loops *k, const int64_t *dims, int access, int variable)
{
    int64_t baked = k->accesses[access].stride[variable];
    if (baked == OPQ_STRIDE_back)
        return -1;
    return baked < OPQ_STRIDE_any ? baked : dims[opq_dims_of(k->rank, access) + 1 + variable];
}
/* In memory; raw8 if nothing walks the buffer. */
static inline opq_dtype opq_loops_buffer_dtype(const opq_loops *k, int buffer)
{
    for (int a = 0; a < k->access_count; a++)
        if (k->accesses[a].buffer == buffer)
            return (opq_dtype)k->accesses[a].dtype;
    return OPQ_raw8;
}
static inline int opq_loops_dims_count(const opq_loops *k) { return opq_dims_of(k->rank, k->access_count); }

/* Runs a kernel statement by statement: what it means, without code. `buffers`, `dims` and `scalars` are those that its code takes, and
 * so are the bits. out_error: {statement that failed + 1, the index it met}, or 0. */
typedef opq_status opq_loops_run(const opq_loops *loops, void *const *buffers, const int64_t *dims,
                                 const opq_number *scalars, int64_t out_error[2]);
opq_loops_run opq_loops_eval OPQ_MUST_CHECK;
/* OPQ_INVALID, and where, unless: operands are in sight, as many as the op needs and of its dtypes; accesses walk loops that are around;
 * locals are kept in before they are read; reductions stand in reducing loops; and roles fit. Then it prints, and code is made of it. */
opq_status opq_loops_verify(const opq_loops *loops) OPQ_MUST_CHECK;
/* The same for a verified tree and arguments: every access stays in its buffer (`bytes` of each), what reduces has turns, and no two turns
 * store to one element. Then it runs. */
opq_status opq_loops_verify_bounds(const opq_loops *loops, const int64_t *dims, const int64_t *bytes) OPQ_MUST_CHECK;
/* A dense copy of what an operand with padding looks at, zeros where nothing is: dims from outside in, of which the copy has [first, first +
 * count) and the memory [0, extent), elements `stride` apart. */
typedef struct opq_padded {
    int rank;
    struct opq_padded_dim {
        int64_t stride, first, count, extent;
    } dim[OPQ_LOOP_MAX];
    int64_t offset, count; /* from the operand's offset to where all dims are 0; elements of the copy */
    bool summed;           /* the outermost loop that is summed moves along dim 0, no other does */
    bool reused;           /* its elements are used more than once */
} opq_padded;
/* A tree around one product, as a matrix engine takes it: two matrices in memory, and what is made of each tile of the product. */
typedef struct opq_contract {
    opq_loops epilogue; /* over [m, n]; it reads the product from buffer `tile`, which comes behind the tree's buffers */
    int64_t *dims;      /* of the epilogue, for all of one matrix */
    int tile, product;  /* product: its statement in the tree */
    int pairs;          /* opq_loop_pairs */
    int64_t m, n, k;
    int batch_rank; /* the other loops, which the epilogue does not have */
    int64_t batch_extent[OPQ_LOOP_MAX];
    int64_t *batch_strides; /* [access of the epilogue][batch_rank] */
    struct {
        int buffer;
        opq_dtype dtype;
        int64_t offset, row_stride, column_stride, batch_stride[OPQ_LOOP_MAX];
        const int64_t *rows, *columns; /* where each begins, of what is several loops: NULL, or instead of a stride */
        const opq_padded *padded;      /* NULL, or both are where they begin in this copy */
    } operand[2];
} opq_contract;
/* may_turn: a product of one column may become one of one row, whose left operand is the tree's right one. OPQ_UNSUPPORTED: the product is not one
 * of two loads. `arena` holds the result. */
opq_status opq_loops_contract(const opq_loops *loops, const int64_t *dims, bool may_turn, opq_arena *arena,
                              opq_contract *out_contract) OPQ_MUST_CHECK;
/* A tree with its arguments; buffers and scalars by numbers that mean something to the caller. */
typedef struct opq_bound {
    opq_loops loops;
    int64_t *dims;
    int32_t *buffers, *scalars;
} opq_bound;
/* Buffers through which a tree gives the next what it made: ids[0] whole rows of the first product, ids[1] of the second's left operand, then
 * such of one element per row. */
enum { OPQ_KEPT_ROWS = 2, OPQ_KEPT_MAX = 16 };
typedef struct opq_kept {
    int32_t ids[OPQ_KEPT_MAX];
    int count;
} opq_kept;
/* Trees become one: phases, one after the other, or (`nested`) product, rows, product row by row (loop_join.c). What is kept is none of the caller's
 * memory. `arena` holds the result. OPQ_UNSUPPORTED: too many loops or arguments; nested ones that do not go row by row in one order. */
opq_status opq_loops_join(const opq_bound *parts, int count, const opq_kept *kept, bool nested, opq_arena *arena,
                          opq_bound *out_joined) OPQ_MUST_CHECK;
/* What opq_loops_print wrote, or a person: any bytes are read, and then verified, or refused with their place. `arena` holds the result. */
opq_status opq_loops_parse(const char *text, size_t length, opq_arena *arena, opq_loops *out_loops) OPQ_MUST_CHECK;
/* Canonical bytes: equal keys, equal code. */
void opq_loops_key(const opq_loops *loops, opq_text *out_key);
/* For people and for opq_loops_parse. */
void opq_loops_print(const opq_loops *loops, opq_text *out_text);
/* Words of the text: a loop's letter, an op's name. */
char opq_loop_letter(int loop);
const char *opq_stmt_name(int op);

#endif
