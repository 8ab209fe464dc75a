#include "capturing.h"

#include <torch/csrc/autograd/variable.h>

#include "modes.h"

namespace opq
{

std::atomic<int> open_capturings{0};

namespace
{

std::mutex list_mutex;
std::vector<Capturing *> list;

} // namespace

Capturing *capturing_here()
{
    if (!any_capturing())
        return nullptr;
    inherit_modes();
    const uint32_t mine = opq_origin_get();
    const std::lock_guard<std::mutex> lock(list_mutex);
    for (Capturing *const one : list)
        if (one->origin == mine)
            return one;
    return nullptr;
}

Capturing::Capturing()
{
    inherit_modes();
    origin = opq_origin_get();
    check(opq_capturing_begin(context(), &core));
    const std::lock_guard<std::mutex> lock(list_mutex);
    list.push_back(this);
    ++open_capturings;
}

void Capturing::end()
{
    const std::lock_guard<std::mutex> lock(list_mutex);
    const auto found = std::find(list.begin(), list.end(), this);
    if (found == list.end())
        return;
    list.erase(found);
    --open_capturings;
    opq_capturing_end(core);
}

Capturing::~Capturing()
{
    end();
    opq_capturing_drop(core);
}

void Capturing::reach(const Tensor &tensor)
{
    const OpaqueImpl *const impl = impl_or_null(tensor);
    if (!impl || opq_capturing_made_it(core, impl->cell()))
        return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!seen_.emplace(impl, reached.size()).second)
        return;
    Reached one{WeakImpl(tensor.getIntrusivePtr()), tensor.requires_grad(), torch::autograd::impl::grad_fn_unsafe(tensor), {}};
    if (one.requires_grad && !one.grad_fn)
        one.grad = tensor.grad();
    reached.push_back(std::move(one));
}

void Capturing::refuse(const std::string &why)
{
    const std::lock_guard<std::mutex> lock(mutex_);
    if (refused.empty())
        refused = why + ", at " + line_here();
}

std::pair<Value, Value> Capturing::draw(const at::Generator &generator, uint64_t seed, uint64_t offset)
{
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t which = 0;
    while (which < draws.size() && !(draws[which].generator == generator))
        ++which;
    if (which == draws.size()) {
        draws.push_back({generator, offset, static_cast<int>(numbers.size())});
        numbers.push_back({NumberSource::Kind::seed, which, 0});
    }
    const auto make = [](uint64_t now, int id) {
        opq_number bits{};
        bits.i = static_cast<int64_t>(now);
        opq_value *out = nullptr;
        check(opq_value_number(context(), OPQ_i64, bits, false, id, &out));
        return Value::take(out);
    };
    const int id = static_cast<int>(numbers.size());
    numbers.push_back({NumberSource::Kind::offset, which, offset - draws[which].base});
    return {make(seed, draws[which].seed_id), make(offset, id)};
}

void forbid_capturing(const char *what)
{
    if (!any_capturing() || !capturing_here())
        return;
    TORCH_CHECK(false, line_here(), " needs a value (", what,
                ") in a captured function, whose operations are computed after it, at each call without Python. Return the "
                "tensor and look at it outside, or leave this part out of the captured function");
}

} // namespace opq
