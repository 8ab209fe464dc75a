// Gradients of captured functions: what backward() of a result does is captured with the function, and is a node of autograd at each call.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <unordered_set>

#include "captured.h"
#include "lines.h"

namespace opq
{

namespace
{

using torch::autograd::variable_list;

struct CapturedBackward final : torch::autograd::Node {
    std::shared_ptr<const Backward> backward;
    std::vector<Cell> cells; // of the capture; none where a gradient comes in
    struct Version {
        Tensor tensor;
        uint32_t version;
    };
    std::vector<Version> versions;
    std::vector<Register> registers; // of the forward call
    std::mutex mutex;

    variable_list apply(variable_list &&incoming) override;
    std::string name() const override { return "CapturedBackward"; }
    void release_variables() override
    {
        const std::lock_guard<std::mutex> lock(mutex);
        cells.clear();
        versions.clear();
    }
    void check_versions() const
    {
        for (const Version &one : versions)
            TORCH_CHECK(
                one.tensor._version() == one.version, "one of the variables needed for gradient computation has been modified by an inplace operation: [opaque ",
                one.tensor.scalar_type(), " ", one.tensor.sizes(), "] is at version ", one.tensor._version(),
                "; expected version ", one.version, " instead. It is read by a captured function");
    }
};

Tensor dense(const Tensor &gradient, const std::pair<at::ScalarType, Dims> &shape)
{
    const auto options = at::TensorOptions().dtype(shape.first).device(device());
    if (!gradient.defined())
        return at::zeros(shape.second, options);
    const bool whole = gradient.is_contiguous() && impl_or_null(gradient) && !gradient.is_neg() && !gradient.is_conj() &&
                       opq_cell_bytes(impl_of(gradient)->cell()) == static_cast<int64_t>(gradient.nbytes());
    return whole ? gradient : gradient.resolve_neg().resolve_conj().clone(at::MemoryFormat::Contiguous);
}

variable_list CapturedBackward::apply(variable_list &&incoming)
{
    const std::lock_guard<std::mutex> lock(mutex);
    TORCH_CHECK(!c10::GradMode::is_enabled(),
                "gradients of a captured function have none of their own (create_graph=True): call "
                "the function that was captured instead");
    TORCH_CHECK(
        !cells.empty() || backward->sources.empty(),
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
        "been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). "
        "Specify retain_graph=True if you need to backward through the graph a second time");
    check_versions();
    std::vector<Tensor> gradients;
    std::vector<opq_cell *> all;
    for (size_t i = 0; i < backward->incoming.size(); ++i)
        gradients.push_back(dense(incoming[i], backward->incoming[i]));
    for (size_t i = 0; i < backward->sources.size(); ++i)
        all.push_back(backward->sources[i].kind == Backward::Source::Kind::gradient
                          ? impl_of(gradients[backward->sources[i].index])->cell()
                          : cells[i].get());
    std::vector<opq_cell *> made(backward->made_count, nullptr);
    HostProgram::Run host;
    if (!backward->program.empty()) {
        const py::gil_scoped_acquire lock;
        std::string why;
        TORCH_CHECK(backward->program.run({}, host, &why, &registers),
                    "the gradient of a captured function does not fit: ", why);
    }
    const std::vector<opq_number> numbers = backward->numbers.take(host);
    const opq_capture_call call{all.data(), nullptr, numbers.data(), nullptr, made.data()};
    const opq_status status = run_capture(backward->capture.get(), call);
    check(status == OPQ_UNSUPPORTED
              ? opq_fail(OPQ_INTERNAL, "what a captured function saved for its gradient has changed")
              : status);
    const std::vector<Cell> owners = owned(made);
    variable_list results;
    for (const auto &result : backward->results) {
        const bool view = result && result->kind == ResultTensor::Kind::view;
        results.push_back(result ? result->on(view ? held(all[result->index]) : owners[result->index]) : Tensor());
    }
    return results;
}

// What is written to a result later is no matter of its gradient.
Cell own_copy(const Cell &cell)
{
    const Value value = Value::take(opq_cell_value(cell.get()));
    opq_cell *copy = nullptr;
    if (!value)
        return cell;
    check(opq_cell_from_value(context(), value.get(), &copy));
    return Cell::take(copy);
}

} // namespace

CutGraph::CutGraph(const std::vector<Tensor> &outputs, const std::vector<Tensor> &inputs)
{
    using torch::autograd::impl::gradient_edge;
    std::map<std::pair<const torch::autograd::Node *, uint32_t>, torch::autograd::Edge> instead;
    for (const Tensor &input : inputs) {
        ends_.push_back(input.detach().requires_grad_());
        const torch::autograd::Edge edge = gradient_edge(input);
        instead.emplace(std::pair(edge.function.get(), edge.input_nr), gradient_edge(ends_.back()));
    }
    std::vector<c10::intrusive_ptr<torch::autograd::Node>> open;
    std::unordered_set<const torch::autograd::Node *> seen;
    for (const Tensor &output : outputs)
        open.push_back(gradient_edge(output).function);
    while (!open.empty()) {
        const auto node = open.back();
        open.pop_back();
        if (!node || !seen.insert(node.get()).second)
            continue;
        for (size_t i = 0; i < node->next_edges().size(); ++i) {
            torch::autograd::Edge &edge = node->next_edges()[i];
            const auto found = instead.find({edge.function.get(), edge.input_nr});
            if (found == instead.end()) {
                open.push_back(edge.function);
            } else {
                cut_.push_back({node, i, edge});
                edge = found->second;
            }
        }
    }
}

void CutGraph::restore()
{
    for (const Edge &one : cut_)
        one.node->next_edges()[one.index] = one.before;
    cut_.clear();
}

bool Captured::add_backward(Capturing &capturing, const std::vector<Tensor> &incoming,
                            const std::vector<Tensor> &gradients)
{
    auto made = std::make_shared<Backward>();
    const int count = opq_capturing_cell_count(capturing.core);
    std::vector<Cell> results;
    for (const Tensor &tensor : incoming)
        made->incoming.emplace_back(tensor.scalar_type(), Dims(tensor.sizes().begin(), tensor.sizes().end()));
    for (const Tensor &tensor : gradients) {
        if (!tensor.defined()) {
            made->results.emplace_back();
            continue;
        }
        ResultTensor result(tensor);
        if (tensor.is_neg() || tensor.is_conj())
            capturing.refuse("a gradient is a negated or conjugated view");
        const Cell &cell = impl_of(tensor)->cell_ref();
        if (const int met = opq_capturing_find(capturing.core, cell.get()); met >= 0) {
            result.kind = ResultTensor::Kind::view;
            result.index = static_cast<size_t>(met);
        } else {
            while (result.index < results.size() && results[result.index].get() != cell.get())
                ++result.index;
            if (result.index == results.size())
                results.push_back(cell);
        }
        made->results.emplace_back(std::move(result));
    }
    for (int i = 0; i < count; ++i) {
        opq_cell *const cell = opq_capturing_cell(capturing.core, i);
        Backward::Source source{Backward::Source::Kind::kept, 0, {}};
        const auto is_it = [cell](const auto &one) {
            if constexpr (std::is_same_v<std::decay_t<decltype(one)>, Cell>)
                return one.get() == cell;
            else if constexpr (std::is_same_v<std::decay_t<decltype(one)>, Tensor>)
                return impl_of(one)->cell() == cell;
            else
                return one == cell;
        };
        const auto place = [&](const auto &list, Backward::Source::Kind kind) {
            const auto found = std::find_if(list.begin(), list.end(), is_it);
            if (found == list.end())
                return false;
            source.kind = kind;
            source.index = static_cast<size_t>(found - list.begin());
            return true;
        };
        if (!place(incoming, Backward::Source::Kind::gradient) && !place(made_, Backward::Source::Kind::made) &&
            !place(met_, Backward::Source::Kind::cell)) {
            source.cell = held(cell);
        }
        if (opq_capturing_wrote(capturing.core, i))
            capturing.refuse("its gradient writes into a tensor that was there before");
        if (source.kind == Backward::Source::Kind::cell && sources_[source.index].kind != CellSource::Kind::cell)
            made->checked.push_back({sources_[source.index].kind == CellSource::Kind::kept, sources_[source.index].index});
        made->sources.push_back(std::move(source));
    }
    if (!capturing.refused.empty())
        return false;
    const opq_status status = make_capture(capturing, results, made->capture, nullptr);
    if (status == OPQ_UNSUPPORTED) {
        capturing.refuse(opq_error());
        return false;
    }
    check(status);
    made->made_count = results.size();
    if (capturing.program.uploads() || capturing.program.writes()) {
        capturing.refuse("its gradient works on tensors of the CPU");
        return false;
    }
    made->numbers = Numbers(capturing);
    made->program = std::move(capturing.program);
    made->program.finish();
    backward_ = std::move(made);
    return true;
}

c10::intrusive_ptr<torch::autograd::Node> Captured::make_node(const Match &match, const std::vector<Cell> &made,
                                                              const HostProgram::Run &host) const
{
    auto node = c10::make_intrusive<CapturedBackward>();
    node->backward = backward_;
    node->registers = host.registers;
    for (const Backward::Source &source : backward_->sources) {
        switch (source.kind) {
        case Backward::Source::Kind::made: node->cells.push_back(own_copy(made[source.index])); break;
        case Backward::Source::Kind::cell: node->cells.push_back(held(match.cells[source.index])); break;
        case Backward::Source::Kind::gradient: node->cells.emplace_back(); break;
        case Backward::Source::Kind::kept: node->cells.push_back(source.cell); break;
        }
    }
    for (const Backward::Checked &one : backward_->checked) {
        const Tensor &tensor = one.kept ? kept_[one.index] : match.argument(one.index);
        if (!tensor.is_inference())
            node->versions.push_back({tensor.detach(), static_cast<uint32_t>(tensor._version())});
    }
    for (const auto &[kept, index] : input_of_)
        node->add_next_edge(torch::autograd::impl::gradient_edge(kept ? kept_[index] : match.argument(index)));
    return node;
}

} // namespace opq
