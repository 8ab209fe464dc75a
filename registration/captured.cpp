#include "captured.h"

#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "lines.h"
#include "random.h"

namespace opq
{

// ---- numbers

Numbers::Numbers(const Capturing &capturing) : sources_(capturing.numbers)
{
    for (const Draws &draws : capturing.draws) {
        at::Generator generator = draws.generator;
        const std::lock_guard<std::mutex> lock(generator.mutex());
        const uint64_t now = generator.get_offset();
        generators_.push_back({generator, static_cast<int64_t>(now - draws.base)});
    }
}

std::vector<opq_number> Numbers::take(const HostProgram::Run &host) const
{
    std::vector<std::pair<uint64_t, uint64_t>> taken;
    for (const Generator &one : generators_)
        taken.push_back(take_draws(one.generator, one.draws));
    std::vector<opq_number> numbers(sources_.size());
    for (size_t i = 0; i < sources_.size(); ++i) {
        const NumberSource &source = sources_[i];
        switch (source.kind) {
        case NumberSource::Kind::seed: numbers[i].i = static_cast<int64_t>(taken[source.index].first); break;
        case NumberSource::Kind::offset:
            numbers[i].i = static_cast<int64_t>(taken[source.index].second + source.delta);
            break;
        case NumberSource::Kind::integer: numbers[i].i = host.registers[source.index].i; break;
        case NumberSource::Kind::real: numbers[i].f = host.registers[source.index].real(); break;
        }
    }
    return numbers;
}

void Numbers::give_back() const
{
    for (const Generator &one : generators_)
        take_draws(one.generator, -one.draws);
}

// ---- captures of the core

opq_status make_capture(const Capturing &capturing, const std::vector<Cell> &results, Capture &capture, opq_graph **graph)
{
    const std::vector<opq_cell *> cells = pointers(results);
    opq_capture *made = nullptr;
    const PythonUnlocked unlocked;
    const opq_status status =
        opq_capture_make(capturing.core, cells.data(), static_cast<int>(cells.size()), &made, graph);
    capture.reset(made);
    return status;
}

opq_status run_capture(opq_capture *capture, const opq_capture_call &call)
{
    const PythonUnlocked unlocked;
    return opq_capture_run(capture, &call);
}

std::vector<Cell> escaped_cells(const Capturing &capturing, const std::vector<Cell> &results)
{
    const std::vector<opq_cell *> known = pointers(results);
    const int count = static_cast<int>(known.size());
    std::vector<opq_cell *> found(
        static_cast<size_t>(opq_capturing_escaped(capturing.core, known.data(), count, nullptr, 0)));
    opq_capturing_escaped(capturing.core, known.data(), count, found.data(), static_cast<int>(found.size()));
    return owned(found);
}

std::vector<opq_cell *> pointers(const std::vector<Cell> &cells)
{
    std::vector<opq_cell *> result;
    for (const Cell &cell : cells)
        result.push_back(cell.get());
    return result;
}

std::vector<Cell> owned(const std::vector<opq_cell *> &references)
{
    std::vector<Cell> result;
    for (opq_cell *const cell : references)
        result.push_back(Cell::take(cell));
    return result;
}

ResultTensor::ResultTensor(const Tensor &tensor)
    : dtype(tensor.scalar_type()), sizes(tensor.sizes().begin(), tensor.sizes().end()),
      strides(tensor.strides().begin(), tensor.strides().end()), offset(tensor.storage_offset()),
      requires_grad(tensor.requires_grad()), negative(tensor.is_neg()), conjugate(tensor.is_conj())
{
}

Tensor ResultTensor::on(Cell cell, int64_t shift) const
{
    const caffe2::TypeMeta type = c10::scalarTypeToTypeMeta(dtype);
    Tensor tensor =
        make_tensor(std::move(cell), type, sizes, strides, offset + shift / static_cast<int64_t>(type.itemsize()));
    if (negative)
        tensor._set_neg(true);
    if (conjugate)
        tensor._set_conj(true);
    return tensor;
}

// ---- matching

bool Captured::match_arguments(Match &match, std::string *why)
{
    for (size_t i = 0; i < shapes_.size(); ++i) {
        const Tensor &tensor = THPVariable_Unpack(match.leaves.tensors[i]);
        if (!shapes_[i].matches(tensor, shiftable_[i] != 0)) {
            if (why)
                *why = c10::str("tensor ", i, " of the arguments: ", shapes_[i].difference(tensor, shiftable_[i] != 0));
            return false;
        }
        match.arguments.push_back(py::reinterpret_borrow<py::object>(match.leaves.tensors[i]));
    }
    return true;
}

namespace
{

// Where a cell is first among `cells`, by number. Many questions about many cells are answered from a table: places of the hash, linear probing.
class Firsts
{
  public:
    Firsts(c10::ArrayRef<const opq_cell *> cells, size_t questions) : cells_(cells)
    {
        constexpr size_t few = 1024;
        if (cells.size() * questions <= few)
            return;
        size_t places = 1;
        while (places < 2 * cells.size())
            places *= 2;
        table_.assign(places, -1);
        for (size_t i = 0; i < cells.size(); ++i)
            if (int32_t &place = table_[find(cells[i])]; place < 0)
                place = static_cast<int32_t>(i);
    }
    int of(const opq_cell *cell) const // -1: nowhere
    {
        if (!table_.empty())
            return table_[find(cell)];
        const auto *const found = std::find(cells_.begin(), cells_.end(), cell);
        return found == cells_.end() ? -1 : static_cast<int>(found - cells_.begin());
    }

