// One boxed adapter serves every operator. It turns a dispatcher call into a `Call` in terms of the functional overload, lets a
// kernel compute values from it, and delivers these as the overload at hand wants them: as new tensors, written into `self`, or
// written into the `out` arguments. A kernel answers false (or throws Decline) when the core cannot do the call: then the same
// call becomes an extern node.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <functional>
#include <map>
#include <string>

#include "shim.h"

namespace opq
{

using c10::IValue;
using c10::OperatorHandle;
using Stack = torch::jit::Stack;

struct Result {
    Value value; // as it lies in memory; none: an undefined tensor
    at::ScalarType dtype;
    Order order;
};

// A call of a functional overload. Arguments are numbered as in its schema.
class Call
{
  public:
    Call(const OperatorHandle &functional, IValue *arguments, size_t argument_count, opq_op row_op)
        : op(functional), args(arguments), count(argument_count), row(row_op)
    {
    }
    const OperatorHandle &op;
    IValue *const args;
    const size_t count;
    const opq_op row;      // of the table row, for kernels that serve several
    bool in_place = false; // argument 0 is to become the result; no result: the kernel has written it itself
    std::optional<at::ScalarType> into; // the dtype of the tensor that is written; none: a new one
    c10::SmallVector<Result, 3> results;
    std::string unproven; // see prove()

    const char *name() const { return op.operator_name().name.c_str(); }
    const Tensor &tensor(size_t i) const { return args[i].toTensor(); }
    bool none(size_t i) const { return args[i].isNone() || (args[i].isTensor() && !args[i].toTensor().defined()); }
    bool flag(size_t i) const { return args[i].toBool(); }
    int64_t integer(size_t i) const { return args[i].toInt(); }
    double real(size_t i) const { return args[i].toScalar().toDouble(); }
    at::Scalar scalar(size_t i) const { return args[i].toScalar(); }
    Dims dims(size_t i) const;                           // a list of integers, or one integer; none: empty
    std::optional<at::ScalarType> dtype(size_t i) const; // of a `dtype` argument
    std::optional<at::ScalarType> asked(size_t i) const; // that one, else that of what is written into
    void expect_into(at::ScalarType dtype) const;        // raises in PyTorch's words where another one is written into
    // The value of a tensor on this device that the core can compute with; raises for other devices, declines for raw dtypes.
    Value in(size_t i) const { return in(tensor(i)); }
    Value in(const Tensor &tensor) const;
    // As in(), but 0-d CPU tensors are read now.
    Value operand(size_t i) const;

