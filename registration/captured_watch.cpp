// What has to be as it was beside arguments and tensors: the thread's state, items of dicts.
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>

#include "captured.h"
#include "modes.h"

namespace opq
{

// ---- the thread

ThreadState ThreadState::now()
{
    inherit_modes();
    return {c10::GradMode::is_enabled(),
            c10::InferenceMode::is_enabled(),
            at::autocast::is_autocast_enabled(kDeviceType),
            at::autocast::is_autocast_enabled(c10::kCPU),
            at::autocast::get_autocast_dtype(kDeviceType),
            at::autocast::get_autocast_dtype(c10::kCPU),
            c10::get_default_dtype(),
            opq_modes_get(),
            at::globalContext().deterministicAlgorithms()};
}

const char *ThreadState::difference(const ThreadState &o) const
{
    if (grad != o.grad)
        return "gradients are on or off";
    if (inference != o.inference)
        return "inference mode";
    if (autocast != o.autocast || autocast_cpu != o.autocast_cpu || (autocast && autocast_dtype != o.autocast_dtype) ||
        (autocast_cpu && autocast_cpu_dtype != o.autocast_cpu_dtype))
        return "autocast";
    if (default_dtype != o.default_dtype)
        return "the default dtype";
    if (modes != o.modes)
        return "a mode of torch_opaque";
    return deterministic != o.deterministic ? "deterministic algorithms" : nullptr;
}

// ---- dicts

namespace
{

#if PY_VERSION_HEX < 0x030C0000
uint64_t version_of(const py::dict &dict) { return reinterpret_cast<PyDictObject *>(dict.ptr())->ma_version_tag; }
#else
uint64_t version_of(const py::dict &) { return 0; } // none to go by
#endif

bool same_item(PyObject *now, PyObject *before)
{
    if (now == before)
        return true;
    if (now && PyList_CheckExact(now) && PyTuple_CheckExact(before)) { // what it held
        bool same = PyList_GET_SIZE(now) == PyTuple_GET_SIZE(before);
        for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(before); ++i)
            same = PyList_GET_ITEM(now, i) == PyTuple_GET_ITEM(before, i);
        return same;
    }
    const bool value =
        now && Py_TYPE(now) == Py_TYPE(before) &&
        (PyFloat_CheckExact(now) || PyLong_CheckExact(now) || PyUnicode_CheckExact(now) || PyTuple_CheckExact(now));
    return value && same_value(now, before);
}

} // namespace

WatchedDict::WatchedDict(py::dict dict, const py::object &keys, std::string what)
    : dict_(std::move(dict)), all_(keys.is_none()), version_(version_of(dict_)), what_(std::move(what))
{
    for (const py::handle key : all_ ? py::tuple(py::list(dict_)) : py::tuple(keys)) {
        py::object value = dict_[key];
        lists_ = lists_ || PyList_CheckExact(value.ptr());
        if (PyList_CheckExact(value.ptr()))
            value = py::tuple(value);
        items_.emplace_back(py::reinterpret_borrow<py::object>(key), std::move(value));
    }
}

bool WatchedDict::holds(std::string *why, py::object *out_changed)
{
    const uint64_t version = version_of(dict_);
    if (version == version_ && version != 0 && !lists_) // which change without their dict
        return true;
    bool same = !all_ || static_cast<size_t>(PyDict_GET_SIZE(dict_.ptr())) == items_.size();
    if (!same && why)
        *why = what_ + " has other items";
    for (size_t i = 0; i < items_.size() && same; ++i) {
        const auto &[key, before] = items_[i];
        PyObject *const now = PyDict_GetItem(dict_.ptr(), key.ptr());
        same = same_item(now, before.ptr());
        if (same || !why)
            continue;
        *why = what_ + "'s " + std::string(py::str(key)) + " is " + (now ? short_text(now) : "missing") + ", not " +
               short_text(before.ptr());
        if (PyFloat_CheckExact(before.ptr()) || PyLong_CheckExact(before.ptr()))
            *out_changed = py::make_tuple(what_, key);
    }
    version_ = same ? version : version_;
    return same;
}

int WatchedDict::traverse(visitproc visit, void *arg) const
{
    Py_VISIT(dict_.ptr());
    for (const auto &[key, value] : items_) {
        Py_VISIT(key.ptr());
        Py_VISIT(value.ptr());
    }
    return 0;
}

} // namespace opq
