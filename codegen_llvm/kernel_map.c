/* map and index kernels: no reduction.
 *
 * A map over one loop runs [begin, end) of it; over several, units are the outer loops' indices and each runs the whole last loop.
 * An index kernel has one unit, everything, in row-major order.
 */
#include "codegen_llvm/nest.h"

#include <string.h>

/* Independent vectors in flight hide latency; long bodies have enough of their own, and cost compile time. */
static int copies_for(int cost)
{
    return cost <= 8 ? 4 : cost <= 24 ? 2 : 1;
}

static void emit_vectors(opq_nest *n, LLVMValueRef from, LLVMValueRef to)
{
    bool needed[OPQ_BODY_MAX];
    if (!opq_nest_needed(n, 0, needed))
        return;
    bool serial = n->kernel->kind == OPQ_KERNEL_index;
    opq_span span = {.needed = needed, .copies = serial ? 1 : copies_for(opq_nest_cost(n, needed))};
    opq_nest_span(n, &span, from, to, NULL);
}

void opq_emit_map(opq_nest *n)
{
    int vector = opq_nest_vector(n);
    bool serial = n->kernel->kind == OPQ_KERNEL_index;
    unsigned outer = (1u << vector) - 1;
    opq_nest_emit(n, OPQ_LEVEL_entry, 0, NULL);
    if (vector == 0) {
        emit_vectors(n, serial ? opq_i64(n->e, 0) : n->begin, serial ? n->extent[0] : n->end);
        return;
    }
    opq_odometer odometer = opq_nest_odometer(n, outer);
    opq_units units;
    opq_units_begin(n, &units, &odometer, serial ? opq_i64(n->e, 0) : n->begin, serial ? opq_odometer_count(n, &odometer) : n->end);
    LLVMValueRef address[OPQ_ACCESS_MAX];
    memcpy(address, n->address, sizeof address);
    opq_nest_enter(n, outer, units.index);
    opq_nest_bind(n, outer);
    opq_nest_emit(n, OPQ_LEVEL_outer, 0, NULL);
    emit_vectors(n, opq_i64(n->e, 0), n->extent[vector]);
    memcpy(n->address, address, sizeof address);
    opq_units_end(n, &units);
}
