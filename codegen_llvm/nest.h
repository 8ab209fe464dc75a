/* A kernel under construction: the values at hand, where each access points, which lanes count. Private to this folder.
 *
 * A tree is emitted from outside in. Entering a loop binds it: its index goes into the address of every access. A statement becomes
 * instructions where it stands; outside a vector loop its value is a splat.
 *
 *   parallel   a chain of them from the top: units, which threads divide
 *   vector     innermost: whole vectors, several of them (copies) to a turn, then masked ones
 *              around others: strips of some vectors, whose values all stay at hand while the loops inside run
 *              with folds: with accumulators (emit_partials.c); the last of several loops in one block: from memory (emit_chunks.c)
 *   chain      inside a strip, a sum for each of its vectors (emit_chain.c), but for the products that are left to an engine
 *              windows: rows beside each other instead (emit_rows.c)
 *   unroll     inside a strip, around a chain: an accumulator for each turn (emit_unroll.c); else counted
 *              with scans: lane after lane (emit_scan.c)
 *   serial     with folds: with what it carries for each vector of the strip, and in blocks (emit_carried.c)
 *   each, serial, parallel elsewhere: counted
 */
#ifndef OPAQUE_CODEGEN_NEST_H
#define OPAQUE_CODEGEN_NEST_H

#include "codegen_llvm/emit_ops.h"
#include "codegen_llvm/units.h"
#include "fusion/loop.h"

/* Carried: two values per reduction (an arg reduction's best and its index) for each of the vectors that take turns, of which there are most
 * where vectors are narrowest. */
enum { OPQ_TURN_MAX = OPQ_LANES / OPQ_MIN_LANES, OPQ_CARRIED_MAX = 2 * OPQ_REDUCTION_MAX * OPQ_TURN_MAX };
enum { OPQ_STRIP_MAX = 8 }; /* vectors of a strip */

typedef struct opq_nest {
    opq_emitter *e;
    const opq_loops *k;
    opq_status status; /* of the first failure; emitting goes on with zeros, so that only the end has to look */

    LLVMValueRef buffers, dims, scalars, begin, end, scratch, error; /* the function's arguments */
    LLVMValueRef extent[OPQ_LOOP_MAX];
    LLVMValueRef index[OPQ_VARIABLE_MAX]; /* of the variables entered; the vector's: of the first lane of copy 0 */

    uint16_t *varies;        /* per statement: the variables along which its value does */
    LLVMValueRef *values;    /* [OPQ_STRIP_MAX][statements + 1]: vectors of e->lanes */
    LLVMValueRef *value;     /* the row of the current copy */
    LLVMValueRef *turns;     /* as values: per carry of an argmax or argmin, the turn that made it what it is */
    LLVMValueRef turn;       /* of the loops that fold */
    LLVMValueRef *partials;  /* per carry: its partial results in memory; NULL: they are not */
    LLVMValueRef *folds;     /* of these, in a lane: how many turns fold; else: is it more than one? */
    LLVMValueRef lanes_from; /* in a vector loop that folds: its first turn; NULL: elsewhere */
    LLVMValueRef before;     /* turns before that, of loops around; NULL: none */
    LLVMValueRef first[OPQ_VARIABLE_MAX],
        behind[OPQ_VARIABLE_MAX];        /* of a variable that counts blocks: turns of this one */
    int64_t whole[OPQ_VARIABLE_MAX];     /* of these: their number where it is known; 0: it is not */
    LLVMValueRef sequence[OPQ_LOOP_MAX]; /* indices of the loops that are one sequence, in blocks */
    int sequence_rank;                   /* 0: of one loop alone, whose index is the turn */
    LLVMValueRef *at_offset,
        *at_valid; /* per load_at, store_add_at with a uniform index: index * at_stride; a splat: in range? */
    LLVMValueRef *local, *local_row; /* per local: where it begins; where this turn of the loops around begins in it */
    LLVMValueRef behind_locals;      /* scratch memory for opq_chunks_scratch */
    bool has_at;

    LLVMValueRef addresses[OPQ_STRIP_MAX][OPQ_ACCESS_MAX]; /* of copies that are rows; else the first */
    LLVMValueRef *address; /* of the current copy: pointer, or the number so far, with the bound loops */
    LLVMValueRef stride[OPQ_ACCESS_MAX][OPQ_LOOP_MAX];

    int vector;        /* the variable whose indices the lanes are, -1: none */
    bool vector_bound; /* is it in the addresses? Else index[vector] is added at each access. */
    int strip;         /* vectors whose values are all at hand; 1 outside of strips */
    int copy;          /* vectors beyond index[vector], or rows beyond the first */
    int rows;          /* copies are neighbours along this variable (emit_rows.c); -1: along the vector's */
    LLVMValueRef remaining; /* lanes from copy's first one that count (i64, may exceed the lanes or be negative); NULL: all */
    LLVMValueRef mask; /* the same as <lanes x i1>; NULL: all */
    bool has_lanes;    /* `inside` holds in all of these where lanes ask for it */
    LLVMValueRef tile[OPQ_ACCESS_MAX]; /* where this turn's lanes, which lie apart, were brought side by side (emit_tile.c); NULL: nowhere */
    bool prefetch;
    int prefetch_row;        /* variable whose next rows are looked ahead to; -1: the target's prefetch_bytes */
    int prefetch_rows;       /* so many of them */
    LLVMBasicBlockRef start; /* of the kernel: extents and strides are there */
    LLVMValueRef ahead[OPQ_ACCESS_MAX]; /* bytes that loads look ahead instead; NULL: that */
} opq_nest;

