// scatter_reduce and its kin: elements are combined at indices.
#include <limits>

#include "below.h"
#include "movement.h"
#include "put.h"

namespace opq
{

namespace
{

enum class Way { sum, mean, prod, amax, amin };

std::optional<Way> way_of(const std::string &name)
{
    for (const auto &[known, way] :
         {std::pair("sum", Way::sum), std::pair("mean", Way::mean), std::pair("prod", Way::prod),
          std::pair("amax", Way::amax), std::pair("amin", Way::amin), std::pair("add", Way::sum),
          std::pair("multiply", Way::prod)})
        if (name == known)
            return way;
    return std::nullopt;
}

opq_op row_of(Way way)
{
    switch (way) {
    case Way::prod: return OPQ_OP_scatter_prod;
    case Way::amax: return OPQ_OP_scatter_amax;
    case Way::amin: return OPQ_OP_scatter_amin;
    case Way::sum:
    case Way::mean: break;
    }
    return OPQ_OP_scatter_add;
}

int64_t bound_of(opq_dtype dtype, bool largest)
{
    const int bits = 8 * static_cast<int>(opq_dtype_bytes(dtype));
    if (opq_dtype_kind_of(dtype) == OPQ_KIND_UINT)
        return largest ? (int64_t{1} << bits) - 1 : 0;
    const int64_t most = static_cast<int64_t>(~uint64_t{0} >> (65 - bits));
    return largest ? most : -most - 1;
}

// What changes nothing.
Value identity(Way way, opq_dtype dtype)
{
    if (way != Way::amax && way != Way::amin)
        return scalar(way == Way::prod ? 1 : 0, dtype);
    const double infinity = std::numeric_limits<double>::infinity();
    return is_float(dtype) ? number(way == Way::amax ? -infinity : infinity, dtype)
                           : scalar(bound_of(dtype, way == Way::amin), dtype);
}

// `index` and `source` are of one shape, which is the target's or less but for the axis.
struct Scatter {
    const char *name;
    Value target, index, source;
    int64_t axis;

    Value combine(opq_op row, const Value &into, const Value &what) const
    {
        if (row == OPQ_OP_scatter_add) // an index for each element, as without a name
            return record(row, {into, index, what}, {attr_int(OPQ_ATTR_axis, axis)});
        return record(row, {into, index, what}, {attr_int(OPQ_ATTR_axis, axis), attr_text(OPQ_ATTR_key, name)});
    }
    // How many reach each place.
    Value counts() const
    {
        return combine(OPQ_OP_scatter_add, full(0, OPQ_i64, shape_of(target)), full(1, OPQ_i64, shape_of(index)));
    }
};

Value scattered(const Scatter &s, Way way, bool include_self)
{
    const opq_dtype dtype = s.target.dtype();
    Value base = s.target, hits;
    if (!include_self || way == Way::mean)
        hits = s.counts();
    if (!include_self)
        base = record(OPQ_OP_where, {record(OPQ_OP_ne, {hits, scalar(0)}), identity(way, dtype), base});
    const Value result = s.combine(row_of(way), base, s.source);
    if (way != Way::mean)
        return result;
    const Value all = include_self ? plus(hits, scalar(1)) : record(OPQ_OP_maximum, {hits, scalar(1)});
    const Value count = cast(all, dtype);
    return record(is_float(dtype) ? OPQ_OP_div : OPQ_OP_div_floor, {result, count});
}

bool serves(const Tensor &self, const Tensor &index)
{
    return !is_raw(self) && self.scalar_type() != at::kBool && index.scalar_type() == at::kLong && index.numel() > 0;
}

// (self, dim, index, src, reduce, include_self); False: an error that PyTorch words, or nothing to do.
bool scatter(Call &call, const std::string &reduce, bool include_self)
{
    const Tensor &self = call.tensor(0), &index = call.tensor(2);
    const auto way = way_of(reduce);
    const bool number = !call.args[3].isTensor();
    if (!way || !serves(self, index) || self.dim() != index.dim())
        return false;
    const int64_t axis = normal_axis(call.integer(1), self.dim());
    for (int64_t i = 0; i < self.dim(); ++i)
        if (i != axis && index.size(i) > self.size(i))
            return false;
    const Value target = lifted(call.in(0)), at = lifted(call.in(2));
    Value source;
    if (number) {
        source = full(call.scalar(3), target.dtype(), shape_of(at));
    } else {
        const Tensor &given = call.tensor(3);
        if (given.dim() != index.dim() || !same_dtype({&self, &given}))
            return false;
        source = lifted(call.in(3));
        for (int64_t i = 0; i < index.dim(); ++i) {
            if (index.size(i) > given.size(i))
                return false;
            if (index.size(i) < given.size(i))
                source = slice(source, i, 0, index.size(i));
        }
    }
    call.give(reshape(scattered({call.name(), target, at, source, axis}, *way, include_self), self.sizes()));
    return true;
}

// scatter_reduce.two(self, dim, index, src, reduce, *, include_self)
bool scatter_reduce(Call &call)
{
    const std::string &reduce = call.args[4].toStringRef();
    return reduce != "add" && reduce != "multiply" && scatter(call, reduce, call.flag(5));
}

// scatter.reduce(self, dim, index, src, *, reduce), scatter.value_reduce(self, dim, index, value, *, reduce)
bool scatter_legacy(Call &call)
{
    const std::string &reduce = call.args[4].toStringRef();
    return (reduce == "add" || reduce == "multiply") && scatter(call, reduce, true);
}

// index_reduce(self, dim, index, source, reduce, include_self): one index for whole slices
bool index_reduce(Call &call)
{
    const Tensor &self = call.tensor(0), &index = call.tensor(2), &source = call.tensor(3);
    const std::string &reduce = call.args[4].toStringRef();
    const auto way = way_of(reduce);
    if (!way || *way == Way::sum || reduce == "multiply" || !serves(self, index) || index.dim() > 1 ||
        source.dim() != self.dim() || !same_dtype({&self, &source}) || source.numel() == 0)
        return false;
    const int64_t axis = normal_axis(call.integer(1), self.dim());
    for (int64_t i = 0; i < self.dim(); ++i)
        if (source.size(i) != (i == axis ? index.numel() : self.size(i)))
            return false;
    const Value added = lifted(call.in(3));
    Dims shape(static_cast<size_t>(added.rank()), 1);
    shape[static_cast<size_t>(axis)] = index.numel();
    const Value at = expand(reshape(call.in(2), shape), shape_of(added));
    const Value result = scattered({call.name(), lifted(call.in(0)), at, added, axis}, *way, call.flag(5));
    call.give(reshape(result, self.sizes()));
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "scatter_reduce.two", &scatter_reduce);
    adapt(library, "scatter.reduce", &scatter_legacy);
    adapt(library, "scatter.value_reduce", &scatter_legacy);
    adapt(library, "index_reduce", &index_reduce);
}

} // namespace

} // namespace opq