  private:
    // The place that the cell has, or would have.
    size_t find(const opq_cell *cell) const
    {
        size_t at = std::hash<const void *>()(cell) / alignof(std::max_align_t) * 0x9e3779b97f4a7c15u >> 32;
        for (at &= table_.size() - 1; table_[at] >= 0 && cells_[static_cast<size_t>(table_[at])] != cell;)
            at = (at + 1) & (table_.size() - 1);
        return at;
    }

    c10::ArrayRef<const opq_cell *> cells_;
    c10::SmallVector<int32_t, 256> table_;
};

} // namespace

// A tensor may have got other memory (`p.data = q`, another gradient), but shares it with those with which it did.
bool Captured::match_kept(std::string *why)
{
    c10::SmallVector<const opq_cell *, 32> now;
    bool same = true;
    for (size_t i = 0; i < kept_.size(); ++i) {
        if (!kept_shapes_[i].matches(kept_[i], false)) {
            if (why)
                *why = c10::str("a tensor that it reads, ", kept_shapes_[i].difference(kept_[i], false));
            return false;
        }
        now.push_back(cell_of(kept_[i]));
        same = same && now.back() == kept_cells_[i];
    }
    if (same)
        return true;
    const c10::SmallVector<const opq_cell *, 32> before(kept_cells_.begin(), kept_cells_.end());
    const Firsts firsts(now, now.size()), firsts_before(before, before.size());
    for (size_t i = 0; i < kept_.size(); ++i)
        if (firsts.of(now[i]) != firsts_before.of(before[i])) {
            if (why)
                *why = "other tensors that it reads have one memory";
            return false;
        }
    for (size_t i = 0; i < kept_.size(); ++i)
        kept_cells_[i] = cell_of(kept_[i]);
    return true;
}

const Tensor &Captured::leaf(const Gradient &gradient, const Match &match) const
{
    return gradient.kept ? kept_[gradient.index] : match.argument(gradient.index);
}

// A new gradient is read in the place of one that nobody else has any more: the function can have it from the leaf alone.
bool Captured::take_gradient(Gradient &gradient, const Tensor &now)
{
    constexpr size_t ours = 2;
    if (gradient.read < 0 || !gradient.before.defined() || !now.defined())
        return false;
    Tensor &kept = kept_[static_cast<size_t>(gradient.read)];
    if (!kept.is_same(gradient.before) || !are_all_references(kept, ours) || !impl_or_null(now))
        return false;
    kept = gradient.before = now;
    return true;
}

namespace
{

bool same_hooks(const Tensor &leaf, const std::vector<py::object> &before)
{
    size_t count = 0;
    bool same = true;
    for_each_hook(leaf, [&](PyObject *hook) {
        same = same && count < before.size() && before[count].ptr() == hook;
        ++count;
    });
    return same && count == before.size();
}

} // namespace

bool Captured::match_gradients(const Match &match, std::string *why)
{
    for (Gradient &gradient : gradients_) {
        const Tensor &of = leaf(gradient, match);
        if (torch::autograd::impl::grad_fn_unsafe(of)) {
            if (why)
                *why = "what was a leaf is computed of others";
            return false;
        }
        if (!same_hooks(of, gradient.hooks)) {
            if (why)
                *why = "a parameter has other hooks";
            return false;
        }
        const Tensor &now = of.grad();
        if (gradient.any || (now.defined() ? now.is_same(gradient.before) : !gradient.before.defined()) ||
            take_gradient(gradient, now))
            continue;
        if (why)
            *why = now.defined() ? "a parameter has a gradient, or another one" : "a parameter has no gradient";
        return false;
    }
    return true;
}

// Which of the arguments share memory, with each other and with what is read otherwise.
bool Captured::match_sharing(const Match &match, std::string *why) const
{
    c10::SmallVector<const opq_cell *, 32> cells;
    for (size_t i = 0; i < match.arguments.size(); ++i)
        cells.push_back(cell_of(match.argument(i)));
    const c10::SmallVector<const opq_cell *, 32> kept_cells(kept_cells_.begin(), kept_cells_.end());
    const Firsts arguments(cells, cells.size()), kept_firsts(kept_cells, cells.size());
    for (size_t i = 0; i < cells.size(); ++i) {
        const int kept = in_kept_[i];
        const bool same = arguments.of(cells[i]) == first_of_[i] &&
                          (kept < 0 ? kept_firsts.of(cells[i]) < 0 : kept_cells[static_cast<size_t>(kept)] == cells[i]);
        if (same)
            continue;
        if (why)
            *why = c10::str("tensor ", i, " of the arguments shares memory with others than it did");
        return false;
    }
    return true;
}

bool Captured::matches(const ThreadState &state, PyObject *const *args, size_t positional, PyObject *names,
                       Match &match, std::string *why)
{
    const size_t named = names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0;
    if (positional != positional_ || positional + named != arguments_.size()) {
        if (why)
            *why = "other arguments are given";
        return false;
    }
    if (named > 0 && !py::reinterpret_borrow<py::object>(names).equal(names_)) {
        if (why)
            *why = "arguments of other names are given";
        return false;
    }
    if (const char *const difference = state_.difference(state)) {
        if (why)
            *why = difference;
        return false;
    }
    for (size_t i = 0; i < arguments_.size(); ++i)
        if (!arguments_[i].matches(args[i], match.leaves, why)) {
            if (why)
                *why = c10::str("argument ", i, ": ", *why);
            return false;
        }
    if (!match_arguments(match, why) || !match_gradients(match, why) || !match_kept(why) || !match_sharing(match, why))
        return false;
    for (WatchedDict &dict : watched_)
        if (!dict.holds(why, &match.item))
            return false;
    return match.leaves.changed.empty();
}

// ---- running

void Match::pin()
{
    for (opq_cell *const cell : cells)
        pins.push_back(held(cell));
}

void Captured::bind(Match &match) const
{
    for (const CellSource &source : sources_) {
        int64_t shift = 0;
        if (source.kind == CellSource::Kind::argument) {
            const Tensor &tensor = match.argument(source.index);
            shift = (tensor.storage_offset() - shapes_[source.index].offset) * static_cast<int64_t>(tensor.itemsize());
            match.cells.push_back(cell_of(tensor));
        } else {
            match.cells.push_back(source.kind == CellSource::Kind::kept ? kept_cells_[source.index] : source.cell.get());
        }
        match.shifts.push_back(shift);
    }
}

Tensor Captured::tensor_of(const ResultTensor &result, const Match &match, const std::vector<Cell> &made) const
{
    switch (result.kind) {
    case ResultTensor::Kind::argument: return match.argument(result.index);
    case ResultTensor::Kind::kept: return kept_[result.index];
    case ResultTensor::Kind::view: return result.on(held(match.cells[result.index]), match.shifts[result.index]);
    case ResultTensor::Kind::made:
    case ResultTensor::Kind::again: break;
    }
    return result.on(made[result.index]);
}

namespace
{

// What backward() of a result meets whose graph the function has gone through.
void spend(Tensor &tensor)
{
    auto error =
        c10::make_intrusive<torch::autograd::Error>("Trying to backward through the graph a second time: it is the "
                                                    "result of a captured function, in which backward() "
                                                    "went through it already");
    torch::autograd::create_gradient_edge(tensor, std::move(error));
}

} // namespace

bool Captured::fits(const Match &match) const
{
    HostProgram::Run host;
    host.trial = true;
    const bool fits = !program_.guards() || program_.run(match.leaves, host, nullptr);
    HostProgram::undo(host);
    return fits;
}

py::object Captured::run(Match &match)
{
    bind(match);
    for (PyObject *const host : match.leaves.hosts) // a list that has it may lose it while another thread runs Python
        match.leaves.kept.push_back(py::reinterpret_borrow<py::object>(host));
    std::vector<opq_cell *> cells(made_count_, nullptr);
    HostProgram::Run host;
    if (!program_.empty() && !program_.run(match.leaves, host, nullptr))
        return {};
    const std::vector<opq_number> numbers = numbers_.take(host);
    static_assert(sizeof(Value) == sizeof(opq_value *));
    const opq_capture_call call{match.cells.data(), match.shifts.data(), numbers.data(),
                                reinterpret_cast<opq_value *const *>(host.uploads.data()), cells.data()};
    bool ran = false;
    opq_status status = opq_capture_run_now(capture_.get(), &call, &ran);
    if (status == OPQ_OK && !ran) {
        match.pin();
        status = run_capture(capture_.get(), call);
    }
    if (status != OPQ_OK)
        numbers_.give_back();
    if (status == OPQ_UNSUPPORTED) {
        TORCH_CHECK(!program_.writes() || !host.before.empty(),
                    "a captured function found other tensors than before, after it had "
                    "written to tensors of the CPU: ",
                    opq_error());
        HostProgram::undo(host);
        return {};
    }
    check(status);
    const std::vector<Cell> made = owned(cells);
    for (const CellSource &source : sources_)
        if (source.written && source.kind != CellSource::Kind::cell) {
            const Tensor &tensor =
                source.kind == CellSource::Kind::kept ? kept_[source.index] : match.argument(source.index);
            if (!tensor.is_inference())
                tensor.unsafeGetTensorImpl()->bump_version();
        }
    for (const Gradient &gradient : gradients_)
        if (gradient.after != Gradient::After::same)
            leaf(gradient, match).mutable_grad() =
                gradient.after == Gradient::After::made ? tensor_of(gradient.made, match, made) : Tensor();
    return build(match, made, host);
}

py::object Captured::host_result(size_t i, const Match &match, const HostProgram::Run &host) const
{
    const HostResult &one = host_results_[i];
    if (one.argument)
        return py::reinterpret_borrow<py::object>(match.leaves.hosts[static_cast<size_t>(one.index)]);
    if (one.index < 0 || host.slots.empty())
        return one.object;
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(host.slots[static_cast<size_t>(one.index)]));
}

py::object Captured::build(const Match &match, const std::vector<Cell> &made, const HostProgram::Run &host)
{
    const auto node = backward_ ? make_node(match, made, host) : nullptr;
    std::vector<py::object> tensors;
    for (const ResultTensor &result : results_) {
        if (result.kind == ResultTensor::Kind::again) {
            tensors.push_back(tensors[result.index]);
            continue;
        }
        if (result.kind == ResultTensor::Kind::argument) {
            tensors.push_back(match.arguments[result.index]);
            continue;
        }
        Tensor tensor = tensor_of(result, match, made);
        if (result.requires_grad && result.kind != ResultTensor::Kind::kept) {
            if (node)
                torch::autograd::create_gradient_edge(tensor, node);
            else
                spend(tensor);
        }
        tensors.push_back(py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(tensor))));
    }
    std::vector<py::object> numbers, hosts;
    for (const int reg : result_numbers_)
        numbers.push_back(host.registers[static_cast<size_t>(reg)].python());
    for (size_t i = 0; i < host_results_.size(); ++i)
        hosts.push_back(host_result(i, match, host));
    return result_->build(tensors, numbers, hosts);
}

} // namespace opq
