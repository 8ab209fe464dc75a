// torch_opaque._C.CapturedFunction: the callable. A call looks for a way in which the function ran before (captured.h) and runs its plan; what
// it does not know it leaves to Python, which records (python/torch_opaque/captured.py). A class of CPython's own, because a call through
// pybind11 takes longer than a small plan.
#include <torch/csrc/Exceptions.h>

#include <structmember.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <torch/csrc/autograd/python_variable.h>

#include "captured.h"
#include "journal.h"
#include "python.h"

namespace opq
{

namespace
{

struct FunctionObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *attributes; // __dict__
    PyObject *weak_references;
    std::vector<std::shared_ptr<Captured>> *variants; // last used first
    int64_t calls, every;                             // every: so many calls one is for Python to check, 0: none
};

FunctionObject *self_of(PyObject *object) { return reinterpret_cast<FunctionObject *>(object); }

// Somebody else looks at what is recorded: modes of Python, transforms of functorch, a capturing around this one, a journal.
bool somebody_looks()
{
    constexpr c10::DispatchKeySet transforms{c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                             c10::DispatchKey::FuncTorchDynamicLayerBackMode};
    return at::impl::PythonTorchFunctionTLS::stack_len() > 0 || c10::impl::TorchDispatchModeTLS::stack_len() > 0 ||
           c10::impl::tls_local_dispatch_key_set().included_.has_any(transforms) || capturing_here() ||
           (any_journal() && journal_depth() > 0);
}

PyObject *through_python(PyObject *self, const char *method, PyObject *const *args, size_t count, PyObject *names)
{
    const auto bound = py::reinterpret_steal<py::object>(PyObject_GetAttrString(self, method));
    return bound ? PyObject_Vectorcall(bound.ptr(), args, count, names) : nullptr;
}

// The way that is used comes first.
void move_to_front(std::vector<std::shared_ptr<Captured>> &variants, size_t i)
{
    const auto at = variants.begin() + static_cast<std::ptrdiff_t>(i);
    std::rotate(variants.begin(), at, at + 1);
}

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names)
{
    HANDLE_TH_ERRORS
    FunctionObject *const self = self_of(object);
    const auto count = static_cast<size_t>(PyVectorcall_NARGS(flagged));
    if (somebody_looks())
        return through_python(object, "_plain", args, count, names);
    if (self->every > 0 && ++self->calls % self->every == 0)
        return through_python(object, "_check", args, count, names);
    auto &variants = *self->variants;
    const ThreadState state = ThreadState::now();
    for (size_t i = 0; i < variants.size(); ++i) {
        // What is compared may be Python's, and call or forget the function.
        const std::shared_ptr<Captured> one = variants[i];
        Match match;
        if (!one->matches(state, args, count, names, match, nullptr))
            continue;
        if (i > 0 && i < variants.size() && variants[i] == one)
            move_to_front(variants, i);
        if (py::object result = one->run(match))
            return result.release().ptr();
    }
    return through_python(object, "_record", args, count, names);
    END_HANDLE_TH_ERRORS
}

PyObject *make(PyTypeObject *type, PyObject *, PyObject *)
{
    PyObject *const object = type->tp_alloc(type, 0);
    if (!object)
        return nullptr;
    self_of(object)->vectorcall = &call;
    self_of(object)->variants = new std::vector<std::shared_ptr<Captured>>;
    return object;
}

int traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self_of(object)->attributes);
    for (const auto &one : *self_of(object)->variants)
        if (one.use_count() == 1) // else a call has it
            if (const int stop = one->traverse(visit, arg))
                return stop;
    return 0;
}

// Which may run code of Python's: the function has none of them by then.
void forget(FunctionObject *self, size_t most)
{
    std::vector<std::shared_ptr<Captured>> gone;
    while (self->variants->size() > most) {
        gone.push_back(std::move(self->variants->back()));
        self->variants->pop_back();
    }
}

int clear(PyObject *object)
{
    forget(self_of(object), 0);
    Py_CLEAR(self_of(object)->attributes);
    return 0;
}