static inline const opq_stmt *opq_nest_stmt(const opq_nest *n, int i) { return &n->k->stmts[i]; }
static inline bool opq_nest_is_loop(const opq_nest *n, int i) { return n->k->stmts[i].op == OPQ_STMT_loop; }
/* Do the lanes of its value differ? Else it is a splat. */
static inline bool opq_nest_varies(const opq_nest *n, int stmt)
{
    return n->vector >= 0 && (n->varies[stmt] >> n->vector & 1);
}
/* Is its value another one in each copy? */
static inline bool opq_nest_differs(const opq_nest *n, int stmt)
{
    return n->rows >= 0 ? n->varies[stmt] >> n->rows & 1 : opq_nest_varies(n, stmt);
}
/* How an access moves from lane to lane. */
static inline opq_stride opq_nest_stride(const opq_nest *n, int access)
{
    return n->vector < 0 ? OPQ_STRIDE_zero : (opq_stride)n->k->accesses[access].stride[n->vector];
}
static inline LLVMValueRef opq_nest_step(const opq_nest *n, int access)
{
    return n->vector < 0 ? NULL : n->stride[access][n->vector];
}

/* ---- nest.c */
/* Makes the function, returns from it if there are no units, reads extents and strides, points every access at its offset and every
 * local at its place in the scratch memory. `arena` holds what goes with the statements. */
opq_status opq_nest_open(opq_nest *n, opq_emitter *e, const opq_loops *loops, const char *name,
                         opq_arena *arena) OPQ_MUST_CHECK;
/* Adds index * stride of these variables (bit l: variable l) to every address, of all copies that are rows. */
void opq_nest_bind(opq_nest *n, unsigned variables);
void opq_nest_bind_copy(opq_nest *n, unsigned variables); /* of the current copy */
/* Where everything is, to come back to after what is bound inside. */
typedef struct opq_places {
    LLVMValueRef address[OPQ_STRIP_MAX][OPQ_ACCESS_MAX];
} opq_places;
opq_places opq_nest_places(const opq_nest *n);
void opq_nest_return(opq_nest *n, const opq_places *places);
/* Lanes of this copy that count, out of `remaining` elements; NULL: all of them. */
void opq_nest_mask(opq_nest *n, LLVMValueRef remaining);
LLVMValueRef opq_nest_stack(opq_nest *n, LLVMTypeRef type); /* aligned to 64 bytes */
LLVMBasicBlockRef opq_nest_block(opq_nest *n, const char *name);
void opq_nest_fail(opq_nest *n, opq_status status);

