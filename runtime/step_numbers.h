/* The numbers of a step, always in one order: of two steps that are made alike, number i of one is what number i of the other is. Plans for other
 * sizes differ in nothing else (plan_family.c, opaque/export_steps.c). */
#ifndef OPAQUE_RUNTIME_STEP_NUMBERS_H
#define OPAQUE_RUNTIME_STEP_NUMBERS_H

#include "runtime/plan.h"

typedef struct opq_step_visitor opq_step_visitor;
struct opq_step_visitor {
    void (*sizes)(opq_step_visitor *visitor, int64_t *first, int64_t count); /* extents, strides, bytes */
    void (*places)(opq_step_visitor *visitor, int32_t *first,
                   int64_t count); /* numbers of storage and slots; NULL: these are left out, and units */
    void *(*own)(opq_step_visitor *visitor, const void *data,
                 int64_t bytes); /* what is visited in place of memory that the step points to; NULL: that */
};
/* Where numbers are kept as words of 32 bits: in place of one that does not fit; its low and its high half follow. */
#define OPQ_NUMBER_WIDE INT32_MIN

void opq_step_visit(opq_step_visitor *visitor, opq_step *step);

#endif