void destroy(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    if (self_of(object)->weak_references)
        PyObject_ClearWeakRefs(object);
    clear(object);
    delete self_of(object)->variants;
    PyTypeObject *const type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

FunctionObject *checked(const py::handle &function, PyTypeObject *type)
{
    TORCH_CHECK_TYPE(PyObject_TypeCheck(function.ptr(), type), "expected a captured function");
    return self_of(function.ptr());
}

PyTypeObject *make_type()
{
    static PyMemberDef members[] = {
        {"__vectorcalloffset__", T_PYSSIZET, offsetof(FunctionObject, vectorcall), READONLY, nullptr},
        {"__dictoffset__", T_PYSSIZET, offsetof(FunctionObject, attributes), READONLY, nullptr},
        {"__weaklistoffset__", T_PYSSIZET, offsetof(FunctionObject, weak_references), READONLY, nullptr},
        {"_calls", T_LONGLONG, offsetof(FunctionObject, calls), 0, "calls while checks are on"},
        {"_every", T_LONGLONG, offsetof(FunctionObject, every), 0, "so many calls one is checked, 0: none"},
        {}};
    static PyGetSetDef properties[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                                       {}};
    static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void *>(&make)},
                                  {Py_tp_dealloc, reinterpret_cast<void *>(&destroy)},
                                  {Py_tp_traverse, reinterpret_cast<void *>(&traverse)},
                                  {Py_tp_clear, reinterpret_cast<void *>(&clear)},
                                  {Py_tp_call, reinterpret_cast<void *>(&PyVectorcall_Call)},
                                  {Py_tp_members, members},
                                  {Py_tp_getset, properties},
                                  {0, nullptr}};
    static PyType_Spec spec = {"torch_opaque._C.CapturedFunction", sizeof(FunctionObject), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                               slots};
    return reinterpret_cast<PyTypeObject *>(PyType_FromSpec(&spec));
}

// ---- what Python records with

using Watched = std::vector<std::tuple<py::dict, py::object, std::string>>;

// One way more of the function, in the making.
struct Draft {
    std::unique_ptr<Captured> captured;
};

std::vector<Tensor> gradients_of(const py::sequence &given)
{
    std::vector<Tensor> result;
    for (const py::handle one : given)
        result.push_back(one.is_none() ? Tensor() : tensor_of(one));
    return result;
}

py::list listed(const std::vector<Tensor> &tensors)
{
    py::list result;
    for (const Tensor &tensor : tensors)
        result.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)));
    return result;
}

void keep(PyTypeObject *type, Draft &draft, const py::object &function, const Watched &watched, const py::object &traced)
{
    draft.captured->traced = traced;
    for (const auto &[dict, keys, what] : watched)
        draft.captured->watch(WatchedDict(dict, keys, what));
    auto &variants = *checked(function, type)->variants;
    variants.insert(variants.begin(), std::move(draft.captured));
}

// What a captured function is given: tensors of the CPU are known to the capturing, numbers in `free` become what `make(register, number)` says.
std::pair<py::tuple, py::dict> arguments(Capturing &capturing, const py::tuple &args, const py::dict &kwargs,
                                         const std::vector<int> &free, const py::function &make)
{
    Leaves leaves;
    const Tree positional(args, leaves, free), named(kwargs, leaves, free);
    for (PyObject *const host : leaves.hosts)
        capturing.host_arguments.push_back(THPVariable_Unpack(host));
    for (PyObject *const tensor : leaves.tensors)
        capturing.arguments.push_back(THPVariable_Unpack(tensor).unsafeGetTensorImpl());
    if (leaves.numbers.empty())
        return {args, kwargs};
    std::vector<py::object> tensors, numbers, hosts;
    for (PyObject *const tensor : leaves.tensors)
        tensors.push_back(py::reinterpret_borrow<py::object>(tensor));
    for (PyObject *const host : leaves.hosts)
        hosts.push_back(py::reinterpret_borrow<py::object>(host));
    for (size_t i = 0; i < leaves.numbers.size(); ++i) {
        const py::handle number(leaves.numbers[i]);
        numbers.push_back(make(capturing.program.argument(i, Register::of(number)), number));
    }
    return {positional.build(tensors, numbers, hosts), named.build(tensors, numbers, hosts)};
}

Tensor host_tensor(const py::handle &object)
{
    TORCH_CHECK_TYPE(THPVariable_Check(object.ptr()), "expected a tensor");
    return THPVariable_Unpack(object.ptr());
}

