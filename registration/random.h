// The device's generator: a Philox seed and an offset in draws. Kernels take both as run-time scalars.
#pragma once

#include <ATen/core/Generator.h>

#include <optional>
#include <utility>

#include "shim.h"

namespace opq
{

const at::Generator &default_generator();
at::Generator new_generator();
// Reserves `draws` draws of the given generator (none: the default one): its seed, and the offset of the first draw.
std::pair<uint64_t, uint64_t> reserve_draws(const std::optional<at::Generator> &generator, int64_t draws);
// The same as numbers of the graph.
std::pair<Value, Value> draw_numbers(const std::optional<at::Generator> &generator, int64_t draws);
// For a call that has drawn so many before: seed, and the offset from which it draws; taken back if nothing was.
std::pair<uint64_t, uint64_t> take_draws(at::Generator generator, int64_t draws);
// uniform or normal numbers in f32.
Value draw(opq_op op, IntArrayRef shape, const std::optional<at::Generator> &generator);
// Numbers in [0, 1) with as many random bits as the significand of the dtype has, so that none rounds to 1.
Value uniform_values(opq_dtype dtype, IntArrayRef shape, const std::optional<at::Generator> &generator);
// A CPU generator that is a function of our generator's state, for operators that run through CPU kernels.
at::Generator cpu_generator(const std::optional<at::Generator> &generator);

} // namespace opq
