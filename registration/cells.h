// The recurrent cells that PyTorch has kernels of: one step of an LSTM or a GRU, and its gradients, as values. Gates lie beside each other,
// [batch, gates * hidden], where a product made them or takes them, and are values of their own in between: so a step is one kernel.
#pragma once

#include "movement.h"

namespace opq
{

struct RecurrentStep {
    // An LSTM's: in, forget, cell, out. A GRU's: reset, update, new, and the hidden state's share of new, which reset scales.
    Value gates[4];
    Value c, h; // a GRU has no c
};

struct RecurrentGradient {
    Value from_input, from_hidden; // of the gates' sums; an LSTM adds both, so they are one value
    Value h, c; // of the states before; h: but for what the product of from_hidden and the weights adds
};

// Gate `number` of those beside each other.
Value gate_of(const Value &gates, int64_t number, int64_t hidden);

RecurrentStep lstm_step(const Value &sum, const Value &c);
RecurrentStep gru_step(const Value &from_input, const Value &from_hidden, const Value &h);
// One of grad_h and grad_c may be no value.
RecurrentGradient lstm_gradient(const RecurrentStep &step, const Value &c_before, const Value &grad_h,
                                const Value &grad_c);
RecurrentGradient gru_gradient(const RecurrentStep &step, const Value &h_before, const Value &grad_h);

} // namespace opq
