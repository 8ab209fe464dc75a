// LSTMs and GRUs. PyTorch multiplies the inputs of all steps by the weights at once on the CPU alone; elsewhere step by step, which is a
// product, its two gradients and the biases' sums for each step. Here all steps are one, and what is left of a step is the hidden state's
// product and the cell (cells.cpp), a kernel each. A direction of a layer is one node for autograd: its gradients are recorded as values,
// step by step only where a step needs the one behind it; the weights' gradients are products of all steps at once.
// Where something looks at the single operators (functorch, forward derivatives, Python modes, autocast), and for gradients of gradients,
// it is differentiable operators instead.
#include "cells.h"

#include <ATen/autocast_mode.h>
#include <ATen/FuncTorchTLS.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "below.h"

namespace opq
{

namespace
{

using MaybeTensor = std::optional<Tensor>;
using Variables = torch::autograd::variable_list;

bool given(const MaybeTensor &tensor) { return tensor && tensor->defined(); }

// ---- one direction of a layer

struct Direction {
    Tensor outputs, h;
    MaybeTensor c;
};

// What a direction is made of. Inputs: [steps, batch, inputs]; states: [batch, hidden], c of an LSTM alone; weights: of inputs
// [gates * hidden, inputs], of the hidden state [gates * hidden, hidden]; biases: both or none.
struct Parts {
    Tensor x, h, w_input, w_hidden;
    MaybeTensor c, b_input, b_hidden;
    bool backwards;