    void give(Value value) { give(std::move(value), torch_dtype(value.dtype())); }
    void give(Value value, at::ScalarType dtype, Order order = {})
    {
        results.push_back({std::move(value), dtype, std::move(order)});
    }
    void give_none() { results.push_back({Value{}, at::ScalarType::Undefined, Order{}}); }
};

using Kernel = bool (*)(Call &);

enum class Form { functional, inplace, out };

// The functional overload behind an operator: itself, or the one with the same arguments that `name_` and `.out` mutate into.
struct Target {
    OperatorHandle functional;
    Form form;
};
std::optional<Target> functional_of(const OperatorHandle &op);

// Registers `kernel` for the functional overload ("add.Tensor") and for its in-place and out forms. A base name without the
// functional overload ("fill_") registers what exists.
void adapt(torch::Library &library, const char *overload, Kernel kernel, opq_op row = OPQ_OP_extern);
// The adapter of an operator, or of its in-place form, on a stack: for hot.cpp, whose unboxed kernels stand in its place.
using BoxedCall = std::function<void(Stack *stack)>;
BoxedCall boxed(const char *name, const char *overload, Kernel kernel, opq_op row);
BoxedCall boxed_inplace(const char *functional_name, const char *overload, Kernel kernel, opq_op row);
bool is_hot(const std::string &overload);
Kernel pointwise_kernel(opq_op row);
bool mm(Call &call); // and bmm
bool mv(Call &call);
bool dot(Call &call);
// The product of matrices, or batches of them, by the rule that opq_record_product has for it.
Value matmul(const Value &a, const Value &b, bool transpose_a = false, bool transpose_b = false, bool rounded = false);
// The product of a matrix, a batch of them or a vector with another one, of these ranks. Undefined: it is not that simple, nothing has
// happened.
Tensor plain_product(const Tensor &a, const Tensor &b, int64_t rank_a, int64_t rank_b);
// The functional overload alone.
void adapt_functional(torch::Library &library, const char *overload, Kernel kernel, opq_op row = OPQ_OP_extern);
// Structured operators without a kernel of ours become extern nodes directly. Called once all kernels are registered.
void register_structured();

// Gives the results of `call` to the caller of `op`: replaces the arguments on the stack.
void deliver(const OperatorHandle &op, Form form, Call &call, Stack *stack);
void write_result(const Tensor &tensor, const Result &result);

// An operand of the short way: a tensor, or a value.
struct Plain {
    const Tensor *tensor = nullptr;
    opq_value *value = nullptr;
    Plain(const Tensor &borrowed) : tensor(&borrowed) {}    // NOLINT: implicit on purpose
    Plain(const Value &borrowed) : value(borrowed.get()) {} // NOLINT
};
constexpr size_t PLAIN_MAX = 8;
// The short way of an elementwise row over contiguous tensors of one floating dtype and shape, and numbers: no promotion, no broadcast,
// no view. Most calls of a model's inner loops are that. Undefined: it is not that simple, nothing has happened.
Tensor plain_result(opq_op row, c10::ArrayRef<Plain> operands);
// The same, into the first tensor. False: nothing has happened.
bool plain_write(opq_op row, c10::ArrayRef<Plain> operands);
// tensor + other * alpha, or tensor - other * alpha, as one node with the bits of two.
bool write_scaled(opq_op row, const Tensor &tensor, const Tensor &other, const Value &alpha);
opq_op lerp_row(const at::Scalar &weight);
// A number as an operand beside tensors of this dtype. No value: it is not that simple.
Value plain_number(const at::Scalar &number, at::ScalarType dtype);
Value plain_number(double number, at::ScalarType dtype);

// ---- helpers of kernels
// What argument 0, a tensor, and argument 1, a tensor or a number, promote to.
at::ScalarType common_type(const Call &call);
// A row whose operands are the call's tensors and scalars in schema order.
bool pointwise(Call &call);
// CPU kernels compute f16 and bf16 in f32 and take numbers as such. Where an operand is a number (no tensor: the scalar) that the
// dtype does not hold, or a tensor without dimensions of another dtype, the operands become f32, and the result is to be cast to the
// dtype returned. OPQ_f32: nothing changed.
opq_dtype widen(opq_op row, c10::ArrayRef<const Tensor *> tensors, c10::ArrayRef<at::Scalar> scalars,
                c10::SmallVector<Value, 6> &values);
// Is the number an f16, or bf16? Of a tensor that wraps one.
bool holds(at::ScalarType dtype, const Tensor &number);
bool holds(at::ScalarType dtype, double number);
// A tensor as an elementwise operator reads it, and the order in which its result lies in memory.
struct InMemory {
    Value value;
    Order order;
};
InMemory in_memory(const Call &call, size_t i);
// Operands of an elementwise operator: all in the memory order of the result, which is TensorIterator's. Where there is no tensor
// (NULL) the number stands, as a weak scalar; 0-d CPU tensors are read now.
struct Aligned {
    c10::SmallVector<Value, 6> values;
    Order order;
    const Value &operator[](size_t i) const { return values[i]; }
};
Aligned aligned(c10::ArrayRef<const Tensor *> tensors, c10::ArrayRef<at::Scalar> scalars);
// Of these arguments of a call: tensors and numbers. Declines as Call::in() does.
Aligned aligned(const Call &call, std::initializer_list<size_t> arguments);
// Does every tensor argument that is given have this dtype?
bool same_dtype(std::initializer_list<const Tensor *> tensors);
inline int64_t normal_axis(int64_t axis, int64_t rank) { return at::maybe_wrap_dim(axis, rank); }
// Reduced axes: ascending, none given means all.
Dims normal_axes(IntArrayRef axes, int64_t rank);

// ---- accept.cpp
// Does the CPU kernel of `op`, of whatever form, take arguments like these, of which there are `total`? False: it has to run now, on
// the arguments themselves, and if it takes them accept_kind(out_kind).
bool accepted(const OperatorHandle &op, const Call &call, size_t total, uint64_t &out_kind);
void accept_kind(uint64_t kind);

// ---- extern.cpp
// Records the call as an extern node; false if it has to run now (shape depends on data, generator, no meta kernel).
bool extern_record(Call &call);
// Calls of this kind (Call::unproven, set where extern_record() gave up) are known to be accepted by the CPU kernel: it just did.
void prove(const std::string &kind);
// One call of a named operator through its CPU kernel, from inside a kernel: an extern node, or if it cannot wait done now.
c10::SmallVector<Result, 3> extern_results(const char *name, const char *overload, std::vector<IValue> arguments);
// The tensor's elements in another dtype, in the given memory order; any pair of dtypes.
Value convert(const Tensor &tensor, at::ScalarType dtype, const Order &order);
// Turns a Decline inside a kernel that has no other way into the exception that the user sees.
template <class Body> decltype(auto) guarded(Body body)
{
    try {
        return body();
    } catch (const Decline &why) {
        raise(why.status);
    }
}
// What unboxed and boxed kernels are registered as: no Decline leaves them.
template <auto kernel> struct Guarded;
template <class R, class... Args, R (*kernel)(Args...)> struct Guarded<kernel> {
    static R call(Args... args)
    {
        return guarded([&]() -> R { return kernel(std::forward<Args>(args)...); });
    }
};
#define OPQ_KERNEL(function) TORCH_FN((::opq::Guarded<&function>::call))
template <auto kernel> torch::CppFunction boxed_kernel()
{
    return torch::CppFunction::makeFromBoxedFunction<&Guarded<kernel>::call>();
}
// Is it a list of tensors, some of which may be None? TorchScript's have types that IValue does not know as such.
bool is_list_of_tensors(const IValue &value);
// The tensors as the argument's type has them: Tensor[] or Tensor?[].
IValue list_for(const c10::Argument &argument, const std::vector<std::optional<Tensor>> &tensors);
// Runs the operator on CPU now and replaces the arguments on the stack by its results.
void extern_now(const OperatorHandle &op, Stack *stack);
// The same, uncounted, for what has no native form on any device.
void run_on_cpu(const OperatorHandle &op, Stack *stack);
// Does the call write a tensor that has one place for several elements, or whose memory it also reads? Elementwise, in other places
// only. CPU kernels refuse most of these and know what the others mean.
bool writes_what_it_reads(const OperatorHandle &op, const IValue *args, bool elementwise);
std::map<std::string, int64_t> fallback_counts();
void reset_fallback_counts();
// The backend fallback: everything that has no kernel of its own.
void fallback(const OperatorHandle &op, Stack *stack);
opq_status run_extern(void *self, void *payload, const void *const *operands, void *const *results) noexcept;
void retain_extern(void *self, void *payload) noexcept;
void release_extern(void *self, void *payload) noexcept;

} // namespace opq
