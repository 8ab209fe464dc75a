// The module torch_opaque._C. What each function promises is written in python/torch_opaque/_C.pyi.
#include <dlfcn.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <unordered_set>

#include "adapter.h"
#include "inspection.h"
#include "journal.h"
#include "lines.h"
#include "modes.h"
#include "random.h"
#include "shim.h"

namespace opq
{

namespace
{

std::string lines_setting = "all", log_setting;

// ---- Python objects

struct Object { // an owned reference
    PyObject *object;
    explicit Object(PyObject *owned) : object(owned)
    {
        if (!owned)
            throw python_error();
    }
    Object(const Object &) = delete;
    Object &operator=(const Object &) = delete;
    ~Object() { Py_XDECREF(object); }
    PyObject *release()
    {
        PyObject *const result = object;
        object = nullptr;
        return result;
    }
};

void set_item(PyObject *dict, const char *key, PyObject *owned)
{
    const Object value(owned);
    if (PyDict_SetItemString(dict, key, value.object) != 0)
        throw python_error();
}

void set_item(PyObject *dict, const char *key, int64_t value) { set_item(dict, key, PyLong_FromLongLong(value)); }

PyObject *text(const char *value)
{
    return PyUnicode_DecodeUTF8(value ? value : "", static_cast<Py_ssize_t>(value ? strlen(value) : 0), "replace");
}

Tensor tensor_of(PyObject *object)
{
    TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a tensor, got ", Py_TYPE(object)->tp_name);
    const Tensor &tensor = THPVariable_Unpack(object);
    TORCH_CHECK_TYPE(impl_or_null(tensor), "expected a tensor on device ", device(), ", got one on ", tensor.device());
    return tensor;
}

std::vector<Tensor> tensors_of(PyObject *list)
{
    const Object sequence(PySequence_Fast(list, "expected a list of tensors"));
    std::vector<Tensor> result;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.object); ++i)
        result.push_back(tensor_of(PySequence_Fast_GET_ITEM(sequence.object, i)));
    return result;
}

PyObject *list_of(const std::vector<Tensor> &tensors)
{
    Object list(PyList_New(static_cast<Py_ssize_t>(tensors.size())));
    for (size_t i = 0; i < tensors.size(); ++i)
        PyList_SET_ITEM(list.object, static_cast<Py_ssize_t>(i), Object(THPVariable_Wrap(tensors[i])).release());
    return list.release();
}

std::vector<Value> values_of(const std::vector<Tensor> &tensors)
{
    std::vector<Value> result;
    for (const Tensor &tensor : tensors)
        result.push_back(read_raw(tensor));
    return result;
}

opq_reason reason_of(const char *name)
{
    for (int i = 0; i < OPQ_REASON_COUNT; ++i)
        if (strcmp(name, opq_reason_name(static_cast<opq_reason>(i))) == 0)
            return static_cast<opq_reason>(i);
    TORCH_CHECK_VALUE(false, "unknown reason '", name, "'");
}

const char *c_string(PyObject *object)
{
    const char *const result = PyUnicode_AsUTF8(object);
    if (!result)
        throw python_error();
    return result;
}

// ---- running

