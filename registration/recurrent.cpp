// LSTMs and GRUs. PyTorch multiplies the inputs of all steps by the weights at once on the CPU alone; elsewhere step by step, which is a
// product, its two gradients and the biases' sums for each step. Here all steps are one, and what a step needs the one before for is a row
// of the op table for all steps (graph/recurrent.c), which planning expands. A direction of a layer is one node for autograd; the weights'
// gradients are products of all steps at once.
// Where something looks at the single operators (functorch, forward derivatives, Python modes, autocast), and for gradients of gradients,
// it is differentiable operators instead.
#include <ATen/autocast_mode.h>
#include <ATen/FuncTorchTLS.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "below.h"
#include "capturing.h"
#include "movement.h"

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

Value flat(const Tensor &sequence) // [steps * batch, columns]
{
    return reshape(read(sequence), {sequence.size(0) * sequence.size(1), sequence.size(2)});
}

// Some steps that follow each other: a row of the op table has them, not all of a direction. What is planned depends on their number, so
// that is a power of two, and a direction of any length is made of a few kinds.
struct Steps {
    const Parts &p;
    int64_t first, count;

    int64_t end() const { return first + count; }
};

std::vector<Steps> groups_of(const Parts &p)
{
    constexpr int64_t MOST = 32;
    std::vector<Steps> groups;
    for (int64_t first = 0; first < p.steps(); first = groups.back().end()) {
        int64_t count = MOST;
        while (count > p.steps() - first)
            count /= 2;
        groups.push_back({p, first, count});
    }
    return groups;
}

// Those of the step after `i` others, of a value of all steps.
Value rows_of(const Parts &p, const Value &all, int64_t i) { return slice(all, 0, p.at(i) * p.batch(), p.batch()); }

Value rows_of(const Steps &s, const Value &all)
{
    if (s.count == s.p.steps())
        return all;
    return slice(all, 0, std::min(s.p.at(s.first), s.p.at(s.end() - 1)) * s.p.batch(), s.count * s.p.batch());
}

// Of a value of these steps, that of the first or the last one.
Value first_of(const Steps &s, const Value &some)
{
    return slice(some, 0, s.p.backwards ? (s.count - 1) * s.p.batch() : 0, s.p.batch());
}

Value last_of(const Steps &s, const Value &some)
{
    return slice(some, 0, s.p.backwards ? 0 : (s.count - 1) * s.p.batch(), s.p.batch());
}

// A row of the direction (graph/recurrent.c), its products by the rule that those of the hidden states have.
Value record_steps(const Parts &p, opq_op row, Operands operands)
{
    const auto type_of = [](const Tensor &matrix) {
        return opq_type_make(core_dtype(matrix.scalar_type()), 2, matrix.sizes().data());
    };
    const opq_type state = type_of(p.h), weight = type_of(p.w_hidden);
    std::vector<opq_attr> attrs;
    if (const int pairs = opq_products_pairs(context(), &state, &weight, false, true, false))
        attrs.push_back(attr_int(OPQ_ATTR_pairs, pairs));
    if (p.backwards)
        attrs.push_back(attr_int(OPQ_ATTR_reverse, 1));
    return record(row, operands, attrs);
}

// Values of steps one after the other, in time or against it, as they lie in memory.
Value joined(std::vector<Value> parts, bool against)
{
    if (against)
        std::reverse(parts.begin(), parts.end());
    return parts.size() == 1 ? parts[0] : concat(parts, 0);
}

// The products of all inputs, and biases.
Value input_sums(const Parts &p)
{
    Value sums = matmul(flat(p.x), read(p.w_input), false, true);
    if (!given(p.b_input))
        return sums;
    return plus(sums, p.is_lstm() ? plus(read(*p.b_input), read(*p.b_hidden)) : read(*p.b_input));
}

