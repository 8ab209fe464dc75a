// The device's generator: a Philox seed and an offset in draws. Kernels take both as run-time scalars.
#pragma once

#include <ATen/core/Generator.h>

#include <optional>
#include <utility>

namespace opq
{

const at::Generator &default_generator();
at::Generator new_generator();
// Reserves `draws` draws of the given generator (none: the default one): its seed, and the offset of the first draw.
std::pair<uint64_t, uint64_t> reserve_draws(const std::optional<at::Generator> &generator, int64_t draws);
// A CPU generator that is a function of our generator's state, for operators that run through CPU kernels.
at::Generator cpu_generator(const std::optional<at::Generator> &generator);

} // namespace opq
