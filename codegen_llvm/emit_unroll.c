/* Unrolled loops around a product's chain, inside a strip: a sum for each of their turns in registers, as many as there are, so that what
 * every turn needs is loaded once.
 *
 *   block of turns              as many as fit
 *     chain h { chain w {       what no turn changes, once; then each turn's own, and a fused multiply-add
 *       guarded, or without what tells whether elements are there: asked once for all turns, whose conditions are linear
 *     } }
 *     what is made of the sums
 *
 * A turn is a row (the unrolled loops but the last one) and a place in it: rows are where the innermost loop begins, and places are added to
 * its index, so that addresses are few.
 */
#include "codegen_llvm/math.h"
#include "codegen_llvm/nest.h"

#include <string.h>

enum { HELD_MAX = 8, SUMS_AVX512 = 28, SUMS_AVX2 = 13, PREFETCH_ROWS = 32 /* measured; 24 and 64 are as good */ };

typedef struct part {
    opq_nest *n;
    opq_chain turns, chain;
    int product, count;                  /* statement; turns in all */
    int from, to;                        /* the block */
    LLVMValueRef sum[SUMS_AVX512];       /* [to - from][strip] */
    int held_count, held_stmt[HELD_MAX]; /* what stands between the unrolled loops and the chain */
    LLVMValueRef held[OPQ_UNROLL_MAX][HELD_MAX][OPQ_STRIP_MAX];
    opq_places rows[OPQ_UNROLL_MAX]; /* where each row of the block begins */
    LLVMValueRef inside;             /* 1 if lanes are all there, for all turns; NULL: nobody asks for lanes */
    LLVMValueRef before;             /* the same and what the innermost loop does not change */
    bool is_whole;                   /* all that is asked for holds */
} part;

static const opq_stmt *loop_of(const opq_nest *n, const opq_chain *chain, int level)
{
    return opq_nest_stmt(n, chain->loop[level]);
}

static int last_of(const opq_chain *chain) { return chain->loop[chain->count - 1]; }

static LLVMValueRef *value_of(const part *p, int copy, int stmt)
{
    return &p->n->values[(size_t)copy * ((size_t)p->n->k->stmt_count + 1) + (size_t)stmt];
}

/* The variables of unrolled loops: all, or all but the last one's. */
static unsigned variables_of(const part *p, bool places)
{
    unsigned variables = 0;
    for (int level = 0; level < p->turns.count - !places; level++)
        variables |= 1u << loop_of(p->n, &p->turns, level)->variable;
    return variables;
}

static int places_of(const part *p) { return (int)opq_nest_stmt(p->n, last_of(&p->turns))->value.i; }

/* The indices of a turn; nothing is bound. */
static void set_turn(const part *p, int turn)
{
    for (int level = p->turns.count - 1; level >= 0; level--) {
        const opq_stmt *loop = loop_of(p->n, &p->turns, level);
        p->n->index[loop->variable] = opq_i64(p->n->e, turn % loop->value.i);
        turn /= (int)loop->value.i;
    }
}

static bool is_own(const part *p, int stmt) { return (p->n->varies[stmt] & variables_of(p, true)) != 0; }

static bool asks(const part *p, int stmt) { return opq_nest_stmt(p->n, stmt)->op == OPQ_INSTR_inside; }

/* Is it one of the conditions that is_whole is about? Those that differ from lane to lane are held, or asked always. */
static bool is_uniform_condition(const part *p, int stmt) { return asks(p, stmt) && !opq_nest_varies(p->n, stmt); }

/* ---- what stands before the chain */

static int held_number(const part *p, int stmt)
{
    for (int h = 0; h < p->held_count; h++)
        if (p->held_stmt[h] == stmt)
            return h;
    return -1;
}

