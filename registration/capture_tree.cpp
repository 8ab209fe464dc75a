#include "capture_tree.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

namespace opq
{

namespace
{

bool is_whole(const at::Tensor &tensor)
{
    const OpaqueImpl *const impl = impl_or_null(tensor);
    return !impl || opq_cell_bytes(impl->cell()) == static_cast<int64_t>(tensor.nbytes());
}

} // namespace

TensorShape::TensorShape(const at::Tensor &tensor)
    : dtype(tensor.scalar_type()), sizes(tensor.sizes().begin(), tensor.sizes().end()),
      strides(tensor.strides().begin(), tensor.strides().end()), offset(tensor.storage_offset()),
      requires_grad(tensor.requires_grad()), inference(tensor.is_inference()), negative(tensor.is_neg()),
      conjugate(tensor.is_conj()), keys(tensor.key_set()), whole(is_whole(tensor))
{
}

// Few numbers, once for each tensor of each call: a call of memcmp costs more.
static bool same(IntArrayRef now, const Dims &before)
{
    if (now.size() != before.size())
        return false;
    int64_t difference = 0;
    for (size_t i = 0; i < before.size(); ++i)
        difference |= now[i] ^ before[i];
    return difference == 0;
}

bool TensorShape::matches(const at::Tensor &tensor, bool shiftable) const
{
    return tensor.scalar_type() == dtype && same(tensor.sizes(), sizes) && same(tensor.strides(), strides) &&
           (shiftable ? is_whole(tensor) == whole : tensor.storage_offset() == offset) &&
           tensor.requires_grad() == requires_grad &&
           (tensor.key_set() == keys ||
            (tensor.is_inference() == inference && tensor.is_neg() == negative && tensor.is_conj() == conjugate));
}

std::string TensorShape::difference(const at::Tensor &tensor, bool shiftable) const
{
    if (matches(tensor, shiftable))
        return "";
    const auto was = [](const char *what, const auto &now, const auto &before) {
        return c10::str(what, " ", now, ", not ", before);
    };
    if (tensor.scalar_type() != dtype)
        return was("dtype", tensor.scalar_type(), dtype);
    if (tensor.sizes() != IntArrayRef(sizes))
        return was("shape", tensor.sizes(), IntArrayRef(sizes));
    if (tensor.strides() != IntArrayRef(strides))
        return was("strides", tensor.strides(), IntArrayRef(strides));
    if (tensor.storage_offset() != offset)
        return was("storage offset", tensor.storage_offset(), offset);
    if (tensor.requires_grad() != requires_grad)
        return requires_grad ? "requires no grad" : "requires grad";
    if (shiftable && is_whole(tensor) != whole)
        return whole ? "a part of another tensor" : "no part of another tensor";
    return "an inference tensor, negated or conjugated, or no more";
}

namespace
{

// torch.utils._pytree.SUPPORTED_NODES: (children, context) of an object of a registered class; nothing for others.
py::object flatten_function(PyTypeObject *type)
{
    static const auto *const nodes = new py::object(py::module_::import("torch.utils._pytree").attr("SUPPORTED_NODES"));
    PyObject *const found = PyDict_GetItemWithError(nodes->ptr(), reinterpret_cast<PyObject *>(type));
    if (!found) {
        PyErr_Clear();
        return {};
    }
    return py::handle(found).attr("flatten_fn");
}

py::object unflatten_function(PyTypeObject *type)
{
    static const auto *const nodes = new py::object(py::module_::import("torch.utils._pytree").attr("SUPPORTED_NODES"));
    return (*nodes)[py::handle(reinterpret_cast<PyObject *>(type))].attr("unflatten_fn");
}

// Values that are what they say, however often they are made.
bool is_value(PyObject *object)
{
    static const auto *const enumeration = new py::object(py::module_::import("enum").attr("Enum"));
    return PyFloat_CheckExact(object) || PyLong_CheckExact(object) || PyUnicode_CheckExact(object) ||
           PyComplex_CheckExact(object) || PyBytes_CheckExact(object) || PySlice_Check(object) ||
           THPDevice_Check(object) || THPSize_Check(object) || PyRange_Check(object) ||
           PyObject_IsInstance(object, enumeration->ptr()) == 1;
}

bool is_device_tensor(PyObject *object)
{
    return THPVariable_Check(object) && impl_or_null(THPVariable_Unpack(object));
}

PyObject *number_types[2];

bool is_host_tensor(PyObject *object)
{
    if (!THPVariable_CheckExact(object))
        return false;
    const at::Tensor &tensor = THPVariable_Unpack(object);
    return tensor.device().is_cpu() && tensor.layout() == at::kStrided;
}

// The items of a tuple or a list.
c10::ArrayRef<PyObject *> sequence_items(PyObject *sequence)
{
    return {PySequence_Fast_ITEMS(sequence), static_cast<size_t>(PySequence_Fast_GET_SIZE(sequence))};
}

} // namespace

bool same_value(PyObject *a, PyObject *b)
{
    if (a == b)
        return true;
    if (PyFloat_CheckExact(a) && PyFloat_CheckExact(b)) { // by bits: -0.0 is not 0.0, and NaN is NaN
        const double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return std::memcmp(&x, &y, sizeof x) == 0;
    }
    const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
    if (equal < 0)
        PyErr_Clear();
    return equal == 1;
}

std::string short_text(PyObject *object)
{
    const std::string text = py::repr(object);
    return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

void set_number_types(const py::object &real, const py::object &integer)
{
    number_types[0] = py::object(real).release().ptr();
    number_types[1] = py::object(integer).release().ptr();
}

void Tree::add_items(PyObject *const *items, size_t count, Leaves &leaves, const std::vector<int> &free)
{
    for (size_t i = 0; i < count; ++i)
        items_.emplace_back(items[i], leaves, free);
}

Tree::Tree(py::handle handle, Leaves &leaves, const std::vector<int> &free) : type_(Py_TYPE(handle.ptr()))
{
    PyObject *const object = handle.ptr();
    if (is_device_tensor(object)) {
        kind_ = Kind::tensor;
        index_ = leaves.tensors.size();
        leaves.tensors.push_back(object);
        return;
    }
    const bool tuple = PyTuple_Check(object), list = PyList_CheckExact(object);
    if ((tuple || list) && !(tuple && type_ != &PyTuple_Type && PyObject_HasAttrString(object, "_fields") == 0)) {
        kind_ = tuple ? Kind::tuple : Kind::list;
        const auto items = sequence_items(object);
        add_items(items.data(), items.size(), leaves, free);
        return;
    }
    if (PyDict_CheckExact(object)) {
        kind_ = Kind::dict;
        object_ = py::tuple(py::reinterpret_steal<py::list>(PyDict_Keys(object)));
        PyObject *key, *value;
        for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value);)
            items_.emplace_back(value, leaves, free);
        return;
    }
    if (const py::object flatten = flatten_function(type_)) {
        kind_ = Kind::node;
        const py::tuple parts = flatten(handle);
        const py::list children(parts[0]);
        leaves.kept.push_back(children);
        object_ = parts[1];
        const auto items = sequence_items(children.ptr());
        add_items(items.data(), items.size(), leaves, free);
        return;
    }
    object_ = py::reinterpret_borrow<py::object>(object);
    const auto *const type = reinterpret_cast<PyObject *>(type_);
    if (type == number_types[0] || type == number_types[1]) {
        kind_ = Kind::number;
        index_ = leaves.numbers.size();
        leaves.numbers.push_back(object);
        return;
    }
    if (is_host_tensor(object)) {
        kind_ = Kind::host;
        host_.emplace(THPVariable_Unpack(object));
        index_ = leaves.hosts.size();
        leaves.hosts.push_back(object);
        object_ = {};
        return;
    }
    kind_ = is_value(object) ? Kind::equal : Kind::same;
    if (kind_ != Kind::equal)
        return;
    const int number = leaves.equals++;
    if ((PyFloat_CheckExact(object) || PyLong_CheckExact(object)) &&
        std::find(free.begin(), free.end(), number) != free.end()) {
        kind_ = Kind::number;
        index_ = leaves.numbers.size();
        leaves.numbers.push_back(object);
    }
}

