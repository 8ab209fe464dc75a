/* Emits the micro-kernels of gemm_kernel.h.
 *
 *            vectors
 *          +---------+   b row k: `vectors` loads
 *     rows | tile of |   a (i,k): one load that fills a vector, used for every vector of b
 *          | C       |   rows * vectors fused multiply-adds, each on its own register
 *          +---------+
 *
 * The fused multiply-add takes about 4 cycles and 2 start per cycle, so a tile needs 8 or more registers of C to be fast; the
 * rest of the register file holds b and one element of a. A turn takes as many k as hide the loop; what is left runs one k at a time.
 */
#include "codegen_llvm/gemm_kernel.h"
#include "codegen_llvm/codegen.h"
#include "codegen_llvm/emit.h"
#include "codegen_llvm/module.h"

#include <stdio.h>
#include <string.h>

enum { TILE_MAX = 32, ARGUMENTS = 13 };
enum { LINE = 64 }; /* bytes of a panel that is widened: what a turn reads of it */
enum {
    ARG_A,
    ARG_A_STRIDE,
    ARG_B,
    ARG_B_STRIDE,
    ARG_PANEL_STRIDE,
    ARG_C,
    ARG_C_STRIDE,
    ARG_K,
    ARG_ACCUMULATE,
    ARG_PREFETCH,
    ARG_STEP,
    ARG_ROWS,
    ARG_COLUMNS
};

typedef struct kernel {
    opq_emitter *e;
    opq_gemm_left left;
    int rows, vectors, element_bytes, vector_bytes;
    LLVMTypeRef i8, i64, pointer, element, vector;
    opq_gemm_element kind;
    int right_bytes;    /* of an element of the right operand */
    LLVMTypeRef word;   /* what fills a vector of the left operand */
    LLVMTypeRef halves; /* a vector as the dot instruction takes it */
    LLVMTypeRef fma_type, prefetch_type;
    LLVMValueRef fma, prefetch;
    LLVMValueRef arg[ARGUMENTS];
    LLVMValueRef row_offset[OPQ_GEMM_ROWS_MAX];      /* LEFT_ROWS: bytes from row 0 of a */
    LLVMValueRef row_address[OPQ_GEMM_ROWS_MAX];     /* from LEFT_WINDOW on */
    LLVMValueRef panel_offset[OPQ_GEMM_VECTORS_MAX]; /* bytes from vector 0 of b */
    LLVMValueRef c_address[OPQ_GEMM_ROWS_MAX];
} kernel;

/* What changes from one k to the next. */
typedef struct state {
    LLVMValueRef tile[TILE_MAX];    /* row-major */
    LLVMValueRef a, b, prefetch, k; /* a: of what has a table of columns, this; k: steps still to do */
} state;

static LLVMValueRef constant(const kernel *g, int64_t value)
{
    return LLVMConstInt(g->i64, (unsigned long long)value, 1);
}

static LLVMValueRef advance(const kernel *g, LLVMValueRef address, LLVMValueRef bytes)
{
    return LLVMBuildGEP2(g->e->builder, g->i8, address, &bytes, 1, "");
}

static LLVMValueRef load(const kernel *g, LLVMTypeRef type, LLVMValueRef address)
{
    LLVMValueRef value = LLVMBuildLoad2(g->e->builder, type, address, "");
    LLVMSetAlignment(value, g->kind == OPQ_GEMM_F32 || g->kind == OPQ_GEMM_F64 ? (unsigned)g->element_bytes : 1);
    return value;
}

static LLVMValueRef fill(const kernel *g, LLVMValueRef scalar)
{
    LLVMTypeRef i32 = LLVMInt32TypeInContext(g->e->context);
    unsigned lanes = (unsigned)(g->vector_bytes / g->element_bytes);
    LLVMValueRef poison = LLVMGetPoison(LLVMVectorType(LLVMTypeOf(scalar), lanes));
    LLVMValueRef first = LLVMBuildInsertElement(g->e->builder, poison, scalar, LLVMConstInt(i32, 0, 0), "");
    return LLVMBuildShuffleVector(g->e->builder, first, poison, LLVMConstNull(LLVMVectorType(i32, lanes)), "");
}