/* Is a condition under the mask of the lanes already? Conditions are joined from the left. */
static bool is_masked(const part *p, int stmt)
{
    for (;;) {
        const opq_stmt *of = opq_nest_stmt(p->n, stmt);
        int held = held_number(p, stmt) >= 0 ? stmt : of->op == OPQ_OP_bitwise_and ? of->operand[1] : -1;
        if (held >= 0 && held_number(p, held) >= 0 && asks(p, held) && !is_uniform_condition(p, held))
            return true;
        if (held == stmt || of->op != OPQ_OP_bitwise_and)
            return false;
        stmt = of->operand[0];
    }
}

static void run_one(part *p, int i)
{
    opq_nest *n = p->n;
    LLVMValueRef mask = n->mask;
    const opq_stmt *stmt = opq_nest_stmt(n, i);
    if (stmt->op == OPQ_INSTR_load && stmt->operand[0] >= 0 && is_masked(p, stmt->operand[0]))
        n->mask = NULL;
    opq_nest_run(n, i, i + 1);
    n->mask = mask;
}

/* From block to block, code generation for AVX2 keeps lanes of a bit as 16, and each use widens them: they are kept as AVX2 masks. */
static LLVMValueRef packed(const part *p, LLVMValueRef value)
{
    LLVMTypeRef type = LLVMVectorType(LLVMInt32TypeInContext(p->n->e->context), (unsigned)p->n->e->lanes);
    bool mask = LLVMTypeOf(value) == opq_vector_type(p->n->e, OPQ_bool) && !p->n->e->cpu->avx512;
    return mask ? LLVMBuildSExt(p->n->e->builder, value, type, "") : value;
}

static LLVMValueRef unpacked(const part *p, LLVMValueRef value)
{
    LLVMTypeRef type = LLVMTypeOf(value);
    bool mask = LLVMGetTypeKind(type) == LLVMVectorTypeKind && !p->n->e->cpu->avx512 &&
                LLVMGetElementType(type) == LLVMInt32TypeInContext(p->n->e->context);
    return mask ? LLVMBuildICmp(p->n->e->builder, LLVMIntSLT, value, LLVMConstNull(type), "") : value;
}

static void hold(part *p)
{
    opq_nest *n = p->n;
    for (int turn = p->from; turn < p->to; turn++) {
        opq_places places = opq_nest_places(n);
        set_turn(p, turn);
        opq_nest_bind(n, variables_of(p, true));
        for (int h = 0; h < p->held_count; h++) {
            run_one(p, p->held_stmt[h]);
            for (int copy = 0; copy < n->strip; copy++) {
                LLVMValueRef value = *value_of(p, copy, p->held_stmt[h]);
                if (n->mask && is_masked(p, p->held_stmt[h]))
                    value = LLVMBuildAnd(n->e->builder, value, n->mask, "");
                p->held[turn - p->from][h][copy] = asks(p, p->held_stmt[h]) ? packed(p, value) : value;
            }
        }
        opq_nest_return(n, &places);
    }
}

static bool asks_for_lanes(const part *p, int stmt) { return asks(p, stmt) && opq_nest_varies(p->n, stmt); }

static void use_held(part *p, int turn)
{
    for (int h = 0; h < p->held_count; h++)
        for (int copy = 0; copy < p->n->strip; copy++) {
            LLVMValueRef held = p->held[turn - p->from][h][copy];
            bool all = p->is_whole && p->inside && asks_for_lanes(p, p->held_stmt[h]);
            if (all)
                held = LLVMConstAllOnes(opq_vector_type(p->n->e, OPQ_bool));
            else if (asks(p, p->held_stmt[h]))
                held = unpacked(p, held);
            *value_of(p, copy, p->held_stmt[h]) = held;
        }
}

/* ---- the innermost loop */

static void run_own(part *p, int turn)
{
    opq_nest *n = p->n;
    use_held(p, turn);
    for (int i = p->chain.loop[0] + 1; i < opq_nest_stmt(n, last_of(&p->chain))->end; i++) {
        if (opq_nest_is_loop(n, i) || i == p->product || !is_own(p, i))
            continue;
        if (!p->is_whole || !is_uniform_condition(p, i)) {
            run_one(p, i);
            continue;
        }
        for (int copy = 0; copy < n->strip; copy++)
            *value_of(p, copy, i) = LLVMConstAllOnes(opq_vector_type(n->e, OPQ_bool));
    }
}