bool Tree::differs(std::string *why, const std::string &what) const
{
    if (why && why->empty())
        *why = what;
    return false;
}

bool Tree::match_items(PyObject *const *items, size_t count, Leaves &leaves, std::string *why) const
{
    if (count != items_.size())
        return differs(why, c10::str("has ", count, " items, not ", items_.size()));
    for (size_t i = 0; i < count; ++i)
        if (!items_[i].matches(items[i], leaves, why))
            return false;
    return true;
}

bool Tree::matches(PyObject *object, Leaves &leaves, std::string *why) const
{
    if (Py_TYPE(object) != type_ && kind_ == Kind::equal)
        ++leaves.equals;
    if (Py_TYPE(object) != type_)
        return differs(why, c10::str("is a ", Py_TYPE(object)->tp_name, ", not a ", type_->tp_name));
    switch (kind_) {
    case Kind::tensor:
        if (!is_device_tensor(object))
            return differs(why, "is no tensor of the device");
        leaves.tensors.push_back(object);
        return true;
    case Kind::host: {
        const at::Tensor &tensor = THPVariable_Unpack(object);
        if (!tensor.device().is_cpu() || !host_->matches(tensor, true))
            return differs(why, why ? "a tensor of the CPU: " + host_->difference(tensor, true) : std::string());
        leaves.hosts.push_back(object);
        return true;
    }
    case Kind::number:
        ++leaves.equals;
        leaves.numbers.push_back(object);
        return true;
    case Kind::equal: {
        const int number = leaves.equals++;
        if (same_value(object_.ptr(), object))
            return true;
        differs(why, why ? short_text(object) + ", not " + short_text(object_.ptr()) : std::string());
        if (!why || !(PyFloat_CheckExact(object) || PyLong_CheckExact(object)))
            return false;
        leaves.changed.push_back(number); // who asks wants to know all of them
        return true;
    }
    case Kind::same:
        if (is_device_tensor(object))
            return differs(why, "is a tensor of the device");
        return object == object_.ptr() || differs(why, why ? "another " + std::string(type_->tp_name) : std::string());
    case Kind::tuple:
    case Kind::list: {
        const auto items = sequence_items(object);
        return match_items(items.data(), items.size(), leaves, why);
    }
    case Kind::dict: {
        if (static_cast<size_t>(PyDict_GET_SIZE(object)) != items_.size())
            return differs(why, "has other keys");
        PyObject *key, *value;
        size_t i = 0;
        for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value); ++i)
            if (!same_value(PyTuple_GET_ITEM(object_.ptr(), i), key))
                return differs(why, "has other keys");
            else if (!items_[i].matches(value, leaves, why))
                return false;
        return true;
    }
    case Kind::node: {
        const py::tuple parts = flatten_function(type_)(py::handle(object));
        const py::list children(parts[0]);
        leaves.kept.push_back(children);
        if (!object_.equal(parts[1]))
            return differs(why, c10::str("another ", type_->tp_name));
        const auto items = sequence_items(children.ptr());
        return match_items(items.data(), items.size(), leaves, why);
    }
    }
    return false;
}

