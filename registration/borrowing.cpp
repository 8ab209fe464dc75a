// Tensors of the CPU as those of the device, for programs that torch.compile made: their memory is borrowed while a program runs, what it
// writes lies there when it has run, and its results are tensors of the CPU.
#include <unordered_map>
#include <unordered_set>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <torch/csrc/autograd/python_variable.h>

#include "fallbacks.h"
#include "lending.h"
#include "opaque/capture.h"
#include "python.h"

namespace opq
{

namespace
{

struct Borrowed {
    size_t argument;
    Tensor cpu, ours;
    void *data;
};

size_t bytes_of(const Tensor &tensor)
{
    return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
}

bool is_plain_on_cpu(const Tensor &tensor)
{
    return tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor._is_zerotensor();
}

// On the same memory, which it keeps.
Tensor borrow(const Tensor &cpu)
{
    const size_t bytes = bytes_of(cpu);
    if (bytes == 0)
        return at::empty_strided(cpu.sizes(), cpu.strides(), cpu.options().device(c10::kPrivateUse1));
    auto *const storage =
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(cpu.storage().unsafeGetStorageImpl()).release();
    const auto drop = [](void *arg) {
        c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl *>(arg));
    };
    opq_buffer *buffer = nullptr;
    const opq_status status = opq_buffer_adopt(context(), cpu.data_ptr(), bytes, drop, storage, &buffer);
    if (status != OPQ_OK)
        drop(storage);
    check(status);
    opq_buffer_borrow(buffer);
    const opq_dtype dtype = core_dtype(cpu.scalar_type());
    const Dims row{static_cast<int64_t>(bytes) / opq_dtype_bytes(dtype)};
    const IntArrayRef shape = cpu.is_contiguous() && !is_wide(cpu) ? cpu.sizes() : IntArrayRef(row);
    const opq_type type = opq_type_make(dtype, static_cast<int>(shape.size()), shape.data());
    opq_value *value = nullptr;
    const opq_status made = opq_value_leaf(context(), &type, buffer, &value);
    opq_buffer_release(buffer);
    check(made);
    const Value owner = Value::take(value);
    opq_cell *cell = nullptr;
    check(opq_cell_from_value(context(), value, &cell));
    Tensor ours = make_tensor(Cell::take(cell), cpu.dtype(), cpu.sizes(), cpu.strides());
    ours._set_conj(cpu.is_conj());
    ours._set_neg(cpu.is_neg());
    return ours;
}

// The arguments of one call of a program.
class Loan
{
  public:
    // Arguments as the program gets them; those in `left` stay what they are, as does what is no tensor of the CPU.
    py::list take(const py::list &arguments, const std::vector<size_t> &left)
    {
        py::list given;
        size_t next = 0;
        for (size_t i = 0; i < arguments.size(); ++i) {
            PyObject *const object = PyList_GET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(i));
            const bool stays = next < left.size() && left[next] == i;
            next += stays ? 1 : 0;
            if (stays || !THPVariable_Check(object) || !is_plain_on_cpu(THPVariable_Unpack(object))) {
                given.append(py::handle(object));
                continue;
            }
            const Tensor &cpu = THPVariable_Unpack(object);
            borrowed_.push_back({i, cpu, borrow(cpu), cpu.data_ptr()});
            given.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(borrowed_.back().ours)));
        }
        return given;
    }

    // Results as the caller gets them, when all that was written is in the memory of the arguments `written`.
    py::list give(const py::sequence &results, const std::vector<size_t> &written)
    {
        compute(results, written);
        for (const Borrowed &one : borrowed_)
            cells_.emplace_back(impl_of(one.ours)->cell(), &one);
        std::sort(cells_.begin(), cells_.end());
        find_shared(results);
        py::list given;
        for (const py::handle one : results) {
            given.append(is_ours(one)
                             ? py::reinterpret_steal<py::object>(THPVariable_Wrap(result(THPVariable_Unpack(one.ptr()))))
                             : py::reinterpret_borrow<py::object>(one));
        }
        write(written); // results have a copy of what lay there
        cells_.clear();
        shared_.clear();
        borrowed_.clear();
        return given;
    }

  private:
    static bool is_ours(const py::handle &object)
    {
        return THPVariable_Check(object.ptr()) && on_device(THPVariable_Unpack(object.ptr()));
    }

    // Memory that several results are windows on.
    void find_shared(const py::sequence &results)
    {
        std::vector<opq_cell *> cells;
        for (const py::handle one : results)
            if (is_ours(one))
                cells.push_back(impl_of(THPVariable_Unpack(one.ptr()))->cell());
        std::sort(cells.begin(), cells.end());
        for (size_t i = 1; i < cells.size(); ++i)
            if (cells[i] == cells[i - 1])
                shared_.emplace(cells[i], Tensor());
    }

    static Value value_of(const Tensor &tensor) { return Value::take(opq_cell_value(impl_of(tensor)->cell())); }

    const Borrowed *find(size_t argument) const
    {
        const auto found = std::lower_bound(borrowed_.begin(), borrowed_.end(), argument,
                                            [](const Borrowed &one, size_t at) { return one.argument < at; });
        return found != borrowed_.end() && found->argument == argument ? &*found : nullptr;
    }

    // In one run what is pending of all.
    void compute(const py::sequence &results, const std::vector<size_t> &written) const
    {
        std::vector<Value> values;
        const auto add = [&values](const Tensor &tensor) {
            if (Value value = value_of(tensor))
                values.push_back(std::move(value));
        };
        for (const py::handle one : results)
            if (is_ours(one))
                add(THPVariable_Unpack(one.ptr()));
        for (const size_t argument : written)
            if (const Borrowed *const one = find(argument))
                add(one->ours);
        materialize(values, OPQ_REASON_capture);
    }

    // What a plan did not write where it belongs is copied there: first what lies in borrowed memory, which copies may write over.
    void write(const std::vector<size_t> &written) const
    {
        std::vector<std::pair<const Borrowed *, Value>> copies;
        std::vector<std::vector<char>> kept;
        for (const size_t argument : written) {
            const Borrowed *const one = find(argument);
            Value value = one ? value_of(one->ours) : Value();
            if (value && opq_buffer_data(opq_value_buffer(value.get())) != one->data)
                copies.emplace_back(one, std::move(value));
        }
        std::vector<const char *> sources;
        std::unordered_set<const void *> lent;
        for (const Borrowed &one : borrowed_)
            lent.insert(copies.empty() ? nullptr : one.data);
        kept.reserve(copies.size());
        for (const auto &[one, value] : copies) {
            const auto *const data = static_cast<const char *>(opq_buffer_data(opq_value_buffer(value.get())));
            const bool borrowed = lent.count(data) > 0;
            if (borrowed)
                kept.emplace_back(data, data + bytes_of(one->cpu));
            sources.push_back(borrowed ? kept.back().data() : data);
        }
        for (size_t i = 0; i < copies.size(); ++i)
            std::memcpy(copies[i].first->data, sources[i], bytes_of(copies[i].first->cpu));
    }

    Tensor result(const Tensor &tensor)
    {
        if (tensor.numel() == 0)
            return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
        const std::pair<const opq_cell *, const Borrowed *> key(impl_of(tensor)->cell(), nullptr);
        const auto found = std::lower_bound(cells_.begin(), cells_.end(), key);
        if (found != cells_.end() && found->first == key.first) {
            const Tensor &cpu = found->second->cpu;
            const int64_t offset = cpu.storage_offset() * cpu.itemsize() / tensor.itemsize() + tensor.storage_offset();
            if (cpu.scalar_type() == tensor.scalar_type() && cpu.is_conj() == tensor.is_conj() &&
                cpu.is_neg() == tensor.is_neg())
                return cpu.as_strided(tensor.sizes(), tensor.strides(), offset);
            return window(cpu.storage(), offset, tensor);
        }
        const auto shared = shared_.find(impl_of(tensor)->cell());
        if (shared == shared_.end())
            return cpu_window(tensor, lend_memory(tensor, OPQ_REASON_capture));
        if (!shared->second.defined())
            shared->second = whole(tensor);
        return window(shared->second.storage(), tensor.storage_offset(), tensor);
    }

    static Tensor window(const at::Storage &storage, int64_t offset, const Tensor &like)
    {
        Tensor made = at::empty({0}, like.options().device(c10::kCPU));
        made.set_(storage, offset, like.sizes(), like.strides());
        made._set_conj(like.is_conj());
        made._set_neg(like.is_neg());
        return made;
    }

    // The memory of the tensor's cell, as bytes.
    static Tensor whole(const Tensor &tensor)
    {
        const BufferRef buffer = lend_memory(tensor, OPQ_REASON_capture);
        return at::from_blob(
            opq_buffer_data(buffer.get()), {opq_cell_bytes(impl_of(tensor)->cell())}, [buffer](void *) {},
            at::TensorOptions().dtype(at::kByte).device(c10::kCPU));
    }

    std::vector<Borrowed> borrowed_;                                   // ascending arguments
    std::vector<std::pair<const opq_cell *, const Borrowed *>> cells_; // sorted
    std::unordered_map<opq_cell *, Tensor> shared_;                    // made when it is needed
};

} // namespace

// Do the elements lie without gaps, the dims in this order from the outermost?
static bool is_ordered(const py::object &object, const std::vector<int64_t> &order)
{
    const Tensor &tensor = THPVariable_Unpack(object.ptr());
    int64_t expected = 1;
    if (static_cast<size_t>(tensor.dim()) != order.size() || tensor.numel() < 2)
        return true;
    for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
        if (tensor.size(*dim) != 1 && tensor.stride(*dim) != expected)
            return false;
        expected *= tensor.size(*dim);
    }
    return true;
}

void bind_borrowing(py::module_ &m)
{
    m.def("is_ordered", &is_ordered);
    m.def("take_as_on_cpu", torch::wrap_pybind_function(&take_as_on_cpu));
    m.def("set_as_on_cpu", &set_as_on_cpu);
    py::class_<Loan>(m, "Loan").def(py::init<>()).def("take", &Loan::take).def("give", &Loan::give);
}

} // namespace opq
