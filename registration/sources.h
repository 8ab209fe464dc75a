// Elements that are made of several others at places which no view says: tables of places, one per dim, computed here and read by
// the kernel.
#pragma once

#include "windows.h"

namespace opq
{

// Which elements of a dim each of `size` others is made of: [taps][size], -1 for none.
struct Sources {
    int64_t taps, size;
    Axis places;
    int64_t &at(int64_t tap, int64_t i) { return places[static_cast<size_t>(tap * size + i)]; }
    int64_t at(int64_t tap, int64_t i) const { return places[static_cast<size_t>(tap * size + i)]; }
};

// Tables are made while recording. Declines where there would be more numbers than a moment is enough for.
void want_table(int64_t rows, int64_t columns = 1);
// The windows of a dim of `from` elements: element start + i * step + t * dilation for tap t.
Sources sources_of(int64_t from, int64_t start, int64_t count, int64_t step, int64_t taps, int64_t dilation);
// For each of `count` elements of a dim the numbers tap * size + i of `sources` that read it, ascending.
Sources readers_of(const Sources &sources, int64_t count);
// A table as a value.
Value table(const Axis &numbers);
Value table(const std::vector<double> &numbers, opq_dtype dtype);
// The value with the dims first, first + 1, .. read at these places: [.., taps .., size .., ..]. `number` where there is none.
Value read_sources(const Value &value, size_t first, c10::ArrayRef<Sources> sources, const at::Scalar &number);

} // namespace opq
