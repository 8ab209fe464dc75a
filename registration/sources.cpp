#include "sources.h"

#include <algorithm>

namespace opq
{

void want_table(int64_t rows, int64_t columns)
{
    constexpr int64_t most = 1 << 22;
    if (rows > most || columns > most || rows * columns > most)
        decline(opq_fail(OPQ_UNSUPPORTED, "a table of %lld times %lld places", static_cast<long long>(rows),
                         static_cast<long long>(columns)));
}

Sources sources_of(int64_t from, int64_t start, int64_t count, int64_t step, int64_t taps, int64_t dilation)
{
    want_table(taps, count);
    Sources result{taps, count, Axis(static_cast<size_t>(taps * count), -1)};
    for (int64_t t = 0; t < taps; ++t)
        for (int64_t i = 0; i < count; ++i) {
            const int64_t place = start + i * step + t * dilation;
            if (place >= 0 && place < from)
                result.at(t, i) = place;
        }
    return result;
}

Sources readers_of(const Sources &sources, int64_t count)
{
    want_table(count);
    std::vector<Axis> readers(static_cast<size_t>(count));
    size_t most = 1;
    for (size_t n = 0; n < sources.places.size(); ++n)
        if (sources.places[n] >= 0) {
            Axis &list = readers[static_cast<size_t>(sources.places[n])];
            list.push_back(static_cast<int64_t>(n));
            most = std::max(most, list.size());
        }
    Sources result{static_cast<int64_t>(most), count, Axis(most * readers.size(), -1)};
    for (size_t i = 0; i < readers.size(); ++i)
        for (size_t t = 0; t < readers[i].size(); ++t)
            result.at(static_cast<int64_t>(t), static_cast<int64_t>(i)) = readers[i][t];
    return result;
}

Value table(const Axis &numbers) { return upload(at::tensor(numbers, at::kLong), Order{}); }

Value table(const std::vector<double> &numbers, opq_dtype dtype)
{
    return upload(at::tensor(numbers, torch_dtype(dtype)), Order{});
}

Value read_sources(const Value &value, size_t first, c10::ArrayRef<Sources> sources, const at::Scalar &number)
{
    const Dims from = shape_of(value);
    const size_t spatial = sources.size();
    std::vector<Value> places;
    Value inside;
    std::vector<int64_t> split(from.begin(), from.begin() + static_cast<ptrdiff_t>(first)), order;
    for (const Sources &each : sources) {
        Axis real = each.places;
        std::vector<int64_t> known;
        for (int64_t &place : real) {
            known.push_back(place >= 0);
            place = std::max<int64_t>(place, 0);
        }
        places.push_back(table(real));
        if (std::find(known.begin(), known.end(), 0) != known.end()) {
            std::vector<int64_t> along(2 * spatial + from.size() - first - spatial, 1);
            along[2 * places.size() - 2] = each.taps;
            along[2 * places.size() - 1] = each.size;
            const Value here = cast(reshape(table(known), along), OPQ_bool);
            inside = inside ? record(OPQ_OP_bitwise_and, {inside, here}) : here;
        }
        split.push_back(each.taps);
        split.push_back(each.size);
    }
    split.insert(split.end(), from.begin() + static_cast<ptrdiff_t>(first + spatial), from.end());
    Value read = reshape(at_places(value, static_cast<int64_t>(first), places), split);
    if (inside)
        read = record(OPQ_OP_where, {inside, read, scalar(number, read.dtype())});
    for (size_t d = 0; d < split.size(); ++d)
        order.push_back(static_cast<int64_t>(d));
    for (size_t i = 0; i < spatial; ++i) {
        order[first + i] = static_cast<int64_t>(first + 2 * i);
        order[first + spatial + i] = static_cast<int64_t>(first + 2 * i + 1);
    }
    return permute(read, order);
}

} // namespace opq