// op: (name, overload, its arguments, named ones, [(argument, register)]), or None.
void host_call(Capturing &c, const py::object &function, const py::object &op, const py::sequence &tensors,
               const std::vector<int> &numbers, const py::sequence &results, const py::sequence &written)
{
    std::vector<int> slots, changed;
    std::vector<Tensor> made;
    std::optional<HostOperator> direct;
    for (const py::handle one : tensors)
        slots.push_back(c.slot(host_tensor(one)));
    for (const py::handle one : written)
        changed.push_back(c.slot(host_tensor(one)));
    for (const py::handle one : results)
        made.push_back(host_tensor(one));
    if (!op.is_none()) {
        const auto [name, overload, args, kwargs, places] =
            op.cast<std::tuple<std::string, std::string, py::tuple, py::dict, std::vector<std::pair<size_t, int>>>>();
        direct.emplace(name, overload, args, py::kwargs(kwargs), places, [&c](const Tensor &one) { return c.slot(one); });
    }
    c.program.call(function, std::move(direct), std::move(slots), numbers, made, std::move(changed));
}

// Arguments as a call has them.
struct Given {
    std::vector<PyObject *> all;
    size_t positional;
    py::tuple names;
    ThreadState state = ThreadState::now();

    Given(const py::tuple &args, const py::dict &kwargs) : positional(args.size()), names(py::list(kwargs))
    {
        for (const py::handle one : args)
            all.push_back(one.ptr());
        for (const auto &item : kwargs)
            all.push_back(item.second.ptr());
    }
    bool fit(Captured &captured, Match &match, std::string *why) const
    {
        return captured.matches(state, all.data(), positional, names.empty() ? nullptr : names.ptr(), match, why);
    }
};

// What `traced` was of a way that fits, which becomes the first one; None: there is none.
py::object fitting(FunctionObject *self, const py::tuple &args, const py::dict &kwargs)
{
    const Given given(args, kwargs);
    auto &variants = *self->variants;
    for (size_t i = 0; i < variants.size(); ++i) {
        const std::shared_ptr<Captured> one = variants[i];
        Match match;
        if (!given.fit(*one, match, nullptr) || !one->fits(match) || i >= variants.size() || variants[i] != one)
            continue;
        move_to_front(variants, i);
        return one->traced;
    }
    return py::none();
}

// (why, numbers among the arguments that changed, (name, key) of one in a dict): why none of the ways fits, the last one's reason; None: there is none.
py::object difference(PyTypeObject *type, const py::object &function, const py::tuple &args, const py::dict &kwargs)
{
    FunctionObject *const self = checked(function, type);
    if (self->variants->empty())
        return py::make_tuple(py::none(), py::tuple(), py::none());
    Match match;
    std::string why;
    Given(args, kwargs).fit(*self->variants->front(), match, &why);
    return py::make_tuple(why.empty() ? "what it computes on the host" : why, match.leaves.changed, match.item);
}

void bind_capturing(py::module_ &m)
{
    py::class_<Capturing>(m, "Capturing")
        .def(py::init<>(), "Begins; the thread records as ever.")
        .def("refuse", &Capturing::refuse)
        .def("end", &Capturing::end)
        .def("reach", [](Capturing &c, const py::object &tensor) { c.reach(tensor_of(tensor)); })
        .def("reach_gradient", [](Capturing &c, const py::object &tensor) { c.reach_gradient(tensor_of(tensor)); })
        .def("follow", &Capturing::follow)
        .def("followed", &Capturing::followed, py::return_value_policy::reference)
        .def("ended", &Capturing::ended)
        .def("outer", &Capturing::outer)
        .def("dict_item",
             [](Capturing &c, const py::dict &dict, const py::object &key) {
                 return c.program.dict_item(dict, key, Register::of(py::object(dict[key])));
             })
        .def("constant", [](Capturing &c, const py::object &number) { return c.program.constant(Register::of(number)); })
        .def("operate", [](Capturing &c, const std::string &name, int a, int b) { return c.program.operate(name, a, b); })
        .def("compare", [](Capturing &c, const std::string &name, int a, int b) { return c.program.compare(name, a, b); })
        .def("guard", [](Capturing &c, int reg) { c.program.guard(reg); })
        .def("number", [](const Capturing &c, int reg) { return c.program.now(reg).python(); })
        .def("item",
             [](Capturing &c, const py::object &object) {
                 const Tensor tensor = host_tensor(object);
                 c.given = {tensor};
                 const auto found = c.item(tensor);
                 c.given.clear();
                 return found;
             })
        .def("reads", [](const Capturing &c, const py::object &tensor) { return c.reads(host_tensor(tensor)); })
        .def("give",
             [](Capturing &c, const py::sequence &tensors) {
                 c.given.clear();
                 for (const py::handle one : tensors)
                     c.given.push_back(host_tensor(one));
             })
        .def("add_fresh", [](Capturing &c, const py::object &tensor) { c.add_fresh(host_tensor(tensor)); })
        .def("is_fresh", [](const Capturing &c, const py::object &tensor) { return c.is_fresh(host_tensor(tensor)); })
        .def("host_call", &host_call)
        .def("arguments", &arguments)
        .def_readonly("refused", &Capturing::refused);
    m.def("capturing_here", &capturing_here, py::return_value_policy::reference);
    m.def("capture_number_types", &set_number_types);
}

