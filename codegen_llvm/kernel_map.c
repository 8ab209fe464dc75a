/* map and index kernels: no reduction.
 *
 * A map over one loop runs [begin, end) of it; over several, units are the outer loops' indices and each runs the whole
 * last loop. An index kernel has one unit, everything, in row-major order.
 *
 * A map that reads across memory (contiguous along the last but one loop, strided along the last, as a transposition is)
 * is tiled: a unit is 16 lines, and their vectors are taken column by column of tiles, so that a cache line fetched for
 * one of them serves the other 15.
 */
#include "codegen_llvm/nest.h"

#include <string.h>

/* Lines of a power-of-two stride fall into one set of the L1 cache, which holds about this many. */
enum { TILE_COLUMNS = 16 };

/* Independent vectors in flight hide latency; long bodies have enough of their own, and cost compile time. */
static int copies_for(int cost) { return cost <= 8 ? 4 : cost <= 24 ? 2 : 1; }

static void emit_vectors(opq_nest *n, LLVMValueRef from, LLVMValueRef to)
{
    bool needed[OPQ_BODY_MAX];
    if (!opq_nest_needed(n, 0, needed))
        return;
    bool serial = n->kernel->kind == OPQ_KERNEL_index;
    opq_span span = {.needed = needed, .copies = serial ? 1 : copies_for(opq_nest_cost(n, needed))};
    opq_nest_span(n, &span, from, to, NULL);
}

bool opq_kernel_tiled(const opq_kernel *kernel)
{
    int vector = kernel->rank - 1;
    if (kernel->kind != OPQ_KERNEL_map || vector == 0)
        return false;
    for (int a = 0; a < kernel->access_count; a++) {
        const opq_access *access = &kernel->accesses[a];
        if (access->buffer >= 0 && access->stride[vector] == OPQ_STRIDE_any &&
            access->stride[vector - 1] == OPQ_STRIDE_one)
            return true;
    }
    return false;
}

static LLVMValueRef smaller(opq_nest *n, LLVMValueRef a, LLVMValueRef b)
{
    return LLVMBuildSelect(n->e->builder, LLVMBuildICmp(n->e->builder, LLVMIntSLT, a, b, ""), a, b, "");
}

/* One index of the last but one loop, on [from, to) of the last. */
static void emit_line(opq_nest *n, unsigned loops, LLVMValueRef from, LLVMValueRef to)
{
    LLVMValueRef address[OPQ_ACCESS_MAX];
    memcpy(address, n->address, sizeof address);
    opq_nest_bind(n, loops);
    opq_nest_emit(n, OPQ_LEVEL_outer, 0, NULL);
    emit_vectors(n, from, to);
    memcpy(n->address, address, sizeof address);
}

/* `tile` counts tiles along the last but one loop; the loops outside are bound. */
static void emit_tile_row(opq_nest *n, LLVMValueRef tile)
{
    LLVMBuilderRef b = n->e->builder;
    int vector = opq_nest_vector(n), line = vector - 1;
    LLVMValueRef first = LLVMBuildMul(b, tile, opq_i64(n->e, OPQ_TILE_LINES), "");
    LLVMValueRef last = LLVMBuildAdd(b, first, opq_i64(n->e, OPQ_TILE_LINES), "");
    last = smaller(n, last, n->extent[line]);
    opq_loop columns, lines;
    opq_loop_begin(n, &columns, opq_i64(n->e, 0), n->extent[vector], TILE_COLUMNS, NULL, 0);
    LLVMValueRef end = LLVMBuildAdd(b, columns.index, opq_i64(n->e, TILE_COLUMNS), "");
    end = smaller(n, end, n->extent[vector]);
    opq_loop_begin(n, &lines, first, last, 1, NULL, 0);
    n->index[line] = lines.index;
    emit_line(n, 1u << line, columns.index, end);
    opq_loop_end(n, &lines, NULL);
    opq_loop_end(n, &columns, NULL);
}

static void emit_tiled(opq_nest *n)
{
    LLVMBuilderRef b = n->e->builder;
    int line = opq_nest_vector(n) - 1;
    unsigned outer = (1u << line) - 1;
    opq_odometer odometer = opq_nest_odometer(n, outer);
    LLVMValueRef rounded = LLVMBuildAdd(b, n->extent[line], opq_i64(n->e, OPQ_TILE_LINES - 1), "");
    odometer.extent[odometer.rank++] = LLVMBuildUDiv(b, rounded, opq_i64(n->e, OPQ_TILE_LINES), "");
    opq_units units;
    opq_units_begin(n, &units, &odometer, n->begin, n->end);
    LLVMValueRef address[OPQ_ACCESS_MAX];
    memcpy(address, n->address, sizeof address);
    opq_nest_enter(n, outer, units.index);
    opq_nest_bind(n, outer);
    emit_tile_row(n, units.index[odometer.rank - 1]);
    memcpy(n->address, address, sizeof address);
    opq_units_end(n, &units);
}

static void emit_lines(opq_nest *n, LLVMValueRef begin, LLVMValueRef end)
{
    int vector = opq_nest_vector(n);
    unsigned outer = (1u << vector) - 1;
    opq_odometer odometer = opq_nest_odometer(n, outer);
    opq_units units;
    opq_units_begin(n, &units, &odometer, begin, end);
    opq_nest_enter(n, outer, units.index);
    emit_line(n, outer, opq_i64(n->e, 0), n->extent[vector]);
    opq_units_end(n, &units);
}

void opq_emit_map(opq_nest *n)
{
    int vector = opq_nest_vector(n);
    bool serial = n->kernel->kind == OPQ_KERNEL_index;
    LLVMValueRef begin = serial ? opq_i64(n->e, 0) : n->begin, end = n->end;
    opq_odometer outer = opq_nest_odometer(n, (1u << vector) - 1);
    opq_nest_emit(n, OPQ_LEVEL_entry, 0, NULL);
    if (serial)
        end = vector == 0 ? n->extent[0] : opq_odometer_count(n, &outer);
    if (vector == 0)
        emit_vectors(n, begin, end);
    else if (opq_kernel_tiled(n->kernel))
        emit_tiled(n);
    else
        emit_lines(n, begin, end);
}