static LLVMValueRef multiply_add(const kernel *g, LLVMValueRef a, LLVMValueRef b, LLVMValueRef sum)
{
    LLVMBuilderRef builder = g->e->builder;
    if (g->halves) {
        a = LLVMBuildBitCast(builder, a, g->halves, "");
        b = LLVMBuildBitCast(builder, b, g->halves, "");
    }
    if (g->kind == OPQ_GEMM_SHORTS)
        return LLVMBuildAdd(builder, LLVMBuildCall2(builder, g->fma_type, g->fma, (LLVMValueRef[]){a, b}, 2, ""), sum,
                            "");
    bool sum_first = g->kind == OPQ_GEMM_PAIRS || g->kind == OPQ_GEMM_QUADS;
    LLVMValueRef args[] = {sum_first ? sum : a, sum_first ? a : b, sum_first ? b : sum};
    return LLVMBuildCall2(builder, g->fma_type, g->fma, args, 3, "");
}

static const char *fma_name(const kernel *g)
{
    switch (g->kind) {
    case OPQ_GEMM_PAIRS: return "llvm.x86.avx512bf16.dpbf16ps.512";
    case OPQ_GEMM_SHORTS: return g->vector_bytes == 64 ? "llvm.x86.avx512.pmaddw.d.512" : "llvm.x86.avx2.pmadd.wd";
    case OPQ_GEMM_QUADS: return "llvm.x86.avx512.vpdpbusd.512";
    case OPQ_GEMM_F32:
    case OPQ_GEMM_F64:
    case OPQ_GEMM_WIDENED:
    case OPQ_GEMM_ELEMENTS: break;
    }
    return "llvm.fma";
}

static void declare_intrinsics(kernel *g)
{
    const char *name = fma_name(g);
    unsigned fma = LLVMLookupIntrinsicID(name, strlen(name)), prefetch = LLVMLookupIntrinsicID("llvm.prefetch", 13);
    size_t overloads = LLVMIntrinsicIsOverloaded(fma) ? 1 : 0;
    g->fma = LLVMGetIntrinsicDeclaration(g->e->module, fma, &g->vector, overloads);
    g->fma_type = LLVMIntrinsicGetType(g->e->context, fma, &g->vector, overloads);
    g->prefetch = LLVMGetIntrinsicDeclaration(g->e->module, prefetch, &g->pointer, 1);
    g->prefetch_type = LLVMIntrinsicGetType(g->e->context, prefetch, &g->pointer, 1);
}

static void touch(const kernel *g, LLVMValueRef address, bool for_write)
{
    LLVMTypeRef i32 = LLVMInt32TypeInContext(g->e->context);
    LLVMValueRef args[4] = {address, LLVMConstInt(i32, for_write, 0), LLVMConstInt(i32, for_write ? 3 : 2, 0),
                            LLVMConstInt(i32, 1, 0)};
    LLVMBuildCall2(g->e->builder, g->prefetch_type, g->prefetch, args, 4, "");
}

static void declare_function(kernel *g, const char *name)
{
    LLVMTypeRef types[ARGUMENTS];
    for (int i = 0; i < ARGUMENTS; i++)
        types[i] = i == ARG_A || i == ARG_B || i == ARG_C || i == ARG_PREFETCH || i >= ARG_ROWS ? g->pointer : g->i64;
    LLVMTypeRef type = LLVMFunctionType(LLVMVoidTypeInContext(g->e->context), types, ARGUMENTS, 0);
    LLVMValueRef function = LLVMAddFunction(g->e->module, name, type);
    for (int i = 0; i < ARGUMENTS; i++)
        g->arg[i] = LLVMGetParam(function, (unsigned)i);
    unsigned no_alias = LLVMGetEnumAttributeKindForName("noalias", 7);
    LLVMAddAttributeAtIndex(function, ARG_C + 1, LLVMCreateEnumAttribute(g->e->context, no_alias, 0));
    LLVMSetLinkage(function, LLVMInternalLinkage);
    g->e->function = function;
}

