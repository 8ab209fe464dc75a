/* See schedule.h. */
#include "fusion/schedule.h"

opq_status opq_schedule(const opq_loops *loops, opq_arena *arena, opq_loops *out_schedule)
{
    OPQ_TRY(opq_schedule_reduce(loops, arena, out_schedule));
    opq_status status = opq_loops_verify(out_schedule);
    if (status != OPQ_OK && status != OPQ_NO_MEMORY)
        return opq_fail(OPQ_INTERNAL, "the schedule of kernel %s: %s", loops->name ? loops->name : "", opq_error());
    return status;
}

opq_status opq_schedule_print(const opq_loops *loops, opq_text *out_text)
{
    opq_arena arena = {0};
    opq_loops schedule;
    opq_status status = opq_schedule(loops, &arena, &schedule);
    if (status == OPQ_OK)
        opq_loops_print(&schedule, out_text);
    opq_arena_drop(&arena);
    return status;
}

opq_status opq_schedule_eval(const opq_loops *loops, void *const *buffers, const int64_t *dims,
                             const opq_number *scalars, int64_t out_error[2])
{
    opq_arena arena = {0};
    opq_loops schedule;
    opq_status status = opq_schedule(loops, &arena, &schedule);
    if (status == OPQ_OK)
        status = opq_loops_eval(&schedule, buffers, dims, scalars, out_error);
    opq_arena_drop(&arena);
    return status;
}
