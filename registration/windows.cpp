#include "windows.h"

namespace opq
{

Axis per_dim(const Dims &list, int64_t spatial)
{
    Axis result(list.begin(), list.end());
    if (result.size() == 1)
        result.resize(static_cast<size_t>(spatial), result[0]);
    return result;
}

bool channels_last(const Tensor &tensor)
{
    const auto format = tensor.suggest_memory_format();
    return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

bool has_space_in(const Tensor &tensor, int64_t spatial)
{
    for (int64_t dim = 0; dim < tensor.dim(); ++dim)
        if (tensor.size(dim) == 0 && (dim > 0 || tensor.dim() != spatial + 2))
            return false;
    return true;
}

Value around(const Value &value, const at::Scalar &number, size_t first, IntArrayRef low, IntArrayRef high)
{
    Dims before(static_cast<size_t>(value.rank()), 0), behind = before;
    for (size_t i = 0; i < low.size(); ++i) {
        before[first + i] = low[i];
        behind[first + i] = high[i];
    }
    return padded(value, number, before, behind);
}

Value windows_of(const Value &value, size_t first, const Window &w, bool taps_first)
{
    const Dims shape = shape_of(value);
    const size_t spatial = w.start.size();
    const Dims strides = ordered_strides(shape, Order{});
    Dims sizes, steps;
    int64_t offset = 0;
    const auto keep = [&](size_t from, size_t to) {
        sizes.append(shape.begin() + static_cast<ptrdiff_t>(from), shape.begin() + static_cast<ptrdiff_t>(to));
        steps.append(strides.begin() + static_cast<ptrdiff_t>(from), strides.begin() + static_cast<ptrdiff_t>(to));
    };
    keep(0, first);
    for (const bool taps : {taps_first, !taps_first})
        for (size_t i = 0; i < spatial; ++i) {
            sizes.push_back(taps ? w.taps[i] : w.count[i]);
            steps.push_back(strides[first + i] * (taps ? w.dilation[i] : w.step[i]));
        }
    keep(first + spatial, shape.size());
    for (size_t i = 0; i < spatial; ++i)
        offset += w.start[i] * strides[first + i];
    return record_typed(OPQ_OP_strided, value.dtype(), sizes, {value},
                        {attr_int(OPQ_ATTR_offset, offset), attr_ints(OPQ_ATTR_strides, steps)});
}

} // namespace opq
