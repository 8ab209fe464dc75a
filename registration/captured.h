// One way in which a captured function ran: what has to be as it was for a call to run its plan, and what a call reads and gives.
//
//   arguments   a nest whose tensors may be others of the same shapes
//   kept        tensors that the function reached otherwise: parameters, buffers, what it closes over; read anew at each call
//   watched     items of dicts, for which Python code goes another way: `training`, options of optimizers
//   state       of the thread: gradients on or off, autocast, modes
//
// Used with the interpreter lock.
#pragma once

#include "capture_tree.h"
#include "capturing.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>

namespace opq
{

inline opq_cell *cell_of(const Tensor &tensor) { return impl_of(tensor)->cell(); }
inline Cell held(opq_cell *cell) // a reference more
{
    opq_cell_retain(cell);
    return Cell::take(cell);
}

// Of the calling thread.
struct ThreadState {
    bool grad, inference, autocast, autocast_cpu;
    at::ScalarType autocast_dtype, autocast_cpu_dtype;
    caffe2::TypeMeta default_dtype;
    unsigned modes;
    bool deterministic;

    static ThreadState now();
    const char *difference(const ThreadState &other) const; // nullptr: none
};

// Items of a dict that have to be what they were.
class WatchedDict
{
  public:
    // keys: a tuple, None: all, and no other may come.
    WatchedDict(py::dict dict, const py::object &keys, std::string what);
    // *out_changed: (name, key) of a number that is another one.
    bool holds(std::string *why, py::object *out_changed);
    int traverse(visitproc visit, void *arg) const;

  private:
    py::dict dict_;
    std::vector<std::pair<py::object, py::object>> items_;
    bool all_, lists_ = false;
    uint64_t version_;
    std::string what_;
};

// A tensor that the function gives.
struct ResultTensor {
    enum class Kind { argument, kept, view, made, again } kind = Kind::made;
    size_t index = 0; // of the argument, the kept tensor, the cell, what is made or an earlier result, which it is
    at::ScalarType dtype{};
    Dims sizes, strides;
    int64_t offset = 0;
    bool requires_grad = false, negative = false, conjugate = false;

    ResultTensor() = default;
    explicit ResultTensor(const Tensor &tensor);
    Tensor on(Cell cell, int64_t shift = 0) const; // a view of it, or a new one; shift: bytes that it begins behind `offset`
};

struct Match {
    Leaves leaves;
    // The tensors, held by their Python objects: a second reference to a tensor itself takes Python's lock once more.
    c10::SmallVector<py::object, 16> arguments;
    const Tensor &argument(size_t i) const { return THPVariable_Unpack(arguments[i].ptr()); }
    c10::SmallVector<opq_cell *, 32> cells;
    std::vector<Cell> pins; // of these, while other threads may give tensors other memory
    void pin();
    c10::SmallVector<int64_t, 32> shifts;
    py::object item = py::none(); // (name, key) of a watched number that changed
};

struct CaptureDeleter {
    void operator()(opq_capture *capture) const { opq_capture_drop(capture); }
};
using Capture = std::unique_ptr<opq_capture, CaptureDeleter>;
// Of what `capturing`, which has ended, noted. OPQ_UNSUPPORTED: it needs Python. graph: what was recorded, nullptr: nobody asks.
opq_status make_capture(const Capturing &capturing, const std::vector<Cell> &results, Capture &capture,
                        opq_graph **graph);
opq_status run_capture(opq_capture *capture, const opq_capture_call &call); // without the interpreter lock
// What was made meanwhile, is alive and none of the results.
std::vector<Cell> escaped_cells(const Capturing &capturing, const std::vector<Cell> &results);
std::vector<opq_cell *> pointers(const std::vector<Cell> &cells);
std::vector<Cell> owned(const std::vector<opq_cell *> &references); // takes them over

// What the numbers of a capture are at a call.
class Numbers
{
  public:
    Numbers() = default;
    // Of what was captured: how far each generator went.
    explicit Numbers(const Capturing &capturing);
    // Draws are taken from the generators.
    std::vector<opq_number> take(const HostProgram::Run &host) const;
    void give_back() const; // nothing was drawn