    bool is_lstm() const { return given(c); }
    size_t kept() const { return is_lstm() ? 5 : 4; } // of a step, for gradients: its gates and c
    int64_t steps() const { return x.size(0); }
    int64_t batch() const { return x.size(1); }
    int64_t at(int64_t i) const { return backwards ? steps() - 1 - i : i; } // where the step after i others is
};

// As differentiable operators.
Direction run_openly(const Parts &p)
{
    const bool biased = given(p.b_input);
    const MaybeTensor both = biased && p.is_lstm() ? MaybeTensor(at::add(*p.b_input, *p.b_hidden)) : p.b_input;
    const std::vector<Tensor> gates = at::linear(p.x, p.w_input, both).unbind(0);
    std::vector<Tensor> outputs(gates.size());
    Tensor h = p.h;
    MaybeTensor c = p.c;
    for (int64_t i = 0; i < p.steps(); ++i) {
        const auto at = static_cast<size_t>(p.at(i));
        if (p.is_lstm())
            std::tie(h, c, std::ignore) = at::_thnn_fused_lstm_cell(gates[at], at::linear(h, p.w_hidden), *c, {}, {});
        else
            h = std::get<0>(at::_thnn_fused_gru_cell(gates[at], at::linear(h, p.w_hidden, p.b_hidden), h, {}, {}));
        outputs[at] = h;
    }
    return {at::stack(outputs, 0), h, c};
}

Value product(const Value &a, const Value &b, opq_attr_key transposed = OPQ_ATTR_key)
{
    if (transposed == OPQ_ATTR_key)
        return record(OPQ_OP_matmul, {a, b});
    return record(OPQ_OP_matmul, {a, b}, {attr_int(transposed, 1)});
}

Value flat(const Tensor &sequence) // [steps * batch, columns]
{
    return reshape(read(sequence), {sequence.size(0) * sequence.size(1), sequence.size(2)});
}

Value rows_of(const Parts &p, const Value &all, int64_t step) // those of one step
{
    return slice(all, 0, step * p.batch(), p.batch());
}

// As values; `kept`, unless NULL, gets what gradients need of each step.
Direction run_directly(const Parts &p, Variables *kept)
{
    const at::ScalarType dtype = p.x.scalar_type();
    const Value weight = read(p.w_hidden), b_hidden = given(p.b_hidden) ? read(*p.b_hidden) : Value();
    Value gates = product(flat(p.x), read(p.w_input), OPQ_ATTR_transpose_b), h = read(p.h),
          c = p.is_lstm() ? read(*p.c) : Value();
    if (b_hidden)
        gates = plus(gates, p.is_lstm() ? plus(read(*p.b_input), b_hidden) : read(*p.b_input));
    std::vector<Value> outputs(static_cast<size_t>(p.steps()));
    for (int64_t i = 0; i < p.steps(); ++i) {
        const Value own = rows_of(p, gates, p.at(i)), past = product(h, weight, OPQ_ATTR_transpose_b);
        RecurrentStep step =
            p.is_lstm() ? lstm_step(plus(own, past), c) : gru_step(own, b_hidden ? plus(past, b_hidden) : past, h);
        if (kept) {
            for (const Value &gate : step.gates)
                kept->push_back(wrap(gate, dtype));
            if (step.c)
                kept->push_back(wrap(step.c, dtype));
        }
        h = outputs[static_cast<size_t>(p.at(i))] = std::move(step.h);
        c = std::move(step.c);
    }
    const Value all = reshape(concat(outputs, 0), {p.steps(), p.batch(), p.h.size(1)});
    return {wrap(all, dtype), wrap(h, dtype), c ? MaybeTensor(wrap(c, dtype)) : std::nullopt};
}

// ---- its gradients

constexpr size_t INPUTS = 7; // of Parts: its tensors in their order

// Of the gates' sums of all steps, [steps * batch, gates * hidden], and of the first states.
struct SumGradients {
    Value from_input, from_hidden, h, c;
};

RecurrentStep kept_step(const Parts &p, const Tensor *kept)
{
    RecurrentStep step;
    for (size_t g = 0; g < 4; ++g)
        step.gates[g] = read(kept[g]);
    if (p.is_lstm())
        step.c = read(kept[4]);
    return step;
}

// grads: of outputs, of the last h and c; each may be undefined. kept: as run_directly() gave it.
SumGradients walk_back(const Parts &p, const Variables &grads, const Tensor &outputs, const Tensor *kept)
{
    const Value weight = read(p.w_hidden), first = read(p.h), all_h = flat(outputs),
                of_outputs = grads[0].defined() ? flat(grads[0]) : Value();
    const Value zero = expand(scalar(0, first.dtype()), shape_of(first));
    Value grad_h = grads[1].defined() ? read(grads[1]) : Value(),
          grad_c = p.is_lstm() && grads[2].defined() ? read(grads[2]) : Value();
    std::vector<Value> inputs(static_cast<size_t>(p.steps())), hiddens(inputs.size());
    for (int64_t i = p.steps() - 1; i >= 0; --i) {
        const Tensor *const mine = kept + static_cast<size_t>(i) * p.kept();
        const RecurrentStep step = kept_step(p, mine);
        if (of_outputs) {
            const Value own = rows_of(p, of_outputs, p.at(i));
            grad_h = grad_h ? plus(own, grad_h) : own;
        }
        if (!grad_h && !grad_c)
            grad_h = zero;
        RecurrentGradient made = p.is_lstm()
                                     ? lstm_gradient(step, i > 0 ? read(mine[-1]) : read(*p.c), grad_h, grad_c)
                                     : gru_gradient(step, i > 0 ? rows_of(p, all_h, p.at(i - 1)) : first, grad_h);
        grad_h = product(made.from_hidden, weight);
        if (made.h)
            grad_h = plus(grad_h, made.h);
        grad_c = std::move(made.c);
        inputs[static_cast<size_t>(p.at(i))] = std::move(made.from_input);
        hiddens[static_cast<size_t>(p.at(i))] = std::move(made.from_hidden);
    }
    const Value from_input = concat(inputs, 0);
    return {from_input, p.is_lstm() ? from_input : concat(hiddens, 0), grad_h, grad_c};
}

// The hidden state before each step, [steps * batch, hidden].
Value states_before(const Parts &p, const Tensor &outputs)
{
    const Value first = read(p.h), all = flat(outputs);
    const int64_t rest = (p.steps() - 1) * p.batch();
    if (rest == 0)
        return first;
    const Value others = slice(all, 0, p.backwards ? p.batch() : 0, rest);
    return p.backwards ? concat({others, first}, 0) : concat({first, others}, 0);
}

Variables saved_inputs(const Parts &p)
{
    return {p.x,
            p.h,
            p.w_input,
            p.w_hidden,
            p.c.value_or(Tensor()),
            p.b_input.value_or(Tensor()),
            p.b_hidden.value_or(Tensor())};
}

// `saved`: as saved_inputs() gave them, then the outputs, then what is kept of the steps.
void gradients(const Parts &p, const Variables &grads, const bool *wanted, const Variables &saved, Variables &result)
{
    const Below below;
    const at::ScalarType dtype = p.x.scalar_type();
    const SumGradients sums = walk_back(p, grads, saved[INPUTS], saved.data() + INPUTS + 1);
    const auto give = [&](size_t i, const auto &value_of) {
        if (wanted[i])
            result[i] = wrap(value_of(), dtype);
    };
    give(0, [&] { return reshape(product(sums.from_input, read(p.w_input)), p.x.sizes()); });
    give(1, [&] { return sums.h; });
    give(2, [&] { return product(sums.from_input, flat(p.x), OPQ_ATTR_transpose_a); });
    give(3, [&] { return product(sums.from_hidden, states_before(p, saved[INPUTS]), OPQ_ATTR_transpose_a); });
    give(4, [&] { return sums.c; });
    give(5, [&] { return reduce(OPQ_OP_sum, {sums.from_input}, {0}, false); });
    give(6, [&] { return reduce(OPQ_OP_sum, {sums.from_hidden}, {0}, false); });
}

// For gradients of gradients: runs the direction again, as operators. Aliases: one tensor in two places has a gradient for each.
void open_gradients(Parts p, const Variables &grads, const bool *wanted, Variables &result)
{
    for (Tensor *const tensor : {&p.x, &p.h, &p.w_input, &p.w_hidden})
        *tensor = at::alias(*tensor);
    for (MaybeTensor *const tensor : {&p.c, &p.b_input, &p.b_hidden})
        if (given(*tensor))
            *tensor = at::alias(**tensor);
    const Direction made = run_openly(p);
    const Variables all = saved_inputs(p), results{made.outputs, made.h, made.c.value_or(Tensor())};
    Variables inputs, outputs, seeds;
    for (size_t i = 0; i < INPUTS; ++i)
        if (wanted[i])
            inputs.push_back(all[i]);
    for (size_t i = 0; i < grads.size(); ++i)
        if (grads[i].defined()) {
            outputs.push_back(results[i]);
            seeds.push_back(grads[i]);
        }
    const Variables found = torch::autograd::grad(outputs, inputs, seeds, true, true, true);
    for (size_t i = 0, next = 0; i < INPUTS; ++i)
        if (wanted[i])
            result[i] = found[next++];
}

// One direction as one node.
class Sequence : public torch::autograd::Function<Sequence>
{
  public:
    static Variables forward(torch::autograd::AutogradContext *ctx, const Tensor &x, const Tensor &h,
                             const Tensor &w_input, const Tensor &w_hidden, const MaybeTensor &c,
                             const MaybeTensor &b_input, const MaybeTensor &b_hidden, bool backwards)
    {
        {
            const at::AutoGradMode on(true); // the node that was made last is this one, which gets its line
            note_line();
        }
        const Below below;
        const Parts p{x, h, w_input, w_hidden, c, b_input, b_hidden, backwards};
        Variables kept, saved = saved_inputs(p);
        const Direction made = guarded([&] { return run_directly(p, &kept); });
        saved.push_back(made.outputs);
        saved.insert(saved.end(), kept.begin(), kept.end());
        ctx->save_for_backward(std::move(saved));
        ctx->saved_data["backwards"] = backwards;
        ctx->set_materialize_grads(false);
        Variables results{made.outputs, made.h};
        if (made.c)
            results.push_back(*made.c);
        return results;
    }

