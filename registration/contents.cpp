// Class torch_opaque._C.Contents: what tensors hold at one moment, to be put back. Values are immutable, so it keeps references and
// copies nothing; and unlike a journal it leaves recording as it is, which matters where a loop is timed.
#include <torch/csrc/Exceptions.h>

#include <unordered_set>

#include "python.h"

namespace opq
{

namespace
{

class Contents
{
    struct Held {
        int tensor; // the first of the tensors that share the cell
        Cell cell;
        Value value;
        int64_t bytes; // of the cell, which may be resized
    };
    std::vector<Held> held_;

    static Value of(const Cell &cell) { return Value::take(opq_cell_value(cell.get())); }

  public:
    explicit Contents(const std::vector<Tensor> &tensors)
    {
        std::unordered_set<const opq_cell *> seen;
        for (size_t i = 0; i < tensors.size(); ++i) {
            const Cell &cell = impl_of(tensors[i])->cell_ref();
            if (Value value = seen.insert(cell.get()).second ? of(cell) : Value())
                held_.push_back({static_cast<int>(i), cell, std::move(value), opq_cell_bytes(cell.get())});
        }
    }

    std::vector<int> changed() const
    {
        std::vector<int> tensors;
        for (const Held &held : held_)
            if (of(held.cell).get() != held.value.get())
                tensors.push_back(held.tensor);
        return tensors;
    }

    // A write to all of the cell, which PyTorch's version counters do not see.
    void restore() const
    {
        for (const Held &held : held_) {
            if (of(held.cell).get() == held.value.get())
                continue;
            const Dims sizes = shape_of(held.value), strides = ordered_strides(sizes, Order{});
            const opq_geometry window{held.value.dtype(), held.value.rank(), sizes.data(), strides.data(), 0};
            if (opq_cell_bytes(held.cell.get()) < held.bytes)
                check(opq_cell_resize(context(), held.cell.get(), held.bytes));
            check(opq_cell_write(context(), held.cell.get(), &window, held.value.get()));
        }
    }
};

} // namespace

void bind_contents(py::module_ &m)
{
    py::class_<Contents>(m, "Contents")
        .def(py::init(torch::wrap_pybind_function(
            [](const py::object &tensors) { return std::make_unique<Contents>(tensors_of(tensors)); })))
        .def("changed", &Contents::changed)
        .def("restore", torch::wrap_pybind_function([](const Contents &self) {
                 const py::gil_scoped_release unlocked;
                 self.restore();
             }));
}

} // namespace opq
