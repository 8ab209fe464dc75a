// Contractions. A transposed operand is read as it lies in memory, and the node says that it is transposed.
#include "adapter.h"

#include "below.h"
#include "movement.h"

namespace opq
{

namespace
{

struct Matrix {
    Value value;
    bool transposed;
};

// The last two dims lie the other way round in memory, all others in order.
bool lies_transposed(const Tensor &tensor)
{
    const int64_t rank = tensor.dim();
    int64_t dense = 1;
    for (int64_t k = rank - 1; k >= 0; --k) {
        const int64_t dim = k < rank - 2 ? k : 2 * rank - 3 - k;
        if (tensor.size(dim) != 1 && tensor.stride(dim) != dense)
            return false;
        dense *= tensor.size(dim);
    }
    return true;
}

Matrix matrix(const char *name, const Tensor &tensor)
{
    check_device(tensor, name);
    if (is_raw(tensor))
        decline(opq_fail(OPQ_UNSUPPORTED, "%s of this dtype", name));
    const int64_t rank = tensor.dim();
    if (rank < 2 || tensor.is_contiguous() || tensor.is_neg())
        return {read(tensor), false};
    if (!lies_transposed(tensor))
        return {read(tensor), false};
    return {read_ordered(tensor, static_cast<int>(rank), transposed(rank)), true};
}

Matrix matrix(const Call &call, const Tensor &tensor) { return matrix(call.name(), tensor); }

// Of two int8 it is a sum in i32.
// torch.set_float32_matmul_precision("medium"): products of f32 may be of what is rounded to bf16.
bool may_round(const Value &a)
{
    return a.dtype() == OPQ_f32 && at::globalContext().float32Precision(
                                       at::Float32Backend::MKLDNN, at::Float32Op::MATMUL) == at::Float32Precision::BF16;
}

Value summed_product(const Matrix &a, const Matrix &b)
{
    return matmul(a.value, b.value, a.transposed, b.transposed, may_round(a.value));
}

Value contract(const Matrix &a, const Matrix &b)
{
    if (a.value.dtype() == OPQ_i8 && b.value.dtype() == OPQ_i8)
        decline(opq_fail(OPQ_UNSUPPORTED, "a product of int8 that is int8"));
    return summed_product(a, b);
}

// Of matrices, batches of them, and vectors: one on the left is a row, on the right a column, which the result does not have.
Value product(const char *name, const Tensor &a, const Tensor &b)
{
    Matrix left = matrix(name, a), right = matrix(name, b);
    if (a.dim() == 1)
        left.value = reshape(left.value, {1, a.size(0)});
    if (b.dim() == 1)
        right.value = reshape(right.value, {b.size(0), 1});
    const Value made = contract(left, right);
    return b.dim() > 1 ? made : reshape(made, a.sizes().slice(0, static_cast<size_t>(a.dim()) - 1));
}

// The operands' ranks and dtypes as the operator demands them; else PyTorch words the error.
void require(bool fits, const Call &call)
{
    if (!fits)
        decline(opq_fail(OPQ_INVALID, "%s: operands do not fit", call.name()));
}

bool fits_matrices(const Tensor &a, const Tensor &b, int64_t rank)
{
    return a.dim() == rank && b.dim() == rank && a.scalar_type() == b.scalar_type() && a.size(-1) == b.size(-2) &&
           (rank == 2 || a.size(0) == b.size(0));
}

// beta * self + alpha * product; a factor of 1 is no factor, beta 0 ignores self.
Value combine(const Call &call, size_t self, Value product, const at::Scalar &beta, const at::Scalar &alpha)
{
    const opq_dtype dtype = product.dtype();
    require(!alpha.isComplex() && !beta.isComplex() &&
                (is_float(dtype) || (alpha.isIntegral(true) && beta.isIntegral(true))),
            call);
    const opq_dtype compute = alpha.toDouble() == 1.0 && beta.toDouble() == 1.0 ? dtype : computing(dtype);
    product = cast(product, compute);
    if (alpha.toDouble() != 1.0)
        product = record(OPQ_OP_mul, {product, scalar(alpha, compute)});
    if (beta.toDouble() == 0.0)
        return cast(product, dtype);
    require(core_dtype(call.tensor(self).scalar_type()) == dtype, call);
    Value addend = cast(call.in(self), compute);
    if (beta.toDouble() != 1.0)
        addend = record(OPQ_OP_mul, {addend, scalar(beta, compute)});
    const Dims shape = shape_of(product);
    const Value sum = record(OPQ_OP_add, {addend, product});
    require(shape_of(sum) == shape, call);
    return cast(sum, dtype);
}

} // namespace

// mm and bmm
bool mm(Call &call)
{
    require(fits_matrices(call.tensor(0), call.tensor(1), call.row == OPQ_OP_matmul ? 2 : 3), call);
    call.give(product(call.name(), call.tensor(0), call.tensor(1)));
    return true;
}

Value matmul(const Value &a, const Value &b, bool transpose_a, bool transpose_b, bool rounded)
{
    opq_value *out = nullptr;
    accept(opq_record_product(context(), a.get(), b.get(), transpose_a, transpose_b, rounded, &out));
    return Value::take(out);
}

Tensor plain_product(const Tensor &a, const Tensor &b, int64_t rank_a, int64_t rank_b)
{
    const auto plain = [](const Tensor &tensor, int64_t rank) {
        return on_device(tensor) && tensor.dim() == rank && !tensor.is_neg() && !tensor.is_conj();
    };
    if (!plain(a, rank_a) || !plain(b, rank_b) || a.scalar_type() != b.scalar_type() ||
        !at::isFloatingType(a.scalar_type()) || is_raw(a) || a.size(-1) != b.size(rank_b == 1 ? 0 : -2) ||
        (rank_a == 3 && a.size(0) != b.size(0)))
        return {};
    note_line();
    try {
        return wrap(product("mm", a, b));
    } catch (const Decline &) {
        return {};
    }
}

namespace
{

// addmm, baddbmm: (self, a, b, beta, alpha)
bool addmm(Call &call)
{
    require(fits_matrices(call.tensor(1), call.tensor(2), call.row == OPQ_OP_matmul ? 2 : 3), call);
    call.give(combine(call, 0, product(call.name(), call.tensor(1), call.tensor(2)), call.scalar(3), call.scalar(4)));
    return true;
}

// addmv(self, mat, vec, beta, alpha)
bool addmv(Call &call)
{
    const Tensor &a = call.tensor(1), &v = call.tensor(2);
    require(a.dim() == 2 && v.dim() == 1 && a.size(1) == v.size(0) && a.scalar_type() == v.scalar_type(), call);
    call.give(combine(call, 0, product(call.name(), a, v), call.scalar(3), call.scalar(4)));
    return true;
}

} // namespace

bool mv(Call &call)
{
    const Tensor &a = call.tensor(0), &v = call.tensor(1);
    require(a.dim() == 2 && v.dim() == 1 && a.size(1) == v.size(0) && a.scalar_type() == v.scalar_type(), call);
    call.give(product(call.name(), a, v));
    return true;
}

bool dot(Call &call)
{
    const Tensor &a = call.tensor(0), &b = call.tensor(1);
    require(a.dim() == 1 && b.dim() == 1 && a.size(0) == b.size(0) && a.scalar_type() == b.scalar_type(), call);
    call.give(product(call.name(), a, b));
    return true;
}

namespace
{

// addbmm(self, a, b, beta, alpha): the sum over the batch is one longer contraction
bool addbmm(Call &call)
{
    const Tensor &a = call.tensor(1), &b = call.tensor(2);
    require(fits_matrices(a, b, 3), call);
    const int64_t batch = a.size(0), m = a.size(1), k = a.size(2), n = b.size(2);
    const Value wide = reshape(permute(call.in(1), {1, 0, 2}), {m, batch * k});
    const Value tall = reshape(call.in(2), {batch * k, n});
    call.give(combine(call, 0, contract({wide, false}, {tall, false}), call.scalar(3), call.scalar(4)));
    return true;
}

// ---- linear as one node, for which autograd knows linear_backward

// [.., columns] as [rows, columns]
Value flat(const Tensor &tensor)
{
    const int64_t columns = tensor.size(-1),
                  rows = c10::multiply_integers(tensor.sizes().slice(0, static_cast<size_t>(tensor.dim()) - 1));
    const Value value = read(tensor);
    return tensor.dim() == 2 ? value : reshape(value, {rows, columns});
}

bool linear(Call &call)
{
    const Tensor &x = call.tensor(0), &w = call.tensor(1);
    check_device(x, "linear");
    check_device(w, "linear");
    require(x.dim() >= 1 && w.dim() == 2 && x.size(-1) == w.size(1) && x.scalar_type() == w.scalar_type(), call);
    if (is_raw(x))
        return false;
    const Matrix weight = matrix(call, w);
    Value product = contract({flat(x), false}, {weight.value, !weight.transposed});
    if (x.dim() != 2) {
        Dims shape(x.sizes().begin(), x.sizes().end() - 1);
        shape.push_back(w.size(0));
        product = reshape(product, shape);
    }
    if (!call.none(2)) {
        require(call.tensor(2).scalar_type() == x.scalar_type() && call.tensor(2).dim() <= 1, call);
        product = record(OPQ_OP_add, {product, call.in(2)});
    }
    call.give(std::move(product));
    return true;
}

// ---- i8

// _int_mm(a, b): sums of i32
bool int_mm(Call &call)
{
    const Tensor &a = call.tensor(0), &b = call.tensor(1);
    require(fits_matrices(a, b, 2) && a.scalar_type() == at::kChar, call);
    call.give(summed_product(matrix(call, a), matrix(call, b)));
    return true;
}

// In the words of the CPU kernel, which is not asked: it reads beyond rows whose length it has no code for.
void check_int8pack(const Tensor &x, const Tensor &w, const Tensor &scales)
{
    const char *const name = "_weight_int8pack_mm_cpu : ";
    const int64_t k = x.size(1), n = w.size(0);
    TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16, name,
                "expect A to be either 32-bit or 16-bit float tensor.");
    TORCH_CHECK(x.stride(-1) == 1, name, "A must be contiguous on the last dimension.");
    TORCH_CHECK(x.dim() == 2, name, "expect A to be 2D tensor.");
    TORCH_CHECK(w.scalar_type() == at::kChar, name, "expect B to be int8 tensor.");
    TORCH_CHECK(w.is_contiguous(), name, "expect B to be contiguous.");
    TORCH_CHECK(w.size(1) == k && w.dim() == 2, name, "expect B.size(1) == ", k);
    TORCH_CHECK(scales.dim() == 1 && scales.size(0) == n, name, "expect scales to be 1d tensor with size ", n);
    TORCH_CHECK(scales.scalar_type() == x.scalar_type(), "expected scalar type ", x.scalar_type(), " but found ",
                scales.scalar_type());
}

// The product's kernel widens the weight.
Tensor int8pack_mm(const Tensor &x, const Tensor &w, const Tensor &scales)
{
    note_line();
    for (const Tensor *const tensor : {&x, &w, &scales})
        check_device(*tensor, "_weight_int8pack_mm");
    check_int8pack(x, w, scales);
    return guarded([&] {
        const Value product = contract(matrix("_weight_int8pack_mm", x), {read(w), true});
        return wrap(record(OPQ_OP_mul, {product, read(scales)}));
    });
}

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

// Complex operands and too many dims: as other operators, which have CPU kernels.
Gradients linear_backward_parts(const Tensor &x, const Tensor &grad, const Tensor &w, std::array<bool, 3> mask)
{
    const Below below;
    const Tensor rows = grad.reshape({-1, grad.size(-1)}), inputs = x.reshape({-1, x.size(-1)});
    return {mask[0] ? at::mm(rows, w.conj().resolve_conj()).view(x.sizes()) : Tensor(),
            mask[1] ? at::mm(rows.t(), inputs.conj().resolve_conj()) : Tensor(), mask[2] ? rows.sum(0) : Tensor()};
}

Gradients linear_backward(const Tensor &x, const Tensor &grad, const Tensor &w, std::array<bool, 3> mask)
{
    note_line();
    for (const Tensor *tensor : {&x, &grad, &w})
        check_device(*tensor, "linear_backward");
    if (is_raw(x) || is_wide(x))
        return linear_backward_parts(x, grad, w, mask);
    return guarded([&]() -> Gradients {
        const Value g = flat(grad), weight = read(w);
        Gradients result;
        if (mask[0])
            std::get<0>(result) = wrap(reshape(contract({g, false}, {weight, false}), x.sizes()));
        if (mask[1])
            std::get<1>(result) = wrap(contract({g, true}, {flat(x), false}));
        if (mask[2])
            std::get<2>(result) = wrap(reduce(OPQ_OP_sum, {g}, {0}, false));
        return result;
    });
}

// ---- _grouped_mm: groups of rows, of columns, or of what is summed over, that end at `offs`, known when it runs

Value grouped(const Matrix &a, const Matrix &b, const Value &ends)
{
    std::vector<opq_attr> attrs{attr_text(OPQ_ATTR_key, "aten::_grouped_mm")};
    if (a.transposed)
        attrs.push_back(attr_int(OPQ_ATTR_transpose_a, 1));
    if (b.transposed)
        attrs.push_back(attr_int(OPQ_ATTR_transpose_b, 1));
    return record(OPQ_OP_grouped_matmul, {a.value, b.value, ends}, attrs);
}

void check_grouped(const Tensor &a, const Tensor &b, const std::optional<Tensor> &offs)
{
    for (const auto &[name, tensor] : {std::pair("mat_a", &a), std::pair("mat_b", &b)})
        TORCH_CHECK(tensor->scalar_type() == at::kFloat || tensor->scalar_type() == at::kHalf ||
                        tensor->scalar_type() == at::kBFloat16,
                    "Expected ", name, " to be Float32, BFloat16 or Float16 matrix, got ", tensor->scalar_type());
    TORCH_CHECK(a.scalar_type() == b.scalar_type(), "Expected mat_a and mat_b to have the same dtype, got ",
                a.scalar_type(), " and ", b.scalar_type());
    TORCH_CHECK(a.dim() == 2 || a.dim() == 3, "mat_a has to be 2 or 3d");
    TORCH_CHECK(b.dim() == 2 || b.dim() == 3, "mat_b has to be 2 or 3d");
    const bool flat = a.dim() == 2 || b.dim() == 2;
    TORCH_CHECK(offs.has_value() == flat,
                "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d");
    TORCH_CHECK(a.size(-1) == b.size(-2), "contraction dimension of mat_a and mat_b must match");
    if (!flat)
        TORCH_CHECK(a.size(0) == b.size(0), "batched dimension has to match");
    if (!offs)
        return;
    check_device(*offs, "_grouped_mm");
    TORCH_CHECK(offs->dim() == 1, "offs has to be 1D");
    TORCH_CHECK(offs->scalar_type() == at::kInt, "Offsets have to be int32");
    for (const Tensor *const batch : {&a, &b})
        TORCH_CHECK(batch->dim() == 2 || batch->size(0) == offs->size(0), "matrix batch sizes have to match");
}

Tensor grouped_mm(const Tensor &a, const Tensor &b, const std::optional<Tensor> &offs,
                  const std::optional<Tensor> &bias, std::optional<at::ScalarType> out_dtype)
{
    note_line();
    check_grouped(a, b, offs);
    TORCH_CHECK(!bias || !bias->defined(), "Bias not supported yet");
    TORCH_CHECK(out_dtype.value_or(a.scalar_type()) == a.scalar_type(),
                "Grouped gemm output dtype must match `mat_a` dtype");
    return guarded([&] {
        const Matrix left = matrix("_grouped_mm", a), right = matrix("_grouped_mm", b);
        if (!offs)
            return wrap(contract(left, right));
        const Value ends = cast(read(*offs), OPQ_i64);
        if (a.dim() == 2)
            return wrap(grouped(left, right, ends));
        const Matrix turned_left{right.value, !right.transposed}, turned_right{left.value, !left.transposed};
        return wrap(permute(grouped(turned_left, turned_right, ends), {1, 0}));
    });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "mm", &mm, OPQ_OP_matmul);
    adapt(library, "bmm", &mm);
    adapt(library, "addmm", &addmm, OPQ_OP_matmul);
    adapt(library, "baddbmm", &addmm);
    adapt(library, "addmv", &addmv);
    adapt(library, "mv", &mv);
    adapt(library, "dot", &dot);
    adapt(library, "vdot", &dot);
    adapt(library, "addbmm", &addbmm);
    adapt(library, "linear", &linear);
    adapt(library, "_int_mm", &int_mm);
    library.impl("_weight_int8pack_mm", OPQ_KERNEL(int8pack_mm));
    library.impl("_grouped_mm", OPQ_KERNEL(grouped_mm));
    library.impl("linear_backward", OPQ_KERNEL(linear_backward));
}

} // namespace

} // namespace opq
