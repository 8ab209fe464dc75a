// The module torch_opaque._C. What each function promises is written in python/torch_opaque/_C.pyi.
#include <dlfcn.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "activities.h"
#include "adapter.h"
#include "defining.h"
#include "lines.h"
#include "modes.h"
#include "opaque/log.h"
#include "opaque/memory_stats.h"
#include "python.h"
#include "random.h"
#include "shim.h"

namespace opq
{

std::vector<Tensor> tensors_of(const py::handle &list)
{
    std::vector<Tensor> result;
    for (const py::handle item : py::reinterpret_borrow<py::iterable>(list))
        result.push_back(tensor_of(item));
    return result;
}

Tensor tensor_of(const py::handle &object)
{
    TORCH_CHECK_TYPE(THPVariable_Check(object.ptr()), "expected a tensor, got ", Py_TYPE(object.ptr())->tp_name);
    const Tensor &tensor = THPVariable_Unpack(object.ptr());
    TORCH_CHECK_TYPE(impl_or_null(tensor), "expected a tensor on device ", device(), ", got one on ", tensor.device());
    return tensor;
}

std::vector<Value> values_of(const std::vector<Tensor> &tensors)
{
    std::vector<Value> result;
    for (const Tensor &tensor : tensors)
        result.push_back(read_raw(tensor));
    return result;
}

namespace
{

std::string lines_setting = "all";

// ---- running

opq_reason reason_of(const std::string_view name)
{
    for (int i = 0; i < OPQ_REASON_COUNT; ++i)
        if (name == opq_reason_name(static_cast<opq_reason>(i)))
            return static_cast<opq_reason>(i);
    TORCH_CHECK_VALUE(false, "unknown reason '", name, "'");
}

// Called behind every small op: 83 ns with nothing to do, through pybind11 136.
PyObject *py_synchronize(PyObject *, PyObject *const *args, Py_ssize_t count)
{
    HANDLE_TH_ERRORS
    TORCH_CHECK_TYPE(count <= 1, "synchronize() takes a reason, not ", count, " arguments");
    const char *const name = count == 0 ? nullptr : PyUnicode_AsUTF8(args[0]);
    if (count == 1 && !name)
        throw python_error();
    synchronize(name ? reason_of(name) : OPQ_REASON_synchronize);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyMethodDef synchronize_method = {"synchronize", _PyCFunction_CAST(py_synchronize), METH_FASTCALL, nullptr};

void materialize_all(const py::object &list, const std::string &reason)
{
    const std::vector<Value> values = values_of(tensors_of(list));
    materialize(values, reason_of(reason));
}

bool is_pending(const py::object &object)
{
    const Tensor tensor = tensor_of(object);
    const int64_t bytes = opq_cell_bytes(impl_of(tensor)->cell());
    const int64_t elements = bytes / static_cast<int64_t>(tensor.itemsize());
    const bool whole = tensor.is_contiguous() && tensor.numel() == elements;
    const Order order = dense_order(tensor.sizes(), tensor.strides()).value_or(Order{});
    const Value value = !is_wide(tensor) && (whole || !order.plain()) ? read_dense(tensor, order) : read_raw(tensor);
    return opq_value_buffer(value.get()) == nullptr;
}

// False: a wrapper that says it is on the device, as nested and batched tensors are.
bool has_cell(const py::object &object)
{
    return THPVariable_Check(object.ptr()) && impl_or_null(THPVariable_Unpack(object.ptr()));
}

uintptr_t cell_id(const py::object &object) { return reinterpret_cast<uintptr_t>(impl_of(tensor_of(object))->cell()); }

// ---- modes and settings

unsigned get_modes()
{
    inherit_modes();
    return opq_modes_get();
}

// In the order of opq_products.
const std::array<std::string, 4> product_rules = {"auto", "chain", "pairs", "pairs16"};

void set_bf16_products(const std::string &rule)
{
    const auto found = std::find(product_rules.begin(), product_rules.end(), rule);
    TORCH_CHECK_VALUE(found != product_rules.end(), "bf16_products is 'auto', 'chain', 'pairs' or 'pairs16', not '",
                      rule, "'");
    opq_products_set(context(), static_cast<opq_products>(found - product_rules.begin()));
}

void set_lines(const std::string &which)
{
    TORCH_CHECK_VALUE(which == "all" || which == "flush" || which == "off", "lines are 'all', 'flush' or 'off', not '",
                      which, "'");
    lines_setting = which;
    opq_line_enable(which == "all");
}

void set_log(const std::map<std::string, std::string> &levels)
{
    std::map<std::string, std::string> all;
    for (int i = 0; i < OPQ_LOG_TOPIC_COUNT; ++i)
        all[opq_log_topic_name(static_cast<opq_log_topic>(i))] = "off";
    for (const auto &[topic, level] : levels) {
        TORCH_CHECK_VALUE(all.count(topic), "the log has no topic '", topic, "'");
        all[topic] = level;
    }
    for (const auto &[topic, level] : all)
        TORCH_CHECK_VALUE(opq_log_set(topic.c_str(), level.c_str()) == OPQ_OK, opq_error());
}

std::map<std::string, std::string> get_log()
{
    std::map<std::string, std::string> levels;
    for (int i = 0; i < OPQ_LOG_TOPIC_COUNT; ++i)
        if (opq_log_levels[i] != OPQ_LOG_OFF)
            levels[opq_log_topic_name(static_cast<opq_log_topic>(i))] =
                opq_log_level_name(static_cast<opq_log_level>(opq_log_levels[i]));
    return levels;
}

// One line of a topic's log at level info.
void log_line(const std::string &topic, const std::string &text)
{
    for (int i = 0; i < OPQ_LOG_TOPIC_COUNT; ++i)
        if (topic == opq_log_topic_name(static_cast<opq_log_topic>(i)) &&
            opq_logs(static_cast<opq_log_topic>(i), OPQ_LOG_INFO))
            opq_log("%s", text.c_str());
}

void set_log_file(const std::string &path) { TORCH_CHECK_VALUE(opq_log_open(path.c_str()) == OPQ_OK, opq_error()); }

std::vector<const char *> log_topics()
{
    std::vector<const char *> names;
    for (int i = 0; i < OPQ_LOG_TOPIC_COUNT; ++i)
        names.push_back(opq_log_topic_name(static_cast<opq_log_topic>(i)));
    return names;
}

std::string cpu_capability()
{
    const char *const forced = std::getenv("OPAQUE_CPU");
    if (forced && *forced)
        return forced;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512f"))
        return "avx2";
    return __builtin_cpu_supports("avx512bf16") ? "avx512_bf16" : "avx512";
}

py::object default_random_generator()
{
    static PyObject *const generator = THPGenerator_initDefaultGenerator(default_generator());
    return py::reinterpret_borrow<py::object>(generator);
}

// ---- memory and counters

opq_stats read_stats()
{
    opq_stats stats{};
    if (context_exists())
        opq_stats_read(context(), &stats);
    return stats;
}

template <auto field> int64_t stat() { return read_stats().*field; }

std::pair<int64_t, int64_t> memory_info()
{
    int64_t available = 0, total = 0;
    opq_memory_info(&available, &total);
    return {available, total};
}

std::string part_of(uint32_t line, opq_line_part part)
{
    char text[512];
    return {text, opq_line_text(line, part, text, sizeof text)};
}

std::vector<py::dict> memory_snapshot()
{
    opq_memory_block *blocks = nullptr;
    int count = 0;
    if (context_exists())
        check(opq_memory_blocks(context(), &blocks, &count));
    const std::unique_ptr<opq_memory_block, decltype(&free)> owner(blocks, &free);
    std::vector<py::dict> result;
    using namespace py::literals;
    for (int i = 0; i < count; ++i) {
        const opq_memory_block &block = blocks[i];
        result.push_back(py::dict("address"_a = reinterpret_cast<uintptr_t>(block.address), "size"_a = block.bytes,
                                  "reserved"_a = block.reserved, "op"_a = block.op ? block.op : "",
                                  "line"_a = part_of(block.line, OPQ_LINE_place),
                                  "module"_a = part_of(block.line, OPQ_LINE_module),
                                  "source"_a = part_of(block.line, OPQ_LINE_source)));
    }
    return result;
}

void limit_memory(double fraction) { opq_memory_limit(context(), fraction); }
double memory_fraction() { return context_exists() ? opq_memory_fraction(context()) : 1; }

template <void (*change)(opq_ctx *)> void on_context()
{
    if (context_exists())
        change(context());
}

void forget(bool code)
{
    if (context_exists())
        opq_forget(context(), code);
}

py::dict stats()
{
    const opq_stats stats = read_stats();
    py::dict result, flushes;
#define X(field) result[#field] = stats.field;
    /* clang-format off */
    X(ops_recorded) X(kernels_run) X(kernels_compiled) X(kernels_loaded) X(kernels_split) X(runs_in_pieces) X(runs_joined) X(captured_calls) X(plans_built) X(plans_in_background) X(plans_failed) X(plans_reused) X(extern_calls) X(bytes_read) X(bytes_written)
    X(bytes_allocated) X(bytes_peak) X(bytes_packed) X(kernels_kept) X(bytes_code) X(compile_seconds) X(run_seconds)
    /* clang-format on */
#undef X
                for (int i = 0; i < OPQ_REASON_COUNT; ++i) if (stats.flushes[i])
                    flushes[opq_reason_name(static_cast<opq_reason>(i))] = stats.flushes[i];
    result["flushes"] = flushes;
    return result;
}

void reset_stats()
{
    on_context<opq_stats_reset>();
    reset_fallback_counts();
}

py::dict fallbacks()
{
    py::dict result;
    for (const auto &[name, count] : fallback_counts())
        result[name.c_str()] = count;
    return result;
}

// ---- the op table

const char *class_name(opq_class value)
{
    static const char *const names[] = {"INPUT", "CONST",   "SCALAR", "IOTA",    "RANDOM",    "EWISE",
                                        "CAST",  "VIEW",    "UPDATE", "REDUCE",  "SCAN",      "CONCAT",
                                        "INDEX", "SCATTER", "MATMUL", "ROUTINE", "COMPOSITE", "EXTERN"};
    static_assert(sizeof names / sizeof *names == OPQ_CLASS_COUNT);
    return names[value];
}

const char *rule_name(opq_dtype_rule value)
{
    static const char *const names[] = {"SAME", "FLOAT", "BOOL", "WHERE", "FIRST", "SUM", "INDEX", "GIVEN"};
    static_assert(sizeof names / sizeof *names == OPQ_RULE_GIVEN + 1);
    return names[value];
}

py::dict row_of(int op)
{
    const opq_op_info *const info = opq_op_info_of(static_cast<opq_op>(op));
    using namespace py::literals;
    return py::dict("name"_a = info->name, "arity"_a = info->arity, "class"_a = class_name(info->class_),
                    "rule"_a = rule_name(info->rule), "flags"_a = info->flags, "aten"_a = info->aten,
                    "signature"_a = info->signature, "expand"_a = info->expand ? info->expand : "");
}

py::list op_table()
{
    py::list result;
    for (int i = 0; i < OPQ_OP_COUNT; ++i)
        result.append(row_of(i));
    return result;
}

// ---- the module

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

template <class Function> void add(py::module_ &m, const char *name, Function &&function)
{
    m.def(name, torch::wrap_pybind_function(std::forward<Function>(function)));
}

void bind(py::module_ &m)
{
    m.add_object("synchronize", py::reinterpret_steal<py::object>(PyCFunction_New(&synchronize_method, nullptr)));
    add(m, "materialize", &materialize_all);
    add(m, "has_cell", &has_cell);
    add(m, "is_pending", &is_pending);
    add(m, "cell_id", &cell_id);
    add(m, "is_initialized", &context_exists);
    m.def("finish_backward", torch::wrap_pybind_function_no_gil(&finish_backward));
    add(m, "get_modes", &get_modes);
    add(m, "set_modes", &set_modes);
    add(m, "set_default_modes", &set_default_modes);
    add(m, "set_bf16_products", &set_bf16_products);
    add(m, "get_bf16_products", [] { return product_rules[opq_products_get(context())]; });
    add(m, "set_lines", &set_lines);
    add(m, "get_lines", [] { return lines_setting; });
    add(m, "set_log", &set_log);
    add(m, "get_log", &get_log);
    add(m, "set_watched", &set_watched);
    add(m, "set_log_file", &set_log_file);
    add(m, "log_topics", &log_topics);
    add(m, "log", &log_line);
    add(m, "cpu_capability", &cpu_capability);
    add(m, "default_generator", &default_random_generator);
    add(m, "memory_allocated", &stat<&opq_stats::bytes_allocated>);
    add(m, "max_memory_allocated", &stat<&opq_stats::bytes_peak>);
    add(m, "memory_reserved", &stat<&opq_stats::bytes_reserved>);
    add(m, "max_memory_reserved", &stat<&opq_stats::bytes_reserved_peak>);
    add(m, "memory_info", &memory_info);
    add(m, "limit_memory", &limit_memory);
    add(m, "memory_fraction", &memory_fraction);
    add(m, "memory_snapshot", &memory_snapshot);
    add(m, "check_index", [](int index) { check_index(c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(index))); });
    add(m, "reset_peak_memory_stats", &on_context<opq_stats_reset_peak>);
    add(m, "reset_accumulated_memory_stats", &on_context<opq_memory_stats_reset>);
    add(m, "empty_cache", &on_context<opq_cache_empty>);
    m.def("end_plans", torch::wrap_pybind_function_no_gil(&on_context<opq_plans_end>));
    m.def("wait_for_plans", torch::wrap_pybind_function_no_gil(&on_context<opq_plans_wait>));
    m.def("forget", torch::wrap_pybind_function_no_gil(&forget));
    add(m, "stats", &stats);
    add(m, "reset_stats", &reset_stats);
    add(m, "fallback_counts", &fallbacks);
    add(m, "op_table", &op_table);
    add(m, "row_of", &row_of);
    bind_inspection(m);
    bind_contents(m);
    bind_capture(m);
    bind_borrowing(m);
    bind_exporting(m);
    bind_defining(m);
}

} // namespace

// An exception becomes an ImportError.
PYBIND11_MODULE(_C, m)
{
    m.doc() = "Kernels, hooks and the core of device opaque.";
    start_modes();
    skip_package("torch");
    skip_package("contextlib"); // and the rest of the standard library
    skip_folder_of(reinterpret_cast<const void *>(&read_stats));
    register_structured();
    bind(m);
}

} // namespace opq