int Tree::traverse(visitproc visit, void *arg) const
{
    Py_VISIT(object_.ptr());
    for (const Tree &item : items_)
        if (const int stop = item.traverse(visit, arg))
            return stop;
    return 0;
}

bool Tree::same_as(const Tree &other) const
{
    if (kind_ != other.kind_ || type_ != other.type_ || index_ != other.index_ || items_.size() != other.items_.size())
        return false;
    if (kind_ == Kind::same ? object_.ptr() != other.object_.ptr()
                            : kind_ != Kind::number && object_ && !same_value(object_.ptr(), other.object_.ptr()))
        return false;
    for (size_t i = 0; i < items_.size(); ++i)
        if (!items_[i].same_as(other.items_[i]))
            return false;
    return true;
}

py::object Tree::build(const std::vector<py::object> &tensors, const std::vector<py::object> &numbers,
                       const std::vector<py::object> &hosts) const
{
    switch (kind_) {
    case Kind::tensor: return tensors[index_];
    case Kind::host: return hosts[index_];
    case Kind::number: return numbers[index_];
    case Kind::equal:
    case Kind::same: return object_;
    case Kind::dict: {
        py::dict made;
        for (size_t i = 0; i < items_.size(); ++i)
            made[py::handle(PyTuple_GET_ITEM(object_.ptr(), i))] = items_[i].build(tensors, numbers, hosts);
        return made;
    }
    case Kind::tuple:
    case Kind::list:
    case Kind::node: break;
    }
    py::list made(items_.size());
    for (size_t i = 0; i < items_.size(); ++i)
        made[i] = items_[i].build(tensors, numbers, hosts);
    if (kind_ == Kind::list)
        return made;
    if (kind_ == Kind::node)
        return unflatten_function(type_)(made, object_);
    const py::handle type(reinterpret_cast<PyObject *>(type_));
    if (type_ == &PyTuple_Type)
        return py::tuple(made);
    return PyObject_HasAttrString(type.ptr(), "_make") ? type.attr("_make")(made) : type(made);
}

} // namespace opq