/* ---- nest_memory.c */
LLVMValueRef opq_nest_load(opq_nest *n, int stmt);
LLVMValueRef opq_nest_number(opq_nest *n, int stmt);
/* As f64, which holds each index exactly: AVX2 turns no vectors of i64 into floats. */
LLVMValueRef opq_nest_number_f64(opq_nest *n, int stmt);
/* lt, le, gt, ge of a number that counts lanes and one that is the same in all: in 32 bits. NULL: of something else. */
LLVMValueRef opq_nest_compare(opq_nest *n, const opq_stmt *stmt);
LLVMValueRef opq_nest_inside(opq_nest *n, int stmt);
LLVMValueRef opq_nest_inside_all(opq_nest *n, int stmt); /* i1: are all lanes, masked or not? */
/* i1: does it hold in all lanes that count, of every copy, wherever one of the statements [from, to) asks for it? NULL: lanes ask for nothing. */
LLVMValueRef opq_nest_ask_lanes(opq_nest *n, int from, int to);
void opq_nest_store(opq_nest *n, int stmt);
/* Sets local_row of the locals that [from, to) uses. */
void opq_nest_enter_locals(opq_nest *n, int from, int to);
void opq_nest_keep(opq_nest *n, int stmt);
LLVMValueRef opq_nest_kept(opq_nest *n, int stmt);
void opq_nest_prefetch(opq_nest *n, LLVMValueRef pointer, int ahead); /* bytes */
/* Where a loop is so short that what comes next is the next turn of the loop around: loads of its body look ahead along that. Its turns are lanes, or
 * look ahead to n->prefetch_row. */
void opq_nest_find_ahead(opq_nest *n, int loop);
/* What a load would ask for ahead if n->prefetch were set. */
void opq_nest_look_ahead(opq_nest *n, int access);
/* Element at `pointer` + this copy's lanes: stride class and step (elements) along the lanes. */
LLVMValueRef opq_memory_load(opq_nest *n, opq_dtype dtype, opq_stride stride, LLVMValueRef step, LLVMValueRef pointer,
                             LLVMValueRef mask);
void opq_memory_store(opq_nest *n, opq_dtype dtype, opq_stride stride, LLVMValueRef step, LLVMValueRef pointer,
                      LLVMValueRef mask, LLVMValueRef value);
LLVMValueRef opq_nest_both(opq_nest *n, LLVMValueRef a, LLVMValueRef b); /* a and b, of which NULL is true */
/* Elements from the address to this copy's first lane, besides the bound loops. NULL: none. */
LLVMValueRef opq_nest_vector_offset(opq_nest *n, int access);
/* Where the access's first lane of this copy is. */
LLVMValueRef opq_nest_pointer(opq_nest *n, int access, LLVMValueRef extra_offset);

/* ---- nest_at.c */
/* Called when the index of a load_at or store_add_at is known and the same for all lanes. */
void opq_nest_settle(opq_nest *n, int stmt);
LLVMValueRef opq_nest_load_at(opq_nest *n, int stmt);
void opq_nest_check(opq_nest *n, int stmt);
void opq_nest_nonzero(opq_nest *n, int stmt);
void opq_nest_store_add_at(opq_nest *n, int stmt);

/* ---- nest_body.c */
/* The statements [from, to), among which there is no loop, for the current copy or for every vector of the strip. Folds are left to the
 * loops that make them. */