  private:
    struct Generator {
        at::Generator generator;
        int64_t draws;
    };
    std::vector<Generator> generators_;
    std::vector<NumberSource> sources_;
};

// The gradients of a captured function: a capture of its own, whose cells the forward call has made or read.
struct Backward {
    struct Source {
        enum class Kind { made, cell, gradient, kept } kind;
        size_t index; // made: of the forward capture's results; cell: of its cells; gradient: which one comes in
        Cell cell;    // kept
    };
    struct Checked { // the tensor whose version must not change until then
        bool kept;
        size_t index;
    };
    Capture capture;
    size_t made_count; // of its results
    Numbers numbers;
    std::vector<Source> sources;
    std::vector<Checked> checked;
    HostProgram program;
    std::vector<std::optional<ResultTensor>> results; // per input of the forward function that requires grad
    std::vector<std::pair<at::ScalarType, Dims>> incoming;
};

// Hooks of a leaf, in order: on its gradient, and on what that comes to.
template <class F> void for_each_hook(const Tensor &leaf, F &&take)
{
    const py::object object = py::reinterpret_steal<py::object>(THPVariable_Wrap(leaf));
    const auto *const of = reinterpret_cast<const THPVariable *>(object.ptr());
    for (PyObject *const hooks : {of->backward_hooks, of->post_accumulate_grad_hooks}) {
        PyObject *key, *hook;
        Py_ssize_t at = 0;
        while (hooks && PyDict_Check(hooks) && PyDict_Next(hooks, &at, &key, &hook))
            take(hook);
    }
}

// The graph of outputs, cut off where it goes on to inputs while the gradient between the two is recorded: what inputs were computed of, one of the
// other maybe, and their hooks are no part of it. Each is met where `ends` are instead, leaves. An input that is there twice is met once.
class CutGraph
{
  public:
    CutGraph(const std::vector<Tensor> &outputs, const std::vector<Tensor> &inputs);
    ~CutGraph() { restore(); }
    CutGraph(const CutGraph &) = delete;
    CutGraph &operator=(const CutGraph &) = delete;
    void restore();
    const std::vector<Tensor> &ends() const { return ends_; }

  private:
    struct Edge {
        c10::intrusive_ptr<torch::autograd::Node> node;
        size_t index;
        torch::autograd::Edge before;
    };
    std::vector<Tensor> ends_;
    std::vector<Edge> cut_;
};

class Captured
{
  public:
    // What `capturing`, which has ended, noted of fn(*args, **kwargs) -> result, and computes the result. nullptr, with capturing.refused, if a
    // call needs Python: then all is pending as it was.
    // `free`: floats and integers that may be others, see Tree.
    static std::unique_ptr<Captured> make(Capturing &capturing, const py::tuple &args, const py::dict &kwargs,
                                          const py::object &result, const std::vector<int> &free, bool inspected);
    // Results with a gradient, and those of the tensors reached that they may depend on.
    const std::vector<Tensor> &outputs() const { return outputs_; }
    const std::vector<Tensor> &inputs() const { return inputs_; }
    // `capturing`, which has ended, noted how `gradients`, of inputs(), undefined where there is none, came from `incoming` ones of outputs(). False,
    // with capturing.refused: it needs Python.
    bool add_backward(Capturing &capturing, const std::vector<Tensor> &incoming, const std::vector<Tensor> &gradients);
    // The results of the call that was recorded, as run() gives them; nothing else of this call is needed any more.
    py::object first_result();
    // Does something outlive the call, besides its results, now that these and their graph are gone? To be asked once.
    bool leaks();

    void watch(WatchedDict dict) { watched_.push_back(std::move(dict)); }
    // args: positional ones, then the values of `names` (a tuple or nullptr). `why`: what is different, unless nullptr.
    bool matches(const ThreadState &state, PyObject *const *args, size_t positional, PyObject *names, Match &match,
                 std::string *why);
    // Does what is computed on the host come out as it did, too? Nothing is changed.
    bool fits(const Match &match) const;
    // The result; none if something is of another size below, and has to be recorded anew.
    py::object run(Match &match);
    // "" if a call of `other` does what a call of this one does; else "graph", "number K", "constant K" (of the recorded graph) or what else is different.
    std::string difference(const Captured &other) const;
    py::object traced = py::none();                 // Python's: which numbers may be others
    py::object inspection = py::none();             // of the recorded graph, if somebody wants it
    int traverse(visitproc visit, void *arg) const; // for Python's garbage collector
    opq_capture_info info() const { return opq_capture_describe(capture_.get()); }