static bool has_columns(const kernel *g) { return g->left >= OPQ_GEMM_LEFT_WINDOW; }

/* Rows from one to the next whose number is in the table. */
static int rows_apart(const kernel *g)
{
    return g->left == OPQ_GEMM_LEFT_WINDOW ? 1 : g->left == OPQ_GEMM_LEFT_THREES ? OPQ_GEMM_THREE : OPQ_GEMM_ROWS_MAX;
}

/* So many elements behind an address as the table says. */
static LLVMValueRef advance_by(const kernel *g, LLVMValueRef address, LLVMValueRef table, int64_t index)
{
    LLVMValueRef elements = LLVMBuildLoad2(g->e->builder, g->i64, advance(g, table, constant(g, index * 8)), "");
    return LLVMBuildGEP2(g->e->builder, g->element, address, &elements, 1, "");
}

static void prepare_addresses(kernel *g)
{
    LLVMBuilderRef builder = g->e->builder;
    for (int i = 0; i < g->rows; i++) {
        if (g->left == OPQ_GEMM_LEFT_ROWS)
            g->row_offset[i] = LLVMBuildMul(builder, g->arg[ARG_A_STRIDE], constant(g, i), "");
        if (has_columns(g) && i % rows_apart(g) == 0)
            g->row_address[i] = advance_by(g, g->arg[ARG_A], g->arg[ARG_ROWS], i);
        g->c_address[i] = advance(g, g->arg[ARG_C], LLVMBuildMul(builder, g->arg[ARG_C_STRIDE], constant(g, i), ""));
        touch(g, g->c_address[i], true);
    }
    for (int v = 0; v < g->vectors; v++) {
        LLVMValueRef panel = LLVMBuildMul(builder, g->arg[ARG_PANEL_STRIDE], constant(g, v / OPQ_GEMM_PANEL_VECTORS), "");
        int64_t bytes = (int64_t)g->vector_bytes / g->element_bytes * g->right_bytes;
        g->panel_offset[v] = LLVMBuildAdd(builder, panel, constant(g, v % OPQ_GEMM_PANEL_VECTORS * bytes), "");
    }
}

static LLVMValueRef c_vector(const kernel *g, int row, int vector)
{
    return advance(g, g->c_address[row], constant(g, (int64_t)vector * g->vector_bytes));
}

/* Element (i, u) from where the state is. `column`: what the table says of u, if there is one. */
static LLVMValueRef left_address(const kernel *g, const state *s, LLVMValueRef column, int i, int u)
{
    if (g->left == OPQ_GEMM_LEFT_PACKED)
        return advance(g, s->a, constant(g, ((int64_t)u * g->rows + i) * g->element_bytes));
    if (has_columns(g)) {
        int beside = i % rows_apart(g);
        LLVMValueRef at = LLVMBuildGEP2(g->e->builder, g->element, g->row_address[i - beside], &column, 1, "");
        return advance(g, at, constant(g, (int64_t)beside * g->element_bytes));
    }
    return advance(g, advance(g, s->a, g->row_offset[i]), constant(g, (int64_t)u * g->element_bytes));
}

/* Bytes by which the state's `a` moves for one k. */
static int64_t left_step(const kernel *g)
{
    if (has_columns(g))
        return 8;
    return (g->left == OPQ_GEMM_LEFT_PACKED ? g->rows : 1) * (int64_t)g->element_bytes;
}

/* A vector of the right operand. */
static LLVMValueRef load_right(const kernel *g, LLVMValueRef address)
{
    if (g->kind != OPQ_GEMM_WIDENED)
        return load(g, g->vector, address);
    LLVMTypeRef bytes = LLVMVectorType(g->i8, (unsigned)(g->vector_bytes / g->element_bytes));
    return LLVMBuildSIToFP(g->e->builder, load(g, bytes, address), g->vector, "");
}