void opq_nest_run_one(opq_nest *n, int from, int to);
void opq_nest_run(opq_nest *n, int from, int to);
/* The value of a statement in the current copy. One that was not emitted is refused, and stands for zeros. */
LLVMValueRef opq_nest_value(opq_nest *n, int stmt);
/* OPQ_UNSUPPORTED: trees may say more than there is code for. Emission goes on to its end, and nothing comes of it. */
void opq_nest_refuse(opq_nest *n, const opq_stmt *stmt);
/* A statement's value is known (the result of a reduction). */
void opq_nest_define(opq_nest *n, int stmt, LLVMValueRef value);
/* Makes a vector of the strip the current one. */
void opq_nest_use_copy(opq_nest *n, int copy);
void opq_nest_copy_values(opq_nest *n, int copies); /* of copy 0: what is the same in all of them */
/* A rough count of the vector instructions of a loop's body. */
int opq_nest_cost(const opq_nest *n, int variable, int from, int to);
/* Of what costs, the longest chain of statements that need each other, and how many values are needed at once at most. False: no memory. */
bool opq_nest_path(const opq_nest *n, int variable, int from, int to, int *out_path, int *out_live);

/* ---- nest_loops.c */
/* for (index = from; index < to; index += step), tested at the end, with values carried round. */
typedef struct opq_loop {
    LLVMBasicBlockRef before, body, exit;
    LLVMValueRef index, to, step, initial[OPQ_CARRIED_MAX], phi[OPQ_CARRIED_MAX];
    int carried;
    bool sure; /* it has a turn */
} opq_loop;
/* carried[]: in initial values, out the loop's phis */
void opq_loop_begin(opq_nest *n, opq_loop *loop, LLVMValueRef from, LLVMValueRef to, int64_t step,
                    LLVMValueRef *carried, int count);
/* The same of a loop that has a turn: what is made in it is seen behind it, too. */
void opq_loop_begin_sure(opq_nest *n, opq_loop *loop, LLVMValueRef from, LLVMValueRef to, int64_t step,
                         LLVMValueRef *carried, int count);
/* carried[]: in the next iteration's values, out what they are after the loop */
void opq_loop_end(opq_nest *n, opq_loop *loop, LLVMValueRef *carried);

/* Until opq_nest_end_if, of what the last of these gave: a branch, and another for where the condition does not hold. */
LLVMBasicBlockRef opq_nest_if(opq_nest *n, LLVMValueRef condition);
LLVMBasicBlockRef opq_nest_else(opq_nest *n, LLVMBasicBlockRef next);
void opq_nest_end_if(opq_nest *n, LLVMBasicBlockRef next);

/* Two ways to some values, of which one is gone. */
enum { OPQ_FORK_MAX = 32 };
_Static_assert((int)OPQ_STRIP_MAX <= (int)OPQ_FORK_MAX, "sums of a strip");
typedef struct opq_fork {
    LLVMBasicBlockRef way[2], next;
    LLVMValueRef *values, start[OPQ_FORK_MAX], one[OPQ_FORK_MAX];
    int count;
} opq_fork;
/* What follows is gone where the condition holds. */
void opq_fork_begin(opq_nest *n, opq_fork *fork, LLVMValueRef condition, LLVMValueRef *values, int count);
void opq_fork_other(opq_nest *n, opq_fork *fork); /* what follows, elsewhere; the values are those of the beginning */
void opq_fork_end(opq_nest *n, opq_fork *fork);
LLVMValueRef opq_fork_phi(opq_nest *n, const opq_fork *fork, LLVMValueRef one, LLVMValueRef other); /* behind it */

/* Of two numbers. */
LLVMValueRef opq_nest_smaller(opq_nest *n, LLVMValueRef x, LLVMValueRef y);
LLVMValueRef opq_nest_larger(opq_nest *n, LLVMValueRef x, LLVMValueRef y);