// As values; `kept`, unless NULL, gets what gradients need: an LSTM's lstm_sums and lstm_states, a GRU's sums of inputs and gru_sums.
Direction run_directly(const Parts &p, Variables *kept)
{
    const at::ScalarType dtype = p.x.scalar_type();
    const bool lstm = p.is_lstm();
    const Value weight = read(p.w_hidden), sums = input_sums(p),
                bias = lstm                ? Value()
                       : given(p.b_hidden) ? read(*p.b_hidden)
                                           : scalar(0, sums.dtype());
    Value h = read(p.h), c = lstm ? read(*p.c) : Value();
    std::vector<Value> outputs, states, gates;
    for (const Steps &s : groups_of(p)) {
        const Value own = rows_of(s, sums);
        const auto made = [&](opq_op row) {
            return lstm ? record_steps(p, row, {own, h, c, weight}) : record_steps(p, row, {own, h, weight, bias});
        };
        if (lstm)
            states.push_back(made(OPQ_OP_lstm_states));
        outputs.push_back(made(lstm ? OPQ_OP_lstm : OPQ_OP_gru));
        if (kept)
            gates.push_back(made(lstm ? OPQ_OP_lstm_sums : OPQ_OP_gru_sums));
        h = last_of(s, outputs.back());
        if (lstm)
            c = last_of(s, states.back());
    }
    if (kept)
        *kept = {wrap(lstm ? joined(gates, p.backwards) : sums, dtype),
                 wrap(joined(lstm ? states : gates, p.backwards), dtype)};
    return {wrap(reshape(joined(outputs, p.backwards), {p.steps(), p.batch(), p.h.size(1)}), dtype), wrap(h, dtype),
            lstm ? MaybeTensor(wrap(c, dtype)) : std::nullopt};
}

// ---- its gradients

constexpr size_t INPUTS = 7; // of Parts: its tensors in their order

// Of the gates' sums of all steps, [steps * batch, gates * hidden], and of the first states.
struct SumGradients {
    Value from_input, from_hidden, h, c;
};

Value zeros_like(const Value &value) { return expand(scalar(0, value.dtype()), shape_of(value)); }

// All of these steps but the last, and one more before them in time, or behind them.
Value with_step(const Steps &s, const Value &some, const Value &one, bool before)
{
    const int64_t rest = (s.count - 1) * s.p.batch();
    if (rest == 0)
        return one;
    const Value others = slice(some, 0, s.p.backwards ? s.p.batch() : 0, rest);
    return before == s.p.backwards ? concat({others, one}, 0) : concat({one, others}, 0);
}

// What the steps behind some give to the last one of these: a gradient of its hidden state, and of an LSTM's c. None: undefined.
struct Behind {
    Value h, c;
};

// Of the hidden states of some steps: that of their outputs, and in the last step what comes from behind.
Value hidden_gradient(const Steps &s, const Value &of_outputs, const Behind &behind)
{
    const Value own = rows_of(s, of_outputs);
    return behind.h ? with_step(s, own, plus(last_of(s, own), behind.h), false) : own;
}

// Gradients of some steps' sums, and what they give to the step before them.
struct StepGradients {
    Value from_input, from_hidden;
    Behind before;
};

// values: an LSTM's lstm_sums and lstm_states, a GRU's sums of inputs, gru_sums and outputs; of these steps alone. first: c or h before them.
StepGradients step_gradients(const Steps &s, const Value &grad, const std::vector<Value> &values, const Value &first,
                             const Behind &behind, const Value &weight)
{
    StepGradients made;
    if (s.p.is_lstm()) {
        const Value grad_c = behind.c ? behind.c : zeros_like(first);
        const auto of = [&](opq_op row) {
            return record_steps(s.p, row, {grad, values[0], values[1], first, grad_c, weight});
        };
        made.from_input = made.from_hidden = of(OPQ_OP_lstm_backward);
        made.before.c = of(OPQ_OP_lstm_backward_state);
        made.before.h = matmul(first_of(s, made.from_hidden), weight);
    } else {
        const auto of = [&](opq_op row) {
            return record_steps(s.p, row, {grad, values[0], values[1], values[2], first, weight});
        };
        made.from_input = of(OPQ_OP_gru_backward);
        made.from_hidden = of(OPQ_OP_gru_backward_hidden);
        made.before.h = of(OPQ_OP_gru_backward_state);
    }
    return made;
}