/* One k: tile += column of a times row of b. */
static void multiply_step(const kernel *g, state *s, int u)
{
    LLVMValueRef b[OPQ_GEMM_VECTORS_MAX], column = NULL;
    for (int v = 0; v < g->vectors; v++)
        b[v] = load_right(g, advance(g, s->b, g->panel_offset[v]));
    if (has_columns(g))
        column = LLVMBuildLoad2(g->e->builder, g->i64, advance(g, s->a, constant(g, (int64_t)u * 8)), "");
    for (int i = 0; i < g->rows; i++) {
        LLVMValueRef at = left_address(g, s, column, i, u);
        LLVMValueRef a = fill(g, load(g, g->word, at));
        for (int v = 0; v < g->vectors; v++)
            s->tile[i * g->vectors + v] = multiply_add(g, a, b[v], s->tile[i * g->vectors + v]);
    }
    s->b = advance(g, s->b, g->arg[ARG_B_STRIDE]);
}

static void add_incoming(const kernel *g, const state *phi, const state *value, LLVMBasicBlockRef from)
{
    LLVMValueRef into[] = {phi->a, phi->b, phi->prefetch, phi->k};
    LLVMValueRef out[] = {value->a, value->b, value->prefetch, value->k};
    for (int i = 0; i < 4; i++)
        LLVMAddIncoming(into[i], &out[i], &from, 1);
    for (int i = 0; i < g->rows * g->vectors; i++)
        LLVMAddIncoming(phi->tile[i], (LLVMValueRef *)&value->tile[i], &from, 1);
}

static state make_phis(const kernel *g)
{
    state s;
    LLVMBuilderRef builder = g->e->builder;
    s.a = LLVMBuildPhi(builder, g->pointer, "a");
    s.b = LLVMBuildPhi(builder, g->pointer, "b");
    s.prefetch = LLVMBuildPhi(builder, g->pointer, "next");
    s.k = LLVMBuildPhi(builder, g->i64, "k");
    for (int i = 0; i < g->rows * g->vectors; i++)
        s.tile[i] = LLVMBuildPhi(builder, g->vector, "tile");
    return s;
}

/* A loop that does `unroll` k at a time while that many are left: returns the state behind it, in a new block. */
static state emit_loop(kernel *g, const state *before, int unroll)
{
    LLVMBuilderRef builder = g->e->builder;
    LLVMBasicBlockRef entry = LLVMGetInsertBlock(builder);
    LLVMBasicBlockRef body = LLVMAppendBasicBlockInContext(g->e->context, g->e->function, "loop");
    LLVMBasicBlockRef exit = LLVMAppendBasicBlockInContext(g->e->context, g->e->function, "behind");
    LLVMValueRef enough = LLVMBuildICmp(builder, LLVMIntSGE, before->k, constant(g, unroll), "");
    LLVMBuildCondBr(builder, enough, body, exit);

    LLVMPositionBuilderAtEnd(builder, body);
    state phi = make_phis(g), s = phi;
    for (int u = 0; u < unroll; u++)
        multiply_step(g, &s, u);
    if (g->kind == OPQ_GEMM_WIDENED) /* it may be made for one row, which has nothing but memory to wait for */
        for (int v = 0; v < g->vectors; v += OPQ_GEMM_PANEL_VECTORS)
            touch(g, advance(g, advance(g, s.b, g->panel_offset[v]), constant(g, g->e->cpu->target->gemm.widened_ahead)),
                  false);
    else
        touch(g, s.prefetch, false);
    s.prefetch = advance(g, s.prefetch, LLVMBuildMul(builder, g->arg[ARG_STEP], constant(g, unroll), ""));
    s.a = advance(g, s.a, constant(g, unroll * left_step(g)));
    s.k = LLVMBuildSub(builder, s.k, constant(g, unroll), "");
    LLVMBuildCondBr(builder, LLVMBuildICmp(builder, LLVMIntSGE, s.k, constant(g, unroll), ""), body, exit);
    body = LLVMGetInsertBlock(builder);
    add_incoming(g, &phi, before, entry);
    add_incoming(g, &phi, &s, body);

    LLVMPositionBuilderAtEnd(builder, exit);
    state behind = make_phis(g);
    add_incoming(g, &behind, before, entry);
    add_incoming(g, &behind, &s, body);
    return behind;
}