  private:
    struct CellSource {
        enum class Kind { argument, kept, cell } kind;
        size_t index;
        Cell cell;
        bool written;
    };
    struct Gradient { // of a leaf
        bool kept;
        size_t index;  // of the argument or the kept tensor
        bool any;      // what it is at the start does not matter
        Tensor before; // what it is then, undefined: none
        int read; // of the kept tensors, which it is: another one of such a kind is read in its place; -1: that very one it has to be
        enum class After { same, none, made } after;
        ResultTensor made;
        std::vector<py::object> hooks; // that Python gave it
    };
    Captured() = default;
    void sort_tensors(Capturing &capturing);
    void add_sources(const Capturing &capturing);
    void add_gradients(Capturing &capturing);
    bool check_history(Capturing &capturing) const;
    ResultTensor describe(const Tensor &tensor, const Capturing &capturing);
    void add_results(const Leaves &leaves, Capturing &capturing);
    bool check_escaped(Capturing &capturing);
    bool check_host(Capturing &capturing, const Leaves &leaves) const;
    bool match_arguments(Match &match, std::string *why);
    bool match_kept(std::string *why);
    bool match_gradients(const Match &match, std::string *why);
    bool take_gradient(Gradient &gradient, const Tensor &now);
    bool match_sharing(const Match &match, std::string *why) const;
    void bind(Match &match) const;
    Tensor tensor_of(const ResultTensor &result, const Match &match, const std::vector<Cell> &made) const;
    py::object build(const Match &match, const std::vector<Cell> &made, const HostProgram::Run &host);
    py::object host_result(size_t i, const Match &match, const HostProgram::Run &host) const;
    void add_host_results(const Leaves &leaves, Capturing &capturing);
    c10::intrusive_ptr<torch::autograd::Node> make_node(const Match &match, const std::vector<Cell> &made,
                                                        const HostProgram::Run &host) const;
    void find_differentiable(const Leaves &leaves, const Capturing &capturing);
    const Tensor &leaf(const Gradient &gradient, const Match &match) const;

    ThreadState state_{};
    std::vector<Tree> arguments_;
    py::tuple names_;
    size_t positional_ = 0;
    std::vector<TensorShape> shapes_;     // of the arguments' tensors
    std::vector<char> shiftable_;         // likewise
    std::vector<int> first_of_, in_kept_; // likewise: the first one of the same memory; the kept one of it, -1
    std::vector<at::Tensor> example_;     // likewise, while it is made
    std::vector<at::Tensor> kept_;
    std::vector<TensorShape> kept_shapes_;
    std::vector<opq_cell *> kept_cells_;
    std::vector<CellSource> sources_;
    std::vector<Gradient> gradients_;
    std::vector<WatchedDict> watched_;
    std::optional<Tree> result_;
    std::vector<ResultTensor> results_;        // of its tensors
    std::vector<Cell> made_;                   // while it is made: cells of results, then of what their graph holds
    size_t result_cells_ = 0, made_count_ = 0; // so many of them are of results, and all
    std::vector<opq_cell *> met_;              // while it is made: the cells of the capture
    std::vector<Tensor> outputs_, inputs_;     // while it is made
    std::vector<std::pair<bool, size_t>> input_of_; // kept or argument, and which
    std::shared_ptr<Backward> backward_;
    Match first_;                     // of the call that was recorded
    std::vector<int> result_numbers_; // registers
    struct HostResult {
        bool argument;
        int index; // of the argument or the slot, -1: object
        py::object object;
    };
    std::vector<HostResult> host_results_;
    HostProgram program_;
    HostProgram::Run first_run_; // while it is made
    Numbers numbers_;
    Capture capture_;
};

// torch.accelerator.Graph of the device, once that has its name.
void register_graphs();

} // namespace opq