    static Variables backward(torch::autograd::AutogradContext *ctx, const Variables &grads)
    {
        const Variables saved = ctx->get_saved_variables();
        const Parts p{saved[0], saved[1], saved[2], saved[3],
                      saved[4], saved[5], saved[6], ctx->saved_data["backwards"].toBool()};
        Variables result(INPUTS + 1); // the last is no tensor
        bool wanted[INPUTS] = {}, any_wanted = false, any_given = false;
        for (size_t i = 0, edge = 0; i < INPUTS; ++i) {
            wanted[i] = saved[i].defined() && ctx->needs_input_grad(edge++);
            any_wanted |= wanted[i];
        }
        for (const Tensor &grad : grads)
            any_given |= grad.defined();
        if (!any_wanted || !any_given)
            return result;
        note_line();
        if (at::GradMode::is_enabled())
            open_gradients(p, grads, wanted, result);
        else
            guarded([&] { gradients(p, grads, wanted, saved, result); });
        return result;
    }
};

// ---- which way

// Is a transform of functorch under way? It says so by refusing.
bool in_transform()
{
    const auto &state = at::functorch::functorchTLSAccessor();
    try {
        if (state)
            state->checkSupportsCppAutogradFunction();
        return false;
    } catch (const c10::Error &) {
        return true;
    }
}

// Does somebody look at the single operators, or are these no tensors of ours?
bool is_watched(const Variables &inputs)
{
    if (c10::impl::TorchDispatchModeTLS::any_modes_set() || in_transform() ||
        at::autocast::is_autocast_enabled(c10::kPrivateUse1))
        return true;
    for (const Tensor &tensor : inputs)
        if (tensor.defined() && (!impl_or_null(tensor) || tensor._fw_grad(0).defined() || is_raw(tensor)))
            return true;
    return false;
}

Direction run(const Parts &p)
{
    const Variables inputs = saved_inputs(p);
    if (is_watched(inputs))
        return run_openly(p);
    bool differentiable = false;
    for (const Tensor &tensor : inputs)
        differentiable |= tensor.defined() && tensor.requires_grad();
    if (!differentiable || !at::GradMode::is_enabled()) {
        note_line();
        const Below below;
        return guarded([&] { return run_directly(p, nullptr); });
    }
    const Variables made = Sequence::apply(p.x, p.h, p.w_input, p.w_hidden, p.c, p.b_input, p.b_hidden, p.backwards);
    return {made[0], made[1], p.is_lstm() ? MaybeTensor(made[2]) : std::nullopt};
}

// ---- all layers

struct Options {
    bool biases;
    int64_t layers;
    double dropout;
    bool train, bidirectional, batch_first;