/* The sums start from zero, or from c. */
static state emit_start(kernel *g)
{
    LLVMBuilderRef builder = g->e->builder;
    LLVMBasicBlockRef entry = LLVMGetInsertBlock(builder);
    LLVMBasicBlockRef reload = LLVMAppendBasicBlockInContext(g->e->context, g->e->function, "reload");
    LLVMBasicBlockRef begin = LLVMAppendBasicBlockInContext(g->e->context, g->e->function, "begin");
    LLVMBuildCondBr(builder, LLVMBuildICmp(builder, LLVMIntNE, g->arg[ARG_ACCUMULATE], constant(g, 0), ""), reload,
                    begin);

    state zero = {.a = g->arg[has_columns(g) ? ARG_COLUMNS : ARG_A],
                  .b = g->arg[ARG_B],
                  .prefetch = g->arg[ARG_PREFETCH],
                  .k = g->arg[ARG_K]},
          old = zero;
    LLVMPositionBuilderAtEnd(builder, reload);
    for (int i = 0; i < g->rows * g->vectors; i++) {
        zero.tile[i] = LLVMConstNull(g->vector);
        old.tile[i] = load(g, g->vector, c_vector(g, i / g->vectors, i % g->vectors));
    }
    LLVMBuildBr(builder, begin);
    LLVMPositionBuilderAtEnd(builder, begin);
    state s = make_phis(g);
    add_incoming(g, &s, &zero, entry);
    add_incoming(g, &s, &old, reload);
    return s;
}

static void set_types(kernel *g)
{
    LLVMContextRef context = g->e->context;
    bool wide = g->kind == OPQ_GEMM_F64, integers = g->kind == OPQ_GEMM_SHORTS || g->kind == OPQ_GEMM_QUADS;
    LLVMTypeRef i32 = LLVMInt32TypeInContext(context);
    g->element_bytes = wide ? 8 : 4;
    g->right_bytes = g->kind == OPQ_GEMM_WIDENED ? 1 : g->element_bytes;
    g->vector_bytes = opq_gemm_vector_bytes(g->e->cpu);
    g->i8 = LLVMInt8TypeInContext(context);
    g->i64 = LLVMInt64TypeInContext(context);
    g->pointer = LLVMPointerTypeInContext(context, 0);
    g->element = wide ? LLVMDoubleTypeInContext(context) : integers ? i32 : LLVMFloatTypeInContext(context);
    g->word = g->kind == OPQ_GEMM_PAIRS ? i32 : g->element;
    g->vector = LLVMVectorType(g->element, (unsigned)(g->vector_bytes / g->element_bytes));
    if (g->kind == OPQ_GEMM_PAIRS)
        g->halves = LLVMVectorType(LLVMBFloatTypeInContext(context), (unsigned)g->vector_bytes / 2);
    if (g->kind == OPQ_GEMM_SHORTS)
        g->halves = LLVMVectorType(LLVMInt16TypeInContext(context), (unsigned)g->vector_bytes / 2);
}

