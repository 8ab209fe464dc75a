// What every file of this folder uses: the context, values as C++ objects, and the way between tensors and values.
//
// Failures of the core come in two kinds. `Decline` (the core has no such kernel, or finds the operands wrong) is thrown by
// the record functions and caught by the boxed adapter, which then takes the extern route: PyTorch itself words the error, or
// computes the result. Everything else is the PyTorch exception a user sees, thrown by raise().
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/stack.h>
#include <exception>
#include <initializer_list>
#include <optional>

#include "opaque/record.h"
#include "opaque/tensor_impl.h"

namespace opq
{

using at::IntArrayRef;
using at::Tensor;
using Dims = c10::SmallVector<int64_t, 6>;

// The one default context, made on first use and never destroyed: tensors may outlive everything else.
opq_ctx *context();
bool context_exists();

// The PyTorch exception for the calling thread's last failure.
[[noreturn]] void raise(opq_status status);
inline void check(opq_status status)
{
    if (C10_UNLIKELY(status != OPQ_OK))
        raise(status);
}

// Not only for the adapter to catch: whoever calls PyTorch's operators from Python catches what derives from std::exception, and
// nothing else.
struct Decline final : std::exception {
    explicit Decline(opq_status why) : status(why) {}
    const char *what() const noexcept override { return opq_error(); }
    opq_status status;
};
[[noreturn]] void decline(opq_status status);
inline void accept(opq_status status)
{
    if (C10_UNLIKELY(status != OPQ_OK))
        decline(status);
}

// A counted reference to a value of the pending graph.
class Value
{
  public:
    Value() = default;
    static Value take(opq_value *value)
    {
        Value result;
        result.value_ = value;
        return result;
    }
    Value(const Value &other) : value_(other.value_)
    {
        if (value_)
            opq_value_retain(value_);
    }
    Value(Value &&other) noexcept : value_(other.value_) { other.value_ = nullptr; }
    Value &operator=(Value other) noexcept
    {
        std::swap(value_, other.value_);
        return *this;
    }
    ~Value()
    {
        if (value_)
            opq_value_release(value_);
    }
    explicit operator bool() const { return value_ != nullptr; }
    opq_value *get() const { return value_; }
    opq_type type() const { return opq_value_type(value_); }
    opq_dtype dtype() const { return static_cast<opq_dtype>(type().dtype); }
    int rank() const { return type().rank; }

