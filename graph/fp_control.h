/* How the calling thread rounds: x86's MXCSR without its sticky flags (rounding mode, flushing of denormals, masked exceptions).
 *
 * A program may change it (torch.set_flush_denormal). Kernels then compute as that thread asks, on whichever thread they run; code is
 * generated under the default, because it outlives the setting.
 */
#ifndef OPAQUE_GRAPH_FP_CONTROL_H
#define OPAQUE_GRAPH_FP_CONTROL_H

#include <xmmintrin.h>

enum { OPQ_FP_FLAGS = 0x3f, OPQ_FP_DEFAULT = 0x1f80 };

static inline unsigned opq_fp_control(void) { return _mm_getcsr() & ~(unsigned)OPQ_FP_FLAGS; }

/* Gives the control that was in force. Writing the register costs more than reading it. */
static inline unsigned opq_fp_control_set(unsigned control)
{
    unsigned now = _mm_getcsr(), before = now & ~(unsigned)OPQ_FP_FLAGS;
    if (before != control)
        _mm_setcsr((now & OPQ_FP_FLAGS) | control);
    return before;
}

#endif
