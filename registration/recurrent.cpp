// LSTMs of whole sequences. PyTorch multiplies the inputs of all steps by the weights at once on the CPU alone; elsewhere step by step,
// which is a product, its two gradients and the biases' sums for each step. Here all steps are one, with both biases, and what is left of a
// step is the hidden state's product and the cell (composites.cpp). Differentiable operators all the way: autograd looks through.
#include "shim.h"

#include <ATen/ops/lstm_native.h>

namespace opq
{

namespace
{

using States = std::tuple<Tensor, Tensor, Tensor>;

struct Direction {
    Tensor outputs, h, c;
};

// weights: of inputs [4 hidden, inputs], of the hidden state; then biases, or none.
Direction run(const Tensor &inputs, Tensor h, Tensor c, const Tensor *weights, bool biases, bool backwards)
{
    const std::optional<Tensor> bias = biases ? std::optional(at::add(weights[2], weights[3])) : std::nullopt;
    const std::vector<Tensor> gates = at::linear(inputs, weights[0], bias).unbind(0);
    std::vector<Tensor> outputs(gates.size());
    for (size_t i = 0; i < gates.size(); ++i) {
        const size_t at = backwards ? gates.size() - 1 - i : i;
        std::tie(h, c, std::ignore) = at::_thnn_fused_lstm_cell(gates[at], at::linear(h, weights[1]), c, {}, {});
        outputs[at] = h;
    }
    return {at::stack(outputs, 0), h, c};
}

// Of one dtype, without projections, with a step at least, and of shapes that fit: what is not, PyTorch's own code judges.
bool is_plain(const Tensor &input, at::TensorList hx, at::TensorList params, int64_t runs, bool biases)
{
    const int64_t each = biases ? 4 : 2;
    bool plain = input.dim() == 3 && input.numel() > 0 && hx.size() == 2 && runs > 0 &&
                 static_cast<int64_t>(params.size()) == runs * each;
    for (const at::TensorList list : {hx, params})
        for (const Tensor &tensor : list)
            plain = plain && on_device(tensor) && tensor.scalar_type() == input.scalar_type() && tensor.dim() > 0;
    if (!plain || !on_device(input) || !at::isFloatingType(input.scalar_type()) || hx[0].dim() != 3 ||
        hx[0].sizes() != hx[1].sizes() || hx[0].size(0) != runs)
        return false;
    const int64_t hidden = hx[0].size(2);
    for (size_t i = 0; i < params.size(); i += static_cast<size_t>(each)) {
        plain = plain && params[i].dim() == 2 && params[i].size(0) == 4 * hidden &&
                params[i + 1].sizes() == IntArrayRef({4 * hidden, hidden});
        for (size_t b = 2; b < static_cast<size_t>(each); ++b)
            plain = plain && params[i + b].sizes() == IntArrayRef(4 * hidden);
    }
    return plain;
}

States lstm(const Tensor &input, at::TensorList hx, at::TensorList params, bool biases, int64_t layers, double dropout,
            bool train, bool bidirectional, bool batch_first)
{
    const int64_t directions = bidirectional ? 2 : 1;
    const size_t each = biases ? 4 : 2;
    if (!is_plain(input, hx, params, layers * directions, biases) || hx[0].size(1) != input.size(batch_first ? 0 : 1) ||
        params[0].size(1) != input.size(2))
        return at::native::lstm(input, hx, params, biases, layers, dropout, train, bidirectional, batch_first);
    const std::vector<Tensor> first_h = hx[0].unbind(0), first_c = hx[1].unbind(0);
    Tensor x = batch_first ? input.transpose(0, 1) : input;
    std::vector<Tensor> h, c;
    for (int64_t layer = 0; layer < layers; ++layer) {
        std::vector<Tensor> outputs;
        for (int64_t direction = 0; direction < directions; ++direction) {
            const auto number = static_cast<size_t>(layer * directions + direction);
            Direction made =
                run(x, first_h[number], first_c[number], params.data() + number * each, biases, direction > 0);
            outputs.push_back(std::move(made.outputs));
            h.push_back(std::move(made.h));
            c.push_back(std::move(made.c));
        }
        x = directions > 1 ? at::cat(outputs, -1) : outputs[0];
        if (train && dropout != 0 && layer + 1 < layers)
            x = at::dropout(x, dropout, true);
    }
    return {batch_first ? x.transpose(0, 1) : x, at::stack(h, 0), at::stack(c, 0)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { library.impl("lstm.input", &lstm); }
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) { library.impl("lstm.input", &lstm); }

} // namespace

} // namespace opq