/* Row-major indices of several loops, counted up. */
typedef struct opq_odometer {
    int rank, variable[OPQ_LOOP_MAX]; /* -1: of nothing in the tree */
    LLVMValueRef extent[OPQ_LOOP_MAX];
} opq_odometer;
opq_odometer opq_nest_odometer(const opq_nest *n, const opq_chain *chain);
LLVMValueRef opq_odometer_count(opq_nest *n, const opq_odometer *odometer);
void opq_odometer_split(opq_nest *n, const opq_odometer *odometer, LLVMValueRef linear, LLVMValueRef *out_index);
void opq_odometer_next(opq_nest *n, const opq_odometer *odometer, LLVMValueRef *index);
/* Binds its variables at these indices and emits what stands between the chain's loops. */
void opq_nest_enter(opq_nest *n, const opq_odometer *odometer, const opq_chain *chain, const LLVMValueRef *index);

/* for every unit in [from, to), with its row-major indices in index[]. */
typedef struct opq_units {
    opq_loop loop;
    opq_odometer odometer;
    LLVMValueRef index[OPQ_LOOP_MAX];
} opq_units;
void opq_units_begin(opq_nest *n, opq_units *units, const opq_odometer *odometer, LLVMValueRef from, LLVMValueRef to);
void opq_units_end(opq_nest *n, opq_units *units);

/* Runs [from, to) of a loop without loops inside, the statement `loop`, as vectors: whole ones, then masked ones. After each copy `after`
 * sees carried values in groups: with `rotate` > 0 the carried values are `rotate` groups of equal size, one per consecutive vector,
 * and the number of vectors, with masked ones at the end, is a multiple of it. */
typedef struct opq_span {
    int loop;
    int copies; /* vectors per iteration of the main loop; a power of two that divides `rotate` */
    bool beside; /* statement by statement, not one vector after the other; at most OPQ_STRIP_MAX, no `run`, nothing carried */
    int rotate;
    int carried;                                               /* rotate * group size */
    void (*run)(opq_nest *n, void *data, LLVMValueRef *group); /* the body; NULL: opq_nest_run_one */
    void (*after)(opq_nest *n, void *data, LLVMValueRef *group);
    void *data;
} opq_span;
void opq_nest_span(opq_nest *n, const opq_span *span, LLVMValueRef from, LLVMValueRef to, LLVMValueRef *carried);

/* ---- emit_loops.c */
/* The whole tree, units [begin, end). */
void opq_emit_loops(opq_nest *n);
void opq_emit_block(opq_nest *n, int from, int to); /* statements [from, to), with whole loops */
/* What is inside the vector loop `strip`, for the copies that there are, the first lane of the first one at `first`. */
void opq_emit_inside(opq_nest *n, int strip, LLVMValueRef first);

/* ---- emit_rows.c */
/* Turns [from, to) of the loop `rows` around `strip`, `width` at a time, those that are left a `by`-th of that, and so on. */
void opq_emit_rows(opq_nest *n, int rows, int strip, int width, int by, LLVMValueRef from, LLVMValueRef to);

/* ---- emit_carried.c */
/* A loop that counts blocks of a constant size, with those in it whose turns these are. */
void opq_emit_blocks(opq_nest *n, int loop);
/* A serial loop with folds, without loops inside; or a block of it, of turns [from, to), which are so many (0: of any number). */
void opq_emit_turns(opq_nest *n, int loop);
void opq_emit_block_turns(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to, int64_t turns);