static void multiply_add(part *p, int turn)
{
    opq_nest *n = p->n;
    const opq_stmt *product = opq_nest_stmt(n, p->product);
    LLVMValueRef *sum = p->sum + (turn - p->from) * n->strip;
    for (int copy = 0; copy < n->strip; copy++) {
        opq_nest_use_copy(n, copy);
        sum[copy] = vfma(n->e, opq_nest_value(n, product->operand[0]), opq_nest_value(n, product->operand[1]), sum[copy]);
    }
    opq_nest_use_copy(n, 0);
}

/* All turns of the block. */
static void emit_turns(part *p)
{
    opq_nest *n = p->n;
    opq_places places = opq_nest_places(n);
    const opq_stmt *inner = opq_nest_stmt(n, last_of(&p->chain));
    unsigned last = 1u << opq_nest_stmt(n, last_of(&p->turns))->variable;
    for (int turn = p->from; turn < p->to; turn++) {
        opq_nest_return(n, &p->rows[(turn - p->from / places_of(p) * places_of(p)) / places_of(p)]);
        set_turn(p, turn);
        opq_nest_bind(n, 1u << inner->variable | last);
        n->prefetch = turn + 1 == p->to; /* the others have been where this one goes */
        run_own(p, turn);
        multiply_add(p, turn);
    }
    n->prefetch = false;
    opq_nest_return(n, &places);
}

static LLVMValueRef both(const part *p, LLVMValueRef a, LLVMValueRef b)
{
    return a && b ? LLVMBuildAnd(p->n->e->builder, a, b, "") : a ? a : b;
}

/* 1 if it holds where it is bound: in all lanes of all copies, if they differ. */
static LLVMValueRef holds_here(const part *p, int stmt)
{
    opq_nest *n = p->n;
    LLVMValueRef all = NULL;
    if (!opq_nest_varies(n, stmt))
        return opq_lane(n->e, opq_nest_inside(n, stmt), 0);
    for (int copy = 0; copy < n->strip; copy++) {
        opq_nest_use_copy(n, copy);
        all = both(p, all, opq_nest_inside_all(n, stmt));
    }
    opq_nest_use_copy(n, 0);
    return all;
}

/* 1 if a condition holds for all turns: it is linear, so that what holds at their corners does. `outside`: variables to bind with theirs. */
static LLVMValueRef ask_at_corners(part *p, int stmt, unsigned outside)
{
    opq_nest *n = p->n;
    LLVMValueRef all = NULL;
    opq_places places = opq_nest_places(n);
    for (unsigned corner = 0; corner < 1u << p->turns.count; corner++) {
        unsigned variables = outside;
        bool another = false;
        for (int level = 0; level < p->turns.count; level++) {
            const opq_stmt *loop = loop_of(n, &p->turns, level);
            bool end = corner >> level & 1;
            another = another || (end && !(n->varies[stmt] >> loop->variable & 1));
            n->index[loop->variable] = opq_i64(n->e, end ? loop->value.i - 1 : 0);
            variables |= 1u << loop->variable;
        }
        if (another)
            continue;
        opq_nest_bind(n, variables);
        all = both(p, all, holds_here(p, stmt));
        opq_nest_return(n, &places);
    }
    return all;
}

/* Of what is held; under a mask some lanes are missing anyway. */
static LLVMValueRef ask_for_lanes(part *p)
{
    LLVMValueRef all = NULL;
    for (int h = 0; h < p->held_count && p->n->mask == NULL; h++)
        if (asks_for_lanes(p, p->held_stmt[h]))
            all = both(p, all, ask_at_corners(p, p->held_stmt[h], 0));
    return all;
}

/* 1 if there is every element that these turns ask for. NULL: they ask for none. Of conditions that the innermost loop changes, or of the
 * others. */