// grads: of outputs, of the last h and c; each may be undefined. kept: as run_directly() gave it.
SumGradients sum_gradients(const Parts &p, const Variables &grads, const Tensor &outputs, const Tensor *kept)
{
    const Value weight = read(p.w_hidden), all = flat(outputs), sums = read(kept[0]), other = read(kept[1]),
                &states = p.is_lstm() ? other : all, first = read(p.is_lstm() ? *p.c : p.h),
                of_outputs = grads[0].defined() ? flat(grads[0]) : zeros_like(all);
    const std::vector<Steps> groups = groups_of(p);
    Behind behind{grads[1].defined() ? read(grads[1]) : Value(),
                  p.is_lstm() && grads[2].defined() ? read(grads[2]) : Value()};
    std::vector<Value> from_input, from_hidden;
    for (size_t i = groups.size(); i-- > 0;) {
        const Steps &s = groups[i];
        const Value before = s.first > 0 ? rows_of(p, states, s.first - 1) : first;
        StepGradients made =
            step_gradients(s, hidden_gradient(s, of_outputs, behind),
                           {rows_of(s, sums), rows_of(s, other), rows_of(s, all)}, before, behind, weight);
        from_input.push_back(made.from_input);
        from_hidden.push_back(made.from_hidden);
        behind = made.before;
    }
    const Value of_input = joined(from_input, !p.backwards);
    return {of_input, p.is_lstm() ? of_input : joined(from_hidden, !p.backwards), behind.h, behind.c};
}

// The hidden state before each step, [steps * batch, hidden].
Value states_before(const Parts &p, const Tensor &outputs)
{
    return with_step({p, 0, p.steps()}, flat(outputs), read(p.h), true);
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

// `saved`: as saved_inputs() gave them, then the outputs, then what run_directly() keeps.
void gradients(const Parts &p, const Variables &grads, const bool *wanted, const Variables &saved, Variables &result)
{
    const Below below;
    const at::ScalarType dtype = p.x.scalar_type();
    const SumGradients sums = sum_gradients(p, grads, saved[INPUTS], saved.data() + INPUTS + 1);
    const auto give = [&](size_t i, const auto &value_of) {
        if (wanted[i])
            result[i] = wrap(value_of(), dtype);
    };
    give(0, [&] { return reshape(matmul(sums.from_input, read(p.w_input)), p.x.sizes()); });
    give(1, [&] { return sums.h; });
    give(2, [&] { return matmul(sums.from_input, flat(p.x), true); });
    give(3, [&] { return matmul(sums.from_hidden, states_before(p, saved[INPUTS]), true); });
    give(4, [&] { return sums.c; });
    const auto of_bias = [&](const Value &from) { return reduce(OPQ_OP_sum, {from}, {0}, false); };
    const Value one = wanted[5] ? of_bias(sums.from_input) : Value();
    give(5, [&] { return one; });
    give(6, [&] { return one && p.is_lstm() ? one : of_bias(sums.from_hidden); });
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

// A function that is captured has a mode of ours, for what it computes on the CPU: that is none of this. Where there are other modes around
// a captured function, it is not captured.
bool has_modes() { return c10::impl::TorchDispatchModeTLS::stack_len() > (capturing_here() ? 1 : 0); }

// Does somebody look at the single operators, or are these no tensors of ours?
bool is_watched(const Variables &inputs)
{
    if (has_modes() || in_transform() || at::autocast::is_autocast_enabled(c10::kPrivateUse1))
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