PyObject *py_synchronize(PyObject *, PyObject *const *args, Py_ssize_t count)
{
    HANDLE_TH_ERRORS
    TORCH_CHECK_TYPE(count <= 1, "synchronize() takes a reason, not ", count, " arguments");
    synchronize(count == 0 ? OPQ_REASON_synchronize : reason_of(c_string(args[0])));
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject *py_materialize(PyObject *, PyObject *args)
{
    HANDLE_TH_ERRORS
    PyObject *list = nullptr;
    const char *reason = nullptr;
    if (!PyArg_ParseTuple(args, "Os", &list, &reason))
        return nullptr;
    const std::vector<Value> values = values_of(tensors_of(list));
    materialize(values, reason_of(reason));
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject *py_is_pending(PyObject *, PyObject *object)
{
    HANDLE_TH_ERRORS
    const Tensor tensor = tensor_of(object);
    const int64_t bytes = opq_cell_bytes(impl_of(tensor)->cell());
    const int64_t elements = bytes / static_cast<int64_t>(tensor.itemsize());
    const bool whole = tensor.is_contiguous() && tensor.numel() == elements;
    const Order order = dense_order(tensor.sizes(), tensor.strides()).value_or(Order{});
    const Value value = !is_wide(tensor) && (whole || !order.plain()) ? read_dense(tensor, order) : read_raw(tensor);
    return PyBool_FromLong(opq_value_buffer(value.get()) == nullptr);
    END_HANDLE_TH_ERRORS
}

PyObject *py_cell_id(PyObject *, PyObject *object)
{
    HANDLE_TH_ERRORS
    return PyLong_FromVoidPtr(impl_of(tensor_of(object))->cell());
    END_HANDLE_TH_ERRORS
}

PyObject *py_is_initialized(PyObject *, PyObject *) { return PyBool_FromLong(context_exists()); }

PyObject *py_finish_backward(PyObject *, PyObject *)
{
    HANDLE_TH_ERRORS
    const pybind11::gil_scoped_release unlocked;
    finish_backward();
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// ---- modes and settings

PyObject *py_get_modes(PyObject *, PyObject *)
{
    inherit_modes();
    return PyLong_FromUnsignedLong(opq_modes_get());
}

PyObject *py_set_modes(PyObject *, PyObject *object)
{
    HANDLE_TH_ERRORS
    const unsigned long modes = PyLong_AsUnsignedLong(object);
    if (PyErr_Occurred())
        return nullptr;
    set_modes(static_cast<unsigned>(modes));
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject *py_set_default_modes(PyObject *, PyObject *object)
{
    const unsigned long modes = PyLong_AsUnsignedLong(object);
    if (PyErr_Occurred())
        return nullptr;
    set_default_modes(static_cast<unsigned>(modes));
    Py_RETURN_NONE;
}

PyObject *py_set_lines(PyObject *, PyObject *object)
{
    HANDLE_TH_ERRORS
    const std::string which = c_string(object);
    TORCH_CHECK_VALUE(which == "all" || which == "flush" || which == "off", "lines are 'all', 'flush' or 'off', not '",
                      which, "'");
    lines_setting = which;
    opq_line_enable(which == "all");
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject *py_get_lines(PyObject *, PyObject *) { return text(lines_setting.c_str()); }

PyObject *py_set_log(PyObject *, PyObject *object)
{
    HANDLE_TH_ERRORS
    log_setting = c_string(object);
    log_runs(log_setting.find("flush") != std::string::npos);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject *py_get_log(PyObject *, PyObject *) { return text(log_setting.c_str()); }

PyObject *py_cpu_capability(PyObject *, PyObject *)
{
    const char *const forced = std::getenv("OPAQUE_CPU");
    if (forced && *forced)
        return text(forced);
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512f"))
        return text("avx2");
    return text(__builtin_cpu_supports("avx512bf16") ? "avx512_bf16" : "avx512");
}

// ---- random numbers

PyObject *py_default_generator(PyObject *, PyObject *)
{
    HANDLE_TH_ERRORS
    static PyObject *const generator = THPGenerator_initDefaultGenerator(default_generator());
    return Py_NewRef(generator);
    END_HANDLE_TH_ERRORS
}

// ---- memory and counters

opq_stats read_stats()
{
    opq_stats stats{};
    if (context_exists())
        opq_stats_read(context(), &stats);
    return stats;
}

PyObject *py_memory_allocated(PyObject *, PyObject *) { return PyLong_FromLongLong(read_stats().bytes_allocated); }

PyObject *py_max_memory_allocated(PyObject *, PyObject *) { return PyLong_FromLongLong(read_stats().bytes_peak); }

PyObject *py_memory_reserved(PyObject *, PyObject *) { return PyLong_FromLongLong(read_stats().bytes_reserved); }

PyObject *py_max_memory_reserved(PyObject *, PyObject *)
{
    return PyLong_FromLongLong(read_stats().bytes_reserved_peak);
}

PyObject *py_memory_info(PyObject *, PyObject *)
{
    int64_t available = 0, total = 0;
    opq_memory_info(&available, &total);
    return Py_BuildValue("LL", static_cast<long long>(available), static_cast<long long>(total));
}

PyObject *py_empty_cache(PyObject *, PyObject *)
{
    if (context_exists())
        opq_cache_empty(context());
    Py_RETURN_NONE;
}

PyObject *py_stats(PyObject *, PyObject *)
{
    HANDLE_TH_ERRORS
    const opq_stats stats = read_stats();
    Object result(PyDict_New());
#define X(field) set_item(result.object, #field, stats.field);
    /* clang-format off */
    X(ops_recorded) X(kernels_run) X(kernels_compiled) X(plans_built) X(plans_reused) X(extern_calls) X(bytes_read) X(bytes_written)
    X(bytes_allocated) X(bytes_peak) X(bytes_packed) X(kernels_kept) X(bytes_code)
    /* clang-format on */
#undef X
            set_item(result.object, "compile_seconds", PyFloat_FromDouble(stats.compile_seconds));
    set_item(result.object, "run_seconds", PyFloat_FromDouble(stats.run_seconds));
    Object flushes(PyDict_New());
    for (int i = 0; i < OPQ_REASON_COUNT; ++i)
        if (stats.flushes[i])
            set_item(flushes.object, opq_reason_name(static_cast<opq_reason>(i)), stats.flushes[i]);
    set_item(result.object, "flushes", flushes.release());
    return result.release();
    END_HANDLE_TH_ERRORS
}

PyObject *py_reset_stats(PyObject *, PyObject *)
{
    if (context_exists())
        opq_stats_reset(context());
    reset_fallback_counts();
    Py_RETURN_NONE;
}

PyObject *py_reset_peak(PyObject *, PyObject *)
{
    if (context_exists())
        opq_stats_reset_peak(context());
    Py_RETURN_NONE;
}

PyObject *py_fallback_counts(PyObject *, PyObject *)
{
    HANDLE_TH_ERRORS
    Object result(PyDict_New());
    for (const auto &[name, count] : fallback_counts())
        set_item(result.object, name.c_str(), count);
    return result.release();
    END_HANDLE_TH_ERRORS
}

// ---- looking

struct Captured {
    opq_snapshot *snapshot = nullptr;
    opq_graph *graph = nullptr;
    Captured(const std::vector<Value> &values, opq_outputs outputs)
    {
        check(opq_snapshot_take(context(), reinterpret_cast<opq_value *const *>(values.data()),
                                static_cast<int>(values.size()), &snapshot));
        const opq_status status = opq_snapshot_graph(snapshot, outputs, &graph);
        if (status != OPQ_OK)
            opq_snapshot_drop(snapshot);
        check(status);
    }
    Captured(const Captured &) = delete;
    Captured &operator=(const Captured &) = delete;
    ~Captured()
    {
        opq_graph_destroy(graph);
        opq_snapshot_drop(snapshot);
    }
};

std::string take_text(opq_status status, char *owned)
{
    check(status);
    const std::unique_ptr<char, decltype(&free)> holder(owned, &free);
    return owned;
}

std::string print_graph(const opq_graph *graph)
{
    char *out = nullptr;
    const opq_status status = opq_graph_print(graph, &out);
    return take_text(status, out);
}

PyObject *py_unfused_bytes(PyObject *, PyObject *list)
{
    HANDLE_TH_ERRORS
    const std::vector<Value> values = values_of(tensors_of(list));
    int64_t bytes = 0;
    {
        const pybind11::gil_scoped_release unlocked;
        const Captured captured(values, OPQ_OUTPUTS_all);
        check(opq_snapshot_bytes(captured.snapshot, OPQ_UNFUSED, &bytes));
    }
    return PyLong_FromLongLong(bytes);
    END_HANDLE_TH_ERRORS
}

PyObject *py_pending(PyObject *, PyObject *object)
{
    HANDLE_TH_ERRORS
    const Captured captured({read_raw(tensor_of(object))}, OPQ_OUTPUTS_asked);
    char line[256];
    const char *const last = opq_snapshot_last(captured.snapshot, line, sizeof line);
    return Py_BuildValue("iiss", opq_snapshot_pending_count(captured.snapshot),
                         opq_snapshot_leaf_count(captured.snapshot), last ? last : "", line);
    END_HANDLE_TH_ERRORS
}

at::ScalarType shown_dtype(opq_dtype dtype)
{
    switch (dtype) {
    case OPQ_raw8: return at::kByte;
    case OPQ_raw16: return at::kShort;
    case OPQ_raw32: return at::kInt;
    default: return torch_dtype(dtype);
    }
}

PyObject *py_capture(PyObject *, PyObject *list)
{
    HANDLE_TH_ERRORS
    const std::vector<Value> values = values_of(tensors_of(list));
    std::string graph;
    std::vector<Tensor> inputs;
    {
        const pybind11::gil_scoped_release unlocked;
        const Captured captured(values, OPQ_OUTPUTS_asked);
        graph = print_graph(captured.graph);
        for (int i = 0; i < opq_snapshot_leaf_count(captured.snapshot); ++i) {
            opq_value *const borrowed = opq_snapshot_leaf(captured.snapshot, i);
            opq_value_retain(borrowed);
            const Value leaf = Value::take(borrowed);
            const Dims sizes = shape_of(leaf);
            inputs.push_back(cpu_alias(leaf, shown_dtype(leaf.dtype()), sizes, ordered_strides(sizes, Order{})).clone());
        }
    }
    Object result(PyTuple_New(2));
    PyTuple_SET_ITEM(result.object, 0, Object(text(graph.c_str())).release());
    PyTuple_SET_ITEM(result.object, 1, list_of(inputs));
    return result.release();
    END_HANDLE_TH_ERRORS
}

PyObject *py_report_begin(PyObject *, PyObject *)
{
    HANDLE_TH_ERRORS
    opq_report_begin(context());
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject *launch_dict(const opq_launch &launch)
{
    Object result(PyDict_New());
    set_item(result.object, "name", text(launch.name));
    set_item(result.object, "kind", text(launch.kind));
    set_item(result.object, "shape", text(launch.shape));
    set_item(result.object, "lines", text(launch.lines));
    set_item(result.object, "rows", launch.rows);
    set_item(result.object, "seconds", PyFloat_FromDouble(launch.seconds));
    set_item(result.object, "compile_seconds", PyFloat_FromDouble(launch.compile_seconds));
    set_item(result.object, "bytes_read", launch.bytes_read);
    set_item(result.object, "bytes_written", launch.bytes_written);
    set_item(result.object, "flops", launch.flops);
    set_item(result.object, "fresh", PyBool_FromLong(launch.fresh));
    return result.release();
}

PyObject *py_report_end(PyObject *, PyObject *)
{
    HANDLE_TH_ERRORS
    opq_report *report = nullptr;
    check(opq_report_end(context(), &report));
    const std::unique_ptr<opq_report, decltype(&opq_report_drop)> owner(report, &opq_report_drop);
    Object result(PyDict_New());
    Object launches(PyList_New(0));
    for (int i = 0; i < report->launch_count; ++i) {
        const Object launch(launch_dict(report->launches[i]));
        if (PyList_Append(launches.object, launch.object) != 0)
            return nullptr;
    }
    set_item(result.object, "launches", launches.release());
    return result.release();
    END_HANDLE_TH_ERRORS
}

PyObject *py_journal_begin(PyObject *, PyObject *)
{
    HANDLE_TH_ERRORS
    journal_begin();
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject *py_journal_depth(PyObject *, PyObject *) { return PyLong_FromLong(journal_depth()); }

PyObject *py_journal_held(PyObject *, PyObject *)
{
    HANDLE_TH_ERRORS
    return list_of(journal_held());
    END_HANDLE_TH_ERRORS
}

PyObject *py_other_values(PyObject *, PyObject *args)
{
    HANDLE_TH_ERRORS
    PyObject *list = nullptr, *known = nullptr;
    if (!PyArg_ParseTuple(args, "OO", &list, &known))
        return nullptr;
    const std::vector<Value> all = values_of(tensors_of(known));
    std::unordered_set<const opq_value *> seen;
    for (const Value &value : all)
        seen.insert(value.get());
    std::vector<Tensor> others;
    for (const Tensor &tensor : tensors_of(list))
        if (seen.count(read_raw(tensor).get()) == 0)
            others.push_back(tensor);
    return list_of(others);
    END_HANDLE_TH_ERRORS
}

PyObject *py_journal_end(PyObject *, PyObject *args)
{
    HANDLE_TH_ERRORS
    int restore = 1;
    if (!PyArg_ParseTuple(args, "|p", &restore))
        return nullptr;
    return list_of(journal_end(restore != 0));
    END_HANDLE_TH_ERRORS
}

const char *class_name(opq_class value)
{
    static const char *const names[] = {"INPUT", "CONST",   "SCALAR", "IOTA",      "RANDOM", "EWISE",
                                        "CAST",  "VIEW",    "UPDATE", "REDUCE",    "SCAN",   "CONCAT",
                                        "INDEX", "SCATTER", "MATMUL", "COMPOSITE", "EXTERN"};
    static_assert(sizeof names / sizeof *names == OPQ_CLASS_COUNT);
    return names[value];
}

const char *rule_name(opq_dtype_rule value)
{
    static const char *const names[] = {"SAME", "FLOAT", "BOOL", "WHERE", "FIRST", "SUM", "INDEX", "GIVEN"};
    static_assert(sizeof names / sizeof *names == OPQ_RULE_GIVEN + 1);
    return names[value];
}

PyObject *py_op_table(PyObject *, PyObject *)
{
    HANDLE_TH_ERRORS
    Object result(PyList_New(0));
    for (int i = 0; i < OPQ_OP_COUNT; ++i) {
        const opq_op_info *const info = opq_op_info_of(static_cast<opq_op>(i));
        Object row(PyDict_New());
        set_item(row.object, "name", text(info->name));
        set_item(row.object, "arity", static_cast<int64_t>(info->arity));
        set_item(row.object, "class", text(class_name(info->class_)));
        set_item(row.object, "rule", text(rule_name(info->rule)));
        set_item(row.object, "flags", static_cast<int64_t>(info->flags));
        set_item(row.object, "aten", text(info->aten));
        set_item(row.object, "signature", text(info->signature));
        set_item(row.object, "expand", text(info->expand));
        if (PyList_Append(result.object, row.object) != 0)
            return nullptr;
    }
    return result.release();
    END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"synchronize", _PyCFunction_CAST(py_synchronize), METH_FASTCALL, nullptr},
    {"materialize", py_materialize, METH_VARARGS, nullptr},
    {"is_pending", py_is_pending, METH_O, nullptr},
    {"cell_id", py_cell_id, METH_O, nullptr},
    {"is_initialized", py_is_initialized, METH_NOARGS, nullptr},
    {"finish_backward", py_finish_backward, METH_NOARGS, nullptr},
    {"get_modes", py_get_modes, METH_NOARGS, nullptr},
    {"set_modes", py_set_modes, METH_O, nullptr},
    {"set_default_modes", py_set_default_modes, METH_O, nullptr},
    {"set_lines", py_set_lines, METH_O, nullptr},
    {"get_lines", py_get_lines, METH_NOARGS, nullptr},
    {"set_log", py_set_log, METH_O, nullptr},
    {"get_log", py_get_log, METH_NOARGS, nullptr},
    {"cpu_capability", py_cpu_capability, METH_NOARGS, nullptr},
    {"default_generator", py_default_generator, METH_NOARGS, nullptr},
    {"memory_allocated", py_memory_allocated, METH_NOARGS, nullptr},
    {"max_memory_allocated", py_max_memory_allocated, METH_NOARGS, nullptr},
    {"memory_reserved", py_memory_reserved, METH_NOARGS, nullptr},
    {"max_memory_reserved", py_max_memory_reserved, METH_NOARGS, nullptr},
    {"memory_info", py_memory_info, METH_NOARGS, nullptr},
    {"reset_peak_memory_stats", py_reset_peak, METH_NOARGS, nullptr},
    {"empty_cache", py_empty_cache, METH_NOARGS, nullptr},
    {"stats", py_stats, METH_NOARGS, nullptr},
    {"reset_stats", py_reset_stats, METH_NOARGS, nullptr},
    {"fallback_counts", py_fallback_counts, METH_NOARGS, nullptr},
    {"unfused_bytes", py_unfused_bytes, METH_O, nullptr},
    {"pending", py_pending, METH_O, nullptr},
    {"capture", py_capture, METH_O, nullptr},
    {"report_begin", py_report_begin, METH_NOARGS, nullptr},
    {"report_end", py_report_end, METH_NOARGS, nullptr},
    {"journal_begin", py_journal_begin, METH_NOARGS, nullptr},
    {"journal_depth", py_journal_depth, METH_NOARGS, nullptr},
    {"journal_held", py_journal_held, METH_NOARGS, nullptr},
    {"other_values", py_other_values, METH_VARARGS, nullptr},
    {"journal_end", py_journal_end, METH_VARARGS, nullptr},
    {"op_table", py_op_table, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "torch_opaque._C",
                          "Kernels, hooks and the core of device opaque.",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

void skip_folder_of(const void *address)
{
    Dl_info info{};
    if (!dladdr(address, &info) || !info.dli_fname)
        return;
    const std::string path = info.dli_fname;
    opq_line_skip(path.substr(0, path.rfind('/') + 1).c_str());
}

void skip_package(const char *name)
{
    PyObject *const package = PyImport_ImportModule(name);
    PyObject *const file = package ? PyObject_GetAttrString(package, "__file__") : nullptr;
    const char *const path = file && PyUnicode_Check(file) ? PyUnicode_AsUTF8(file) : nullptr;
    if (path)
        opq_line_skip(std::string(path, strrchr(path, '/') ? strrchr(path, '/') + 1 : path).c_str());
    Py_XDECREF(file);
    Py_XDECREF(package);
    PyErr_Clear();
}

} // namespace

} // namespace opq

extern "C" __attribute__((visibility("default"))) PyObject *PyInit__C()
{
    opq::start_modes();
    opq::skip_package("torch");
    opq::skip_package("contextlib"); // and the rest of the standard library
    opq::skip_folder_of(reinterpret_cast<const void *>(&opq::definition));
    try {
        opq::register_structured();
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_ImportError, error.what());
        return nullptr;
    }
    PyObject *const module = PyModule_Create(&opq::definition);
    if (module)
        opq::bind_inspection(module);
    return module;
}