static LLVMValueRef ask_for_all(part *p, bool inner_ones)
{
    const opq_stmt *inner = opq_nest_stmt(p->n, last_of(&p->chain));
    LLVMValueRef all = NULL;
    for (int i = p->chain.loop[0] + 1; i < inner->end; i++) {
        bool changes = p->n->varies[i] >> inner->variable & 1;
        if (is_uniform_condition(p, i) && is_own(p, i) && changes == inner_ones)
            all = both(p, all, ask_at_corners(p, i, changes ? 1u << inner->variable : 0));
    }
    return all;
}

static void emit_either(part *p, LLVMValueRef whole)
{
    opq_nest *n = p->n;
    LLVMBuilderRef b = n->e->builder;
    size_t sums = (size_t)(p->to - p->from) * (size_t)n->strip;
    LLVMValueRef start[SUMS_AVX512], one[SUMS_AVX512];
    LLVMBasicBlockRef first = opq_nest_block(n, "whole"), second = opq_nest_block(n, "guarded"),
                      behind = opq_nest_block(n, "behind");
    memcpy(start, p->sum, sums * sizeof *start);
    LLVMBuildCondBr(b, whole, first, second);
    LLVMPositionBuilderAtEnd(b, first);
    p->is_whole = true;
    emit_turns(p);
    p->is_whole = false;
    memcpy(one, p->sum, sums * sizeof *one);
    first = LLVMGetInsertBlock(b);
    LLVMBuildBr(b, behind);
    LLVMPositionBuilderAtEnd(b, second);
    memcpy(p->sum, start, sums * sizeof *start);
    emit_turns(p);
    second = LLVMGetInsertBlock(b);
    LLVMBuildBr(b, behind);
    LLVMPositionBuilderAtEnd(b, behind);
    for (size_t s = 0; s < sums; s++) {
        LLVMValueRef phi = LLVMBuildPhi(b, LLVMTypeOf(one[s]), "");
        LLVMAddIncoming(phi, (LLVMValueRef[]){one[s], p->sum[s]}, (LLVMBasicBlockRef[]){first, second}, 2);
        p->sum[s] = phi;
    }
}

static void emit_turn_of_chain(part *p)
{
    opq_nest *n = p->n;
    opq_places places = opq_nest_places(n);
    const opq_stmt *inner = opq_nest_stmt(n, last_of(&p->chain));
    LLVMValueRef whole = both(p, p->before, ask_for_all(p, true));
    opq_nest_bind(n, 1u << inner->variable);
    n->prefetch = true;
    for (int i = last_of(&p->chain) + 1; i < inner->end; i++)
        if (i != p->product && !is_own(p, i))
            run_one(p, i);
    n->prefetch = false;
    opq_nest_return(n, &places);
    if (whole)
        emit_either(p, whole);
    else
        emit_turns(p);
}

/* ---- the loops around it */

static void start_rows(part *p)
{
    opq_nest *n = p->n;
    opq_places places = opq_nest_places(n);
    int first = p->from / places_of(p);
    for (int row = first; row * places_of(p) < p->to; row++) {
        set_turn(p, row * places_of(p));
        opq_nest_bind(n, variables_of(p, false));
        p->rows[row - first] = opq_nest_places(n);
        opq_nest_return(n, &places);
    }
}

static void emit_level(part *p, int level)
{
    opq_nest *n = p->n;
    bool innermost = level == p->chain.count - 1;
    int variable = loop_of(n, &p->chain, level)->variable;
    opq_loop loop;
    if (innermost) {
        start_rows(p);
        p->before = both(p, p->inside, ask_for_all(p, false));
    }
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), n->extent[variable], 1, p->sum, (p->to - p->from) * n->strip);
    opq_places places = opq_nest_places(n);
    n->index[variable] = loop.index;
    if (innermost) {
        emit_turn_of_chain(p);
    } else {
        opq_nest_bind(n, 1u << variable);
        for (int i = p->chain.loop[level] + 1; i < p->chain.loop[level + 1]; i++)
            if (!is_own(p, i))
                run_one(p, i);
        emit_level(p, level + 1);
    }
    opq_nest_return(n, &places);
    opq_loop_end(n, &loop, p->sum);
}