    int64_t runs() const { return layers * (bidirectional ? 2 : 1); }
    size_t weights() const { return biases ? 4 : 2; } // of a direction
};

// Of one dtype, without projections, with a step at least, and of shapes that fit: what is not, PyTorch's own code judges. states: h, and
// c of an LSTM.
bool is_plain(const Tensor &input, at::TensorList states, at::TensorList params, const Options &o, int64_t gates)
{
    const size_t each = o.weights();
    if (input.dim() != 3 || input.numel() == 0 || o.runs() <= 0 || params.size() != static_cast<size_t>(o.runs()) * each ||
        !on_device(input) || !at::isFloatingType(input.scalar_type()))
        return false;
    for (const at::TensorList list : {states, params})
        for (const Tensor &tensor : list)
            if (!on_device(tensor) || tensor.scalar_type() != input.scalar_type() || tensor.dim() == 0)
                return false;
    for (const Tensor &state : states)
        if (state.dim() != 3 || state.sizes() != states[0].sizes() || state.size(0) != o.runs())
            return false;
    const int64_t hidden = states[0].size(2);
    bool plain = states[0].size(1) == input.size(o.batch_first ? 0 : 1) && params[0].dim() == 2 &&
                 params[0].size(1) == input.size(2);
    for (size_t i = 0; i < params.size(); i += each) {
        plain = plain && params[i].dim() == 2 && params[i].size(0) == gates * hidden &&
                params[i + 1].sizes() == IntArrayRef({gates * hidden, hidden});
        for (size_t b = 2; b < each; ++b)
            plain = plain && params[i + b].sizes() == IntArrayRef(gates * hidden);
    }
    return plain;
}

struct Layers {
    Tensor outputs;
    std::vector<Tensor> h, c;
};

Layers run_layers(const Tensor &input, at::TensorList states, at::TensorList params, const Options &o)
{
    const std::vector<Tensor> h = states[0].unbind(0),
                              c = states.size() > 1 ? states[1].unbind(0) : std::vector<Tensor>();
    Layers made{o.batch_first ? input.transpose(0, 1) : input, {}, {}};
    Tensor &x = made.outputs;
    for (size_t number = 0; number < h.size();) {
        std::vector<Tensor> outputs;
        for (int direction = 0; direction < (o.bidirectional ? 2 : 1); ++direction, ++number) {
            const Tensor *const mine = params.data() + number * o.weights();
            Direction one = run({x, h[number], mine[0], mine[1], c.empty() ? std::nullopt : MaybeTensor(c[number]),
                                 o.biases ? MaybeTensor(mine[2]) : std::nullopt,
                                 o.biases ? MaybeTensor(mine[3]) : std::nullopt, direction > 0});
            outputs.push_back(std::move(one.outputs));
            made.h.push_back(std::move(one.h));
            if (one.c)
                made.c.push_back(std::move(*one.c));
        }
        x = o.bidirectional ? at::cat(outputs, -1) : outputs[0];
        if (o.train && o.dropout != 0 && number < h.size())
            x = at::dropout(x, o.dropout, true);
    }
    if (o.batch_first)
        x = x.transpose(0, 1);
    return made;
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor &input, at::TensorList hx, at::TensorList params, bool biases,
                                        int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first)
{
    const Options options{biases, layers, dropout, train, bidirectional, batch_first};
    if (hx.size() != 2 || !is_plain(input, hx, params, options, 4))
        return at::native::lstm(input, hx, params, biases, layers, dropout, train, bidirectional, batch_first);
    const Layers made = run_layers(input, hx, params, options);
    return {made.outputs, at::stack(made.h, 0), at::stack(made.c, 0)};
}

std::tuple<Tensor, Tensor> gru(const Tensor &input, const Tensor &hx, at::TensorList params, bool biases,
                               int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first)
{
    const Options options{biases, layers, dropout, train, bidirectional, batch_first};
    if (!is_plain(input, hx, params, options, 3))
        return at::native::gru(input, hx, params, biases, layers, dropout, train, bidirectional, batch_first);
    const Layers made = run_layers(input, hx, params, options);
    return {made.outputs, at::stack(made.h, 0)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("lstm.input", &lstm);
    library.impl("gru.input", &gru);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library)
{
    library.impl("lstm.input", &lstm);
    library.impl("gru.input", &gru);
}

} // namespace

} // namespace opq