static void emit_kernel(kernel *g)
{
    opq_emitter *e = g->e;
    LLVMPositionBuilderAtEnd(e->builder, LLVMAppendBasicBlockInContext(e->context, e->function, "entry"));
    prepare_addresses(g);
    state s = emit_start(g);
    int unroll = (e->cpu->target->gemm.turn_fmas + g->rows * g->vectors - 1) / (g->rows * g->vectors);
    if (g->kind == OPQ_GEMM_WIDENED)
        unroll = LINE / (OPQ_GEMM_PANEL_VECTORS * g->vector_bytes / g->element_bytes);
    if (unroll > 1)
        s = emit_loop(g, &s, unroll);
    s = emit_loop(g, &s, 1);
    for (int i = 0; i < g->rows * g->vectors; i++) {
        LLVMValueRef store = LLVMBuildStore(e->builder, s.tile[i], c_vector(g, i / g->vectors, i % g->vectors));
        LLVMSetAlignment(store, (unsigned)g->element_bytes);
    }
    LLVMBuildRetVoid(e->builder);
}

/* ---- all of them */

static const char *const elements[] = {"f32", "f64", "pairs", "widened", "shorts", "quads"};
const char *opq_gemm_element_name(opq_gemm_element element) { return elements[element]; }

typedef struct tiles {
    char name[48];
    opq_gemm_element element;
} tiles;

/* What the target does not always have. */
static unsigned leaf_of(opq_gemm_element element)
{
    return element == OPQ_GEMM_PAIRS ? OPQ_LEAF_pairs : element == OPQ_GEMM_QUADS ? OPQ_LEAF_quads : 0;
}

static LLVMValueRef emit_tile(opq_emitter *e, const tiles *t, const opq_gemm_tile_shape *shape)
{
    static const char *const lefts[] = {"packed", "rows", "window", "threes", "beside"};
    char name[sizeof t->name + 32];
    kernel g = {.e = e, .left = shape->left, .rows = shape->rows, .vectors = shape->vectors, .kind = t->element};
    snprintf(name, sizeof name, "%s_%s_%dx%d", t->name, lefts[shape->left], shape->rows, shape->vectors);
    set_types(&g);
    declare_intrinsics(&g);
    declare_function(&g, name);
    emit_kernel(&g);
    return e->function;
}

/* A table of tiles, opq_gemm_tiles. */
static opq_status build_tiles(opq_emitter *e, void *data)
{
    enum { LEFT = (OPQ_GEMM_ROWS_MAX + 1) * (OPQ_GEMM_VECTORS_MAX + 1), TILES = OPQ_GEMM_LEFTS * LEFT };
    const tiles *t = data;
    LLVMTypeRef pointer = LLVMPointerTypeInContext(e->context, 0), type = LLVMArrayType2(pointer, TILES);
    LLVMValueRef tile[TILES], table = LLVMAddGlobal(e->module, type, t->name);
    for (int i = 0; i < TILES; i++)
        tile[i] = LLVMConstNull(pointer);
    bool has = (e->cpu->leaves & leaf_of(t->element)) == leaf_of(t->element);
    for (opq_gemm_tile_shape shape = {0}; has && opq_gemm_next_tile(e->cpu, &shape);)
        tile[shape.left * LEFT + shape.rows * (OPQ_GEMM_VECTORS_MAX + 1) + shape.vectors] = emit_tile(e, t, &shape);
    LLVMSetInitializer(table, LLVMConstArray2(pointer, tile, TILES));
    LLVMSetGlobalConstant(table, true);
    LLVMSetVisibility(table, LLVMHiddenVisibility);
    return OPQ_OK;
}

opq_status opq_gemm_tiles_object(const char *target, opq_gemm_element element, const char *path)
{
    opq_cpu cpu;
    opq_compiler *compiler;
    tiles t = {.element = element};
    OPQ_TRY(opq_cpu_level(target, &cpu));
    opq_cpu_add(&cpu, leaf_of(element));
    OPQ_TRY(opq_compiler_create(&cpu, &compiler));
    snprintf(t.name, sizeof t.name, "opq_gemm_tiles_%s_%s", target, elements[element]);
    opq_status status = opq_compiler_write(compiler, &(opq_module){t.name, build_tiles, &t}, t.name, path);
    opq_compiler_destroy(compiler);
    return status;
}