static void emit_block(part *p)
{
    opq_nest *n = p->n;
    opq_places places = opq_nest_places(n);
    LLVMTypeRef type = opq_vector_type(n->e, (opq_dtype)opq_nest_stmt(n, p->product)->dtype);
    for (int s = 0; s < (p->to - p->from) * n->strip; s++)
        p->sum[s] = LLVMConstNull(type);
    hold(p);
    p->inside = ask_for_lanes(p);
    int row = n->prefetch_row;
    n->prefetch_row = opq_nest_stmt(n, last_of(&p->chain))->variable;
    n->prefetch_rows = PREFETCH_ROWS;
    emit_level(p, 0);
    n->prefetch_row = row;
    n->prefetch_rows = OPQ_COLUMN_GROUP;
    for (int turn = p->from; turn < p->to; turn++) {
        set_turn(p, turn);
        opq_nest_bind(n, variables_of(p, true));
        use_held(p, turn);
        for (int copy = 0; copy < n->strip; copy++) {
            opq_nest_use_copy(n, copy);
            opq_nest_define(n, p->product, p->sum[(turn - p->from) * n->strip + copy]);
        }
        opq_nest_use_copy(n, 0);
        opq_nest_run(n, opq_nest_stmt(n, p->chain.loop[0])->end, opq_nest_stmt(n, last_of(&p->turns))->end);
        opq_nest_return(n, &places);
    }
}

/* ---- which loops */

/* Unrolled loops, the innermost of which has a chain as its only loop: false: others. */
static bool find_loops(const opq_nest *n, int loop, part *out)
{
    *out = (part){.product = -1, .count = 1};
    out->turns = opq_nest_chain(n->k, loop);
    int last = last_of(&out->turns), end = n->k->stmts[last].end, chain = -1;
    for (int level = 0; level < out->turns.count; level++) {
        out->count *= (int)n->k->stmts[out->turns.loop[level]].value.i;
        for (int i = out->turns.loop[level] + 1; level + 1 < out->turns.count && i < out->turns.loop[level + 1]; i++)
            return false; /* it would be made for each turn inside, too */
    }
    for (int i = last + 1; i < end; i++) {
        if (n->k->stmts[i].op != OPQ_STMT_loop) {
            if (chain < 0 && out->held_count == HELD_MAX)
                return false;
            if (chain < 0)
                out->held_stmt[out->held_count++] = i;
            continue;
        }
        if (chain >= 0 || n->k->stmts[i].role != OPQ_LOOP_chain)
            return false;
        chain = i;
        i = n->k->stmts[i].end - 1;
    }
    if (chain < 0)
        return false;
    out->chain = opq_nest_chain(n->k, chain);
    for (int i = chain; i < n->k->stmts[chain].end; i++) {
        if (opq_op_contracts(n->k->stmts[i].op))
            out->product = i;
        if (opq_op_checks(n->k->stmts[i].op) || n->k->stmts[i].op == OPQ_STMT_kept)
            return false;
    }
    return out->product >= 0;
}

static int sums_of(const opq_nest *n, int product)
{
    int sums = n->e->cpu->avx512 ? SUMS_AVX512 : SUMS_AVX2;
    return opq_dtype_bytes((opq_dtype)opq_nest_stmt(n, product)->dtype) == 8 ? sums / 2 : sums;
}

int opq_unroll_width(const opq_nest *n, int loop)
{
    part p;
    int width = OPQ_STRIP_MAX;
    if (!find_loops(n, loop, &p))
        return 1;
    while (width > 1 && p.count * width > sums_of(n, p.product))
        width /= 2;
    return width;
}

bool opq_emit_unroll(opq_nest *n, int loop)
{
    part p;
    if (n->rows >= 0 || !find_loops(n, loop, &p))
        return false;
    p.n = n;
    int most = sums_of(n, p.product) / n->strip, blocks = (p.count + most - 1) / most;
    for (int block = 0; block < blocks; block++) {
        p.from = p.count * block / blocks;
        p.to = p.count * (block + 1) / blocks;
        emit_block(&p);
    }
    return true;
}
