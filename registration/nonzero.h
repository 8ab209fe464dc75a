// Masks as places. How many places a mask has is a size of what is read there, so the mask is computed while that is recorded.
#pragma once

#include "adapter.h"

namespace opq
{

// Where a mask of the device or of the CPU is not zero: i64 [n, rank] on the CPU, in row-major order. As flat: [n], places in the
// whole mask.
Tensor mask_places(const Call &call, const Tensor &mask);
Tensor flat_mask_places(const Call &call, const Tensor &mask);

} // namespace opq
