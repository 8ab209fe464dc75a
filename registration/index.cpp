// Operators that move elements by index. An index out of range fails the run.
#include "adapter.h"

#include <algorithm>

#include "below.h"
#include "movement.h"
#include "nonzero.h"
#include "put.h"

namespace opq
{

Value index_values(const Call &call, const Tensor &index)
{
    if (!at::isIntegralType(index.scalar_type(), false))
        decline(opq_fail(OPQ_INVALID, "%s: index of this dtype", call.name()));
    return cast(call.in(index), OPQ_i64);
}

namespace
{

bool index_select(Call &call)
{
    const Tensor &self = call.tensor(0), &index = call.tensor(2);
    if (index.dim() > 1 || (self.dim() == 0 && index.numel() != 1))
        return false;
    const Value where = lifted(index_values(call, index));
    const Value result = record(OPQ_OP_index_select, {lifted(call.in(0)), where},
                                {attr_int(OPQ_ATTR_axis, normal_axis(call.integer(1), self.dim()))});
    call.give(self.dim() == 0 ? reshape(result, {}) : result);
    return true;
}

// gather(self, dim, index, *, sparse_grad)
bool gather(Call &call)
{
    const Tensor &self = call.tensor(0), &index = call.tensor(2);
    if (self.dim() != index.dim())
        return false;
    call.give(reshape(record(OPQ_OP_gather, {lifted(call.in(0)), lifted(index_values(call, index))},
                             {attr_int(OPQ_ATTR_axis, normal_axis(call.integer(1), self.dim()))}),
                      index.sizes()));
    return true;
}

// scatter_add(self, dim, index, src): only the part of src under index is used
bool scatter_add(Call &call)
{
    const Tensor &self = call.tensor(0), &index = call.tensor(2), &source = call.tensor(3);
    const int64_t rank = self.dim();
    if (rank != index.dim() || rank != source.dim() || !same_dtype({&self, &source}) || index.numel() == 0)
        return false;
    for (int64_t i = 0; i < rank; ++i)
        if (index.size(i) > source.size(i) || (i != normal_axis(call.integer(1), rank) && index.size(i) > self.size(i)))
            return false;
    check_device(source, call.name());
    Tensor part = source;
    if (index.sizes() != source.sizes()) {
        const Below below;
        part = source.as_strided(index.sizes(), source.strides(), source.storage_offset());
    }
    const Value sums =
        record(OPQ_OP_scatter_add, {lifted(call.in(0)), lifted(index_values(call, index)), lifted(call.in(part))},
               {attr_int(OPQ_ATTR_axis, normal_axis(call.integer(1), rank))});
    call.give(reshape(sums, self.sizes()));
    return true;
}

// index_add(self, dim, index, source, *, alpha)
bool index_add(Call &call)
{
    const Tensor &self = call.tensor(0), &index = call.tensor(2), &source = call.tensor(3);
    if (index.dim() != 1 || source.dim() != self.dim() || (self.dim() == 0 && index.numel() != 1) ||
        !same_dtype({&self, &source}))
        return false;
    Value added = lifted(call.in(3));
    if (call.scalar(4).isComplex() || (!is_float(added.dtype()) && !call.scalar(4).isIntegral(true)))
        return false;
    if (call.real(4) != 1)
        added = record(OPQ_OP_mul, {added, scalar(call.scalar(4), added.dtype())});
    call.give(reshape(record(OPQ_OP_index_add, {lifted(call.in(0)), index_values(call, index), added},
                             {attr_int(OPQ_ATTR_axis, normal_axis(call.integer(1), self.dim()))}),
                      self.sizes()));
    return true;
}

// ---- index.Tensor(self, indices) with integer index tensors; the other dimensions are taken whole

using Indices = std::vector<std::optional<Tensor>>;

struct Indexed {
    Dims axes; // that have an index, ascending
    c10::SmallVector<const Tensor *, 4> indices;
};

bool find_indices(const Indices &given, const Tensor &self, Indexed &out)
{
    for (size_t i = 0; i < given.size(); ++i) {
        if (!given[i] || !given[i]->defined())
            continue;
        const at::ScalarType dtype = given[i]->scalar_type();
        if (static_cast<int64_t>(i) >= self.dim() || (dtype != at::kLong && dtype != at::kInt))
            return false;
        TORCH_CHECK_INDEX(self.size(static_cast<int64_t>(i)) != 0 || given[i]->numel() == 0,
                          "index is out of bounds for dimension with size 0");
        out.axes.push_back(static_cast<int64_t>(i));
        out.indices.push_back(&*given[i]);
    }
    return !out.axes.empty();
}

// An index, which may lie on the CPU.
Value moved(const Call &call, const Tensor &index)
{
    return on_device(index) ? call.in(index) : upload(index, Order{});
}

// The indices as one over the indexed dims in row-major order. Where one of them is out of range, a negative number, which fails the
// run and says which: docs/ir.md, `sizes`.
Value linear_index(const Call &call, const Indexed &indexed, IntArrayRef sizes)
{
    Value linear = scalar(0);
    for (size_t i = 0; i < indexed.axes.size(); ++i) { // the first dim that is out of range has the last word
        const Value index = cast(moved(call, *indexed.indices[i]), OPQ_i64);
        const int64_t size = sizes[static_cast<size_t>(indexed.axes[i])];
        if (indexed.axes.size() == 1)
            return wrapped_index(index, size);
        linear = record(OPQ_OP_join_index, {linear, index, scalar(size), scalar(INT64_MIN | static_cast<int64_t>(i))});
    }
    return linear;
}

// The indexed dims become one, `at`, where PyTorch puts the result's index dims: in place if they are adjacent, else in front.
struct Joined {
    Dims order, permuted; // self's dims as they are permuted first, and their sizes then
    Dims shape;           // with the indexed dims as one
    int64_t at;
    Value where;   // i64, over dim `at`
    Dims sizes;    // of the indexed dims, if there is more than one
    Indices given; // integers, not masks
    // One dim of self, and all of them where they are.
    bool is_axis_of(const Tensor &self) const
    {
        return sizes.empty() && IntArrayRef(shape) == self.sizes() && std::is_sorted(order.begin(), order.end());
    }
    // For the op that looks at `where`: what an error says.
    std::vector<opq_attr> attrs(const Call &call) const
    {
        std::vector<opq_attr> result{attr_int(OPQ_ATTR_axis, at), attr_text(OPQ_ATTR_key, call.name())};
        if (!sizes.empty())
            result.push_back(attr_ints(OPQ_ATTR_sizes, sizes));
        return result;
    }
};

// Does a mask lie over the dims of `self` from `first` on? Otherwise PyTorch has the words for it.
bool covers(const Tensor &self, size_t first, const Tensor &mask)
{
    const int64_t begin = static_cast<int64_t>(first);
    return mask.dim() > 0 && begin + mask.dim() <= self.dim() && self.sizes().slice(first, mask.dim()) == mask.sizes();
}

// Masks become places. One alone: its dims become one, and places in that are places.
bool join_mask(const Call &call, const Tensor &mask, size_t first, Joined &out)
{
    const Tensor &self = call.tensor(0);
    const int64_t begin = static_cast<int64_t>(first), end = begin + mask.dim();
    if (!covers(self, first, mask))
        return false;
    out.at = begin;
    for (int64_t d = 0; d < self.dim(); ++d) {
        out.order.push_back(d);
        out.permuted.push_back(self.size(d));
        if (d < begin || d >= end)
            out.shape.push_back(self.size(d));
        else if (d == begin)
            out.shape.push_back(mask.numel());
    }
    out.where = upload(flat_mask_places(call, mask), Order{});
    return true;
}

// Each mask as an index for each of its dims. False: PyTorch has the words for it.
bool expand_masks(const Call &call, Indices &given)
{
    Indices result;
    for (const std::optional<Tensor> &index : given) {
        if (!index || !index->defined() || index->scalar_type() != at::kBool) {
            result.push_back(index);
            continue;
        }
        if (!covers(call.tensor(0), result.size(), *index))
            return false;
        const Below below;
        for (const Tensor &column : mask_places(call, *index).unbind(1))
            result.emplace_back(column.contiguous());
    }
    given = std::move(result);
    return true;
}

// For the arguments (self, indices, ..). False: indices of another kind.
bool join_indexed(const Call &call, Joined &out)
{
    const Tensor &self = call.tensor(0);
    Indexed indexed;
    Indices given;
    size_t count_given = 0, first = 0, masks = 0;
    for (const IValue &index : call.args[1].toListRef()) {
        given.push_back(index.toOptional<Tensor>());
        if (!given.back() || !given.back()->defined())
            continue;
        first = count_given++ == 0 ? given.size() - 1 : first;
        if (given.back()->scalar_type() == at::kByte) {
            TORCH_WARN("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.");
            const Below below;
            given.back() = given.back()->to(at::kBool);
        }
        masks += given.back()->scalar_type() == at::kBool;
    }
    if (masks == 1 && count_given == 1)
        return join_mask(call, *given[first], first, out);
    if ((masks > 0 && !expand_masks(call, given)) || !find_indices(given, self, indexed))
        return false;
    const int64_t rank = self.dim(), count = static_cast<int64_t>(indexed.axes.size());
    const bool adjacent = indexed.axes.back() - indexed.axes.front() == count - 1;
    out.at = adjacent ? indexed.axes.front() : 0;
    for (int64_t d = 0; d < rank; ++d)
        if (std::find(indexed.axes.begin(), indexed.axes.end(), d) == indexed.axes.end())
            out.order.push_back(d);
    out.order.insert(out.order.begin() + out.at, indexed.axes.begin(), indexed.axes.end());
    int64_t joined = 1;
    for (int64_t i = 0; i < rank; ++i) {
        const int64_t size = self.size(out.order[static_cast<size_t>(i)]);
        out.permuted.push_back(size);
        joined *= i >= out.at && i < out.at + count ? size : 1;
        if (i < out.at || i >= out.at + count)
            out.shape.push_back(size);
        else if (i == out.at + count - 1)
            out.shape.push_back(joined);
    }
    out.where = linear_index(call, indexed, self.sizes());
    for (size_t i = 0; i < indexed.axes.size() && count > 1; ++i)
        out.sizes.push_back(self.size(indexed.axes[i]));
    out.given = std::move(given);
    return true;
}

// The order in which TensorIterator lays out self[indices]: what it reads are self without the indexed dims, and each index, all of the
// result's shape. Masks are indices of one dim, which say nothing.
Order indexed_order(const Tensor &self, const Joined &joined)
{
    const auto descends = [](const Tensor &tensor) { // dims of one element count here
        return tensor.is_contiguous() && std::is_sorted(tensor.strides().rbegin(), tensor.strides().rend());
    };
    bool contiguous = descends(self);
    for (const std::optional<Tensor> &index : joined.given)
        contiguous = contiguous && (!index || !index->defined() || descends(*index));
    if (contiguous)
        return {};
    const Below below;
    const Dims places = shape_of(joined.where);
    const size_t at = static_cast<size_t>(joined.at), behind = at + joined.permuted.size() + 1 - joined.shape.size();
    Dims sizes(joined.shape.begin(), joined.shape.begin() + joined.at), strides;
    for (size_t i = 0; i < at; ++i)
        strides.push_back(self.stride(joined.order[i]));
    sizes.append(places.begin(), places.end());
    strides.append(places.size(), 0);
    for (size_t i = behind; i < joined.permuted.size(); ++i) {
        sizes.push_back(joined.permuted[i]);
        strides.push_back(self.stride(joined.order[i]));
    }
    std::vector<Tensor> read{self.as_strided(sizes, strides, self.storage_offset())};
    for (const std::optional<Tensor> &index : joined.given)
        if (index && index->defined()) {
            Dims of_index(sizes.size(), 1);
            std::copy(places.begin(), places.end(), of_index.begin() + joined.at);
            read.push_back(index->expand(places).view(of_index));
        }
    c10::SmallVector<const Tensor *, 8> operands;
    for (const Tensor &tensor : read)
        operands.push_back(&tensor);
    return result_order(operands, sizes);
}

// index.Tensor(self, indices)
bool index_tensor(Call &call)
{
    Joined joined;
    if (!join_indexed(call, joined))
        return false;
    const Value source = reshape(permute(call.in(0), joined.order), joined.shape);
    const Value result = record(OPQ_OP_index_select, {source, joined.where}, joined.attrs(call));
    give_ordered(call, result, call.tensor(0).scalar_type(), indexed_order(call.tensor(0), joined));
    return true;
}

// x[mask] = number: one mask over some adjacent dims. Beside a mask of the device the number may be any CPU tensor of one element, as
// CUDA has it.
bool put_at_mask(Call &call)
{
    const Tensor &self = call.tensor(0), &value = call.tensor(2);
    const auto indices = call.args[1].toListRef();
    int64_t first = 0;
    while (first < static_cast<int64_t>(indices.size()) &&
           (indices[first].isNone() || !indices[first].toTensor().defined()))
        ++first;
    if (call.flag(3) || value.numel() != 1 || first + 1 != static_cast<int64_t>(indices.size()) ||
        indices[first].toTensor().scalar_type() != at::kBool)
        return false;
    const Tensor &mask = indices[first].toTensor();
    Dims shape(static_cast<size_t>(self.dim()), 1);
    for (int64_t i = 0; i < mask.dim(); ++i) {
        if (first + i >= self.dim() || mask.size(i) != self.size(first + i))
            return false;
        shape[static_cast<size_t>(first + i)] = mask.size(i);
    }
    const opq_dtype dtype = core_dtype(self.scalar_type());
    const bool read_now = value.device().is_cpu() && (value.dim() == 0 || on_device(mask));
    const Value number = read_now ? scalar_of(value) : reshape(call.in(2), {});
    call.give(
        record_typed(OPQ_OP_masked_fill, dtype, self.sizes(), {call.in(0), reshape(moved(call, mask), shape), number}));
    return true;
}

// Is a mask of bytes the only index?
bool is_mask_of_bytes(const Call &call)
{
    size_t count = 0, bytes = 0;
    for (const IValue &index : call.args[1].toListRef())
        if (index.isTensor() && index.toTensor().defined()) {
            ++count;
            bytes += index.toTensor().scalar_type() == at::kByte;
        }
    return count == 1 && bytes == 1;
}

// _index_put_impl(self, indices, values, accumulate, unsafe), which is how index.Tensor is differentiated
bool index_put(Call &call)
{
    const Tensor &self = call.tensor(0);
    Joined joined;
    if (!same_dtype({&self, &call.tensor(2)}) || is_raw(self))
        return false;
    if (put_at_mask(call))
        return true;
    if (!call.flag(3) && call.tensor(2).numel() == 1 && is_mask_of_bytes(call)) // of which masked_fill_ says what is wrong
        return false;
    if (!join_indexed(call, joined) || (!call.flag(3) && (self.numel() == 0 || call.tensor(2).numel() == 0)))
        return false;
    const Dims index = shape_of(joined.where);
    Dims wide(joined.shape.begin(), joined.shape.begin() + joined.at), narrow = wide;
    wide.append(index.begin(), index.end());
    narrow.push_back(c10::multiply_integers(index));
    for (size_t i = static_cast<size_t>(joined.at) + 1; i < joined.shape.size(); ++i) {
        wide.push_back(joined.shape[i]);
        narrow.push_back(joined.shape[i]);
    }
    const Value given = reshape(expand(call.operand(2), wide), narrow);
    const Value where = reshape(joined.where, {narrow[static_cast<size_t>(joined.at)]});
    if (!call.flag(3) && joined.is_axis_of(self) && put_lines(call, joined.at, where, given))
        return true;
    const Value target = reshape(permute(call.in(0), joined.order), joined.shape);
    const Value result = call.flag(3) ? record(OPQ_OP_index_add, {target, where, given}, joined.attrs(call))
                                      : put_along(call, target, joined.at, where, given, joined.sizes);
    call.give(logical(reshape(result, joined.permuted), Order{joined.order}));
    return true;
}

// cat(tensors, dim); 1-d tensors without elements are skipped whatever the others' rank, but have a say in dtype and format.
// Channels-last tensors alone give one of that format, as on the CPU.
bool cat(Call &call)
{
    std::vector<const Tensor *> tensors;
    at::ScalarType dtype = at::ScalarType::Undefined;
    bool last = true;
    for (const IValue &part : call.args[0].toListRef()) {
        const Tensor &tensor = part.toTensor();
        check_device(tensor, "cat");
        dtype = dtype == at::ScalarType::Undefined ? tensor.scalar_type() : at::promoteTypes(dtype, tensor.scalar_type());
        last = last && tensor.suggest_memory_format() != at::MemoryFormat::Contiguous;
        if (tensor.dim() == 1 && tensor.size(0) == 0)
            continue;
        tensors.push_back(&tensor);
        last = last && !is_raw(tensor) && tensor.dim() == tensors[0]->dim();
    }
    const at::ScalarType written = call.into.value_or(dtype);
    TORCH_CHECK_TYPE(dtype == written || c10::canCast(dtype, written),
                     "torch.cat(): input types can't be cast to the desired output type ", written);
    if (tensors.empty() || tensors[0]->dim() == 0 || is_raw(core_dtype(dtype)))
        return false;
    const int64_t rank = tensors.back()->dim();
    int64_t axis = normal_axis(call.integer(1), rank);
    const Order order = last ? last_order(rank) : Order{};
    std::vector<Value> parts;
    for (const Tensor *const tensor : tensors)
        parts.push_back(
            cast(last ? read_ordered(*tensor, static_cast<int>(rank), order) : call.in(*tensor), core_dtype(dtype)));
    if (last)
        axis = std::find(order.perm.begin(), order.perm.end(), axis) - order.perm.begin();
    call.give(concat(parts, axis), dtype, order);
    return true;
}

// ---- embedding

// embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
bool embedding(Call &call)
{
    if (call.tensor(0).dim() != 2)
        return false;
    call.give(record(OPQ_OP_index_select, {call.in(0), index_values(call, call.tensor(1))},
                     {attr_int(OPQ_ATTR_axis, 0), attr_text(OPQ_ATTR_key, call.name())}));
    return true;
}

// embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)
bool embedding_backward(Call &call)
{
    const Tensor &grad = call.tensor(0), &indices = call.tensor(1);
    if (call.flag(4) || grad.numel() == 0)
        return false;
    const int64_t columns = grad.size(-1), rows = indices.numel(), padding = call.integer(3);
    const Value index = reshape(index_values(call, indices), {rows});
    Value added = reshape(call.in(0), {rows, columns});
    if (padding >= 0) {
        const Value real = reshape(record(OPQ_OP_ne, {index, scalar(padding)}), {rows, 1});
        added = record(OPQ_OP_where, {real, added, scalar(0, added.dtype())});
    }
    const Value zeros = full(0, added.dtype(), {call.integer(2), columns});
    call.give(record(OPQ_OP_index_add, {zeros, index, added},
                     {attr_int(OPQ_ATTR_axis, 0), attr_text(OPQ_ATTR_key, call.name())}));
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "index_select", &index_select);
    adapt(library, "gather", &gather);
    adapt(library, "scatter_add", &scatter_add);
    adapt(library, "index_add", &index_add);
    adapt(library, "index.Tensor", &index_tensor);
    adapt(library, "_index_put_impl", &index_put);
    adapt(library, "cat", &cat);
    adapt(library, "embedding", &embedding);
    adapt(library, "embedding_dense_backward", &embedding_backward);
}

} // namespace

} // namespace opq