void bind_draft(py::module_ &m, PyTypeObject *type)
{
    py::class_<CutGraph>(m, "CutGraph")
        .def_property_readonly("ends", [](const CutGraph &c) { return listed(c.ends()); })
        .def("restore", &CutGraph::restore);
    py::class_<Draft>(m, "CaptureDraft")
        .def_property_readonly("outputs", [](const Draft &d) { return listed(d.captured->outputs()); })
        .def("add_backward",
             [](Draft &d, Capturing &c, const py::sequence &incoming, const py::sequence &gradients) {
                 return d.captured->add_backward(c, gradients_of(incoming), gradients_of(gradients));
             })
        .def("cut",
             [](const Draft &d) { return std::make_unique<CutGraph>(d.captured->outputs(), d.captured->inputs()); })
        .def("first_result", [](Draft &d) { return d.captured->first_result(); })
        .def_property_readonly("inspection", [](const Draft &d) { return d.captured->inspection; })
        .def("difference", // from the way of the function that was used last
             [type](const Draft &d, const py::object &function) {
                 const auto &variants = *checked(function, type)->variants;
                 return variants.empty() ? std::string() : variants.front()->difference(*d.captured);
             })
        .def("leaks", [](const Draft &d) { return d.captured->leaks(); })
        .def("keep", [type](Draft &d, const py::object &function, const Watched &watched, const py::object &traced) {
            keep(type, d, function, watched, traced);
        });
    // None if capturing.refused says why a call needs Python.
    m.def("capture_draft",
          [](Capturing &c, const py::tuple &args, const py::dict &kwargs, const py::object &result,
             const std::vector<int> &free, bool inspected) -> std::optional<Draft> {
              c.end();
              Draft draft{Captured::make(c, args, kwargs, result, free, inspected)};
              return draft.captured ? std::optional(std::move(draft)) : std::nullopt;
          });
}

void bind_functions(py::module_ &m, PyTypeObject *type)
{
    m.def("capture_difference", [type](const py::object &function, const py::tuple &args, const py::dict &kwargs) {
        return difference(type, function, args, kwargs);
    });
    m.def("capture_fits", [type](const py::object &function, const py::tuple &args, const py::dict &kwargs) {
        return fitting(checked(function, type), args, kwargs);
    });
    m.def("capture_inspections", [type](const py::object &function) {
        py::list result;
        for (const auto &variant : *checked(function, type)->variants)
            result.append(variant->inspection);
        return result;
    });
    m.def("capture_forget", [type](const py::object &function) { forget(checked(function, type), 0); });
    m.def("capture_limit", [type](const py::object &function, size_t most) { forget(checked(function, type), most); });
    m.def("capture_info", [type](const py::object &function) {
        py::list result;
        for (const auto &variant : *checked(function, type)->variants) {
            using namespace py::literals;
            const opq_capture_info info = variant->info();
            result.append(py::dict("ops"_a = info.ops, "kernels"_a = info.kernels, "tensors"_a = info.cells,
                                   "results"_a = info.results, "constants"_a = info.constants));
        }
        return result;
    });
}

} // namespace

void bind_capture(py::module_ &m)
{
    register_graphs();
    PyTypeObject *const type = make_type();
    TORCH_CHECK(type, "no class CapturedFunction");
    m.add_object("CapturedFunction", py::reinterpret_steal<py::object>(reinterpret_cast<PyObject *>(type)));
    bind_capturing(m);
    bind_draft(m, type);
    bind_functions(m, type);
}

} // namespace opq