/* ---- emit_partials.c */
LLVMValueRef opq_emit_carry(opq_nest *n, int stmt);
void opq_emit_fold(opq_nest *n, int stmt);
LLVMValueRef opq_emit_halves(opq_nest *n, int stmt);
opq_fold opq_carry_fold(const opq_nest *n, int carry);
static inline opq_dtype opq_carry_dtype(const opq_nest *n, int carry) { return (opq_dtype)n->k->stmts[carry].dtype; }
static inline bool opq_carry_scans(const opq_nest *n, int carry)
{
    return opq_op_scans((int)n->k->stmts[carry].value.i);
}
LLVMValueRef opq_carry_combine(opq_nest *n, int carry, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef *opq_carry_turn(opq_nest *n, int carry);    /* of an argmax or argmin, of the current copy */
int opq_nest_folds(const opq_nest *n, int from, int to); /* among these statements: their number */
bool opq_nest_is_folding(const opq_nest *n, int stmt);   /* is it one, or its operand's cast? */
/* What stands behind a loop in blocks, [from, to): values of its carries, and folds of these into the carries around. Where there is one block in all, they
 * are passed; else these carries are in memory, as before the first block. `several`: is there more than one? */
void opq_partials_begin(opq_nest *n, int from, int to, LLVMValueRef several);
void opq_partials_pass(opq_nest *n, int from, int to);
void opq_partials_fold(opq_nest *n, int from, int to);
/* Turns [from, to) of a vector loop with folds. `run` gives these their operands; NULL: the loop's body does. */
void opq_emit_partials(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to, void (*run)(opq_nest *n, void *data),
                       void *data);

/* ---- emit_chain.c */
void opq_emit_chain(opq_nest *n, int loop); /* inside a strip: a product in each lane */

/* ---- emit_unroll.c */
/* How many vectors a strip around has. */
int opq_unroll_width(opq_nest *n, int lanes, int loop); /* lanes: their variable */
/* False: not loops around a product's chain, so that they are counted. */
bool opq_emit_unroll(opq_nest *n, int loop);

/* ---- emit_chunks.c */
/* Units [begin, end) of a loop that counts the blocks of several, in which nothing but carries stands before these. */
void opq_emit_chunks(opq_nest *n, int loop);
int opq_chunks_nest(const opq_loops *k, int loop); /* the statement behind these carries */
/* Bytes for them; `nest` is the outermost one. */
int64_t opq_chunks_scratch(const opq_loops *loops, int nest);

/* ---- emit_tile.c */
enum { OPQ_TILE_MAX = 8 };
typedef struct opq_tiles {
    int count, variable;
    int stmt[OPQ_TILE_MAX]; /* loads and stores */
    LLVMValueRef memory[OPQ_TILE_MAX];
} opq_tiles;
/* Does this statement load or store lanes (of that variable) that lie apart, in turns that lie side by side? */
bool opq_stmt_tiles(const opq_loops *k, int stmt, int lanes, int turns);
/* The accesses of a loop inside a strip whose lanes lie apart, and whose turns side by side. */
void opq_tiles_open(opq_nest *n, int loop, opq_tiles *out_tiles);
/* Turns [first, first + e->lanes): brings what is loaded, and takes what was stored. count: that many of them are there; NULL: all. */
void opq_tiles_load(opq_nest *n, const opq_tiles *tiles, LLVMValueRef first, LLVMValueRef count);
void opq_tiles_store(opq_nest *n, const opq_tiles *tiles, LLVMValueRef first);
/* Loads and stores are at this turn of them; NULL: in memory again. */
void opq_tiles_enter(opq_nest *n, const opq_tiles *tiles, LLVMValueRef turn);
/* Vectors of `count` elements, one after another, become as many rows as there are lanes, each of `count` elements. */
void opq_interleave(opq_nest *n, LLVMTypeRef element, LLVMValueRef from, LLVMValueRef to, LLVMValueRef count);
LLVMValueRef opq_tile_lanes(opq_nest *n, opq_dtype dtype, LLVMValueRef tile);
void opq_tile_keep(opq_nest *n, opq_dtype dtype, LLVMValueRef tile, LLVMValueRef value);

/* ---- emit_scan.c */
int opq_nest_scans(const opq_nest *n, int from, int to); /* the folds of scans among [from, to): their number */
/* The vectors of a strip that a loop inside makes best use of: what its scans hold and a tile are to fit the registers. */
int opq_scan_width(const opq_nest *n, int strip, int loop);
void opq_emit_scan_row(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to);

#endif