  private:
    opq_value *value_ = nullptr;
};

struct Operand { // borrows
    opq_value *value;
    Operand(const Value &v) : value(v.get()) {} // NOLINT: implicit on purpose
};
using Operands = std::initializer_list<Operand>;
using Attrs = c10::ArrayRef<opq_attr>;

// ---- dtypes
opq_dtype core_dtype(at::ScalarType dtype);  // RAW rows for what is only moved
at::ScalarType torch_dtype(opq_dtype dtype); // of a computing row
inline bool is_raw(opq_dtype dtype) { return opq_dtype_kind_of(dtype) == OPQ_KIND_RAW; }
inline bool is_raw(const Tensor &tensor) { return is_raw(core_dtype(tensor.scalar_type())); }
inline bool is_float(opq_dtype dtype) { return opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT; }
// What the CPU kernels compute in: float for halves.
inline opq_dtype computing(opq_dtype dtype) { return dtype == OPQ_f16 || dtype == OPQ_bf16 ? OPQ_f32 : dtype; }

// ---- recording
opq_attr attr_int(opq_attr_key key, int64_t value);
opq_attr attr_text(opq_attr_key key, const char *text);
opq_attr attr_ints(opq_attr_key key, IntArrayRef values); // borrows
Value record(opq_op op, Operands operands, Attrs attrs = {});
Value record_list(opq_op op, c10::ArrayRef<Value> operands, Attrs attrs = {});
Value record_typed(opq_op op, opq_dtype dtype, IntArrayRef size, Operands operands, Attrs attrs = {});
inline Value plus(const Value &a, const Value &b) { return record(OPQ_OP_add, {a, b}); }
inline Value times(const Value &a, const Value &b) { return record(OPQ_OP_mul, {a, b}); }
Value reduce(opq_op op, Operands operands, IntArrayRef axes, bool keepdim); // axes as normal_axes() gives them
Value cast(const Value &value, opq_dtype dtype);
Value reshape(const Value &value, IntArrayRef size);
Value expand(const Value &value, IntArrayRef size);
Value permute(const Value &value, IntArrayRef dims);
// Scalars are run-time slots. Weak ones are Python numbers to type promotion.
Value number(double value, opq_dtype dtype);
Value number_i64(int64_t value);
Value scalar(const at::Scalar &value);                  // weak
Value scalar(const at::Scalar &value, opq_dtype dtype); // of this dtype; raises as check_fits()
// Operators that take a number as an operand let it wrap; those that take it as a parameter refuse what the dtype cannot hold,
// except for negative numbers in unsigned types. The words are PyTorch's.
void check_fits(const at::Scalar &value, opq_dtype dtype);
// Python's number of a captured function, which each call has anew; nullopt: none, or an integer.
std::optional<Value> traced_number(const at::Scalar &value, opq_dtype dtype);
Value scalar_of(const Tensor &cpu_tensor); // a 0-d CPU tensor, read now
Value full(const at::Scalar &value, opq_dtype dtype, IntArrayRef size);
Dims shape_of(const Value &value);

// ---- geometry
// A memory order: position i of memory is logical dimension perm[i]. Empty: row-major.
struct Order {
    Dims perm;
    bool plain() const { return perm.empty(); }
};
// The order in which a non-overlapping dense window lies in memory; none if it is not dense.
std::optional<Order> dense_order(IntArrayRef sizes, IntArrayRef strides);
// The order in which PyTorch's pointwise operators lay out their result.
Order result_order(c10::ArrayRef<const Tensor *> operands, IntArrayRef shape);
Order inverse(const Order &order);                           // position i is where memory has logical dim i
Value logical(const Value &value, const Order &order);       // of a value as it lies in memory
Dims ordered(IntArrayRef logical, const Order &order);       // sizes as they lie in memory
Dims ordered_strides(IntArrayRef sizes, const Order &order); // logical strides of a dense tensor in this order

bool on_device(const Tensor &tensor);
// Is there a place in memory that stands for two elements?
bool overlaps_itself(const Tensor &tensor);
// Do the tensors share some of their memory, but not as the same dense window?
bool overlaps_partly(const Tensor &a, const Tensor &b);
// Do two tensors of this device reach into each other's memory, or might they?
bool shares_memory(const Tensor &a, const Tensor &b);
// More dims than a value of the core has. The cell of such a tensor holds its elements all the same, as values of fewer dims; what
// computes with it is PyTorch's CPU kernel, run now.
inline bool is_wide(const Tensor &tensor) { return tensor.dim() > OPQ_RANK_MAX; }
// A tensor's value, row-major in its logical shape; negation bits are applied. Conjugated tensors decline.
Value read(const Tensor &tensor);
Value read_raw(const Tensor &tensor); // conj and neg bits left alone; of a wide tensor the memory it spans
// The same elements with shape `shape` (broadcast rules) in this memory order.
Value read_ordered(const Tensor &tensor, int rank, const Order &order);
Value read_dense(const Tensor &tensor, const Order &order); // the order is the tensor's own
void write(const Tensor &tensor, const Value &value);       // same shape; casts to the tensor's dtype
Tensor wrap(const Value &value, at::ScalarType dtype);
Tensor wrap(const Value &value, at::ScalarType dtype, const Order &order); // value as it lies in memory
Tensor wrap(const Value &value);
// A tensor with the elements of a CPU tensor, copied now, in this memory order.
Tensor wrap_cpu(const Tensor &cpu_tensor, const Order &order);

// [[noreturn]] in effect: the message PyTorch gives for operands on two devices.
void check_device(const Tensor &tensor, const char *op);
// An argument that names a device names the one there is.
void check_index(c10::Device where);
bool resize_output(const Tensor &out, IntArrayRef sizes);
void check_castable(at::ScalarType from, at::ScalarType to);

// ---- running
void materialize(c10::ArrayRef<Value> values, opq_reason reason);
void synchronize(opq_reason reason);
std::string line_here(); // "train.py:41", of this thread
// Told before each run that Python or PyTorch asks for: the values asked for, why, and the line of Python. nullptr: nobody.
using run_watcher = void (*)(c10::ArrayRef<Value> asked, opq_reason reason, const std::string &line);
void watch_runs(run_watcher watch);
// The value's memory as a CPU tensor; the value must be computed. Zero copy: not to be written to.
Tensor cpu_alias(const Value &value, at::ScalarType dtype, IntArrayRef sizes, IntArrayRef strides);
// A CPU copy-free view of a tensor's contents now (runs what is pending), conj and neg bits carried along.
Tensor cpu_now(const Tensor &tensor, opq_reason reason);
// A value that holds a CPU tensor's elements, copied now, row-major of `order`. With too many dims it is flat.
Value upload(const Tensor &cpu_tensor, const Order &order);
// Notes the source line for what this thread records next.
void note_line();
// Of a view of `base`, which records nothing, but its gradient does.
void note_view(const Tensor &base);
// Returns once the device's autograd thread has dropped the backward passes before this call. It drops the last of them after
// backward() has returned, and with it a Python object: that takes the GIL, which ends the process if Python is finalizing by then.
// A pass of our own, which holds no Python object, has to wait its turn behind it.
void finish_backward();

} // namespace opq
