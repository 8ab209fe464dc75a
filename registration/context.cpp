// The default context and the host table: what the core gets from PyTorch.
#include "shim.h"

#include <ATen/Parallel.h>
#include <ATen/SequenceNumber.h>
#include <array>
#include <atomic>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/python_headers.h>
#include <torch/version.h>

#include "adapter.h"
#include "below.h"
#include "fallbacks.h"
#include "fork.h"
#include "lines.h"
#include "modes.h"
#include "activities.h"

namespace opq
{

namespace
{

void parallel_for(void *, int64_t count, int64_t grain, void (*body)(void *, int64_t, int64_t), void *data)
{
    at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) { body(data, begin, end); });
}

int thread_count(void *) { return at::get_num_threads(); }

const char *versions()
{
    static const std::string text = std::string("torch " TORCH_VERSION ", Python ") + Py_GetVersion();
    return text.c_str();
}

size_t line_text(void *, uint32_t line, opq_line_part part, char *out, size_t size)
{
    return opq_line_text(line, part, out, size);
}

std::atomic<bool> exists{false};

opq_ctx *create()
{
    const opq_host host{nullptr,    &parallel_for, &thread_count, &run_extern,     &retain_extern, &release_extern,
                        &line_text, &watching,     &watched,      &activity_begin, &activity_end,  versions()};
    opq_ctx *ctx = nullptr;
    check(opq_ctx_create(&host, &ctx));
    guard_forks();
    exists.store(true, std::memory_order_release);
    return ctx;
}

std::atomic<bool> backward_ran{false};

// Lines and calls of forward ops by autograd node, for the backward ops that run on a thread without Python frames. A ring: a backward pass
// that comes later than this many ops finds nothing.
struct Caller {
    uint32_t line, number;
};
struct Remembered {
    std::atomic<uint64_t> node{~uint64_t{0}};
    std::atomic<uint64_t> call{0}; // line, and above it the number
};
std::array<Remembered, 65536> remembered;

// Sequence numbers are those of a thread.
uint64_t node_id(uint64_t thread, uint64_t sequence) { return thread << 40 ^ sequence; }

// The slot of the node that autograd made last on this thread, which is the one of the op that is being recorded, if it has any. The first
// to ask is that op: what comes behind it without a node of its own (a counter of batches) gets NULL.
Remembered *new_slot()
{
    const uint64_t next = at::sequence_number::peek();
    const uint64_t node = node_id(at::RecordFunction::currentThreadId(), next - 1);
    Remembered &slot = remembered[node % remembered.size()];
    if (next == 0 || slot.node.load(std::memory_order_relaxed) == node)
        return nullptr;
    slot.node.store(node, std::memory_order_relaxed);
    return &slot;
}

void fill(Remembered *slot, Caller call)
{
    slot->call.store(call.line | static_cast<uint64_t>(call.number) << 32, std::memory_order_relaxed);
}

Caller recall(const torch::autograd::Node &node)
{
    const uint64_t id = node_id(node.thread_id(), node.sequence_nr());
    const Remembered &slot = remembered[id % remembered.size()];
    if (slot.node.load(std::memory_order_relaxed) != id)
        return {};
    const uint64_t call = slot.call.load(std::memory_order_relaxed);
    return {static_cast<uint32_t>(call), static_cast<uint32_t>(call >> 32)};
}

// Numbers of values recorded: calls that record have different ones.
uint32_t next_call() { return context_exists() ? static_cast<uint32_t>(opq_sequence(context())) + 1 : 1; }

} // namespace

opq_ctx *context()
{
    static opq_ctx *const ctx = create();
    return ctx;
}

bool context_exists() { return exists.load(std::memory_order_acquire); }

void finish_backward()
{
    if (!backward_ran.load(std::memory_order_relaxed))
        return;
    const c10::InferenceMode off(false); // and so autograd is on, on the device's thread
    // Nothing is recorded: of values that this thread still holds a capturing would say that they outlive the call.
    opq_cell *cell = nullptr;
    check(opq_cell_create(context(), sizeof(float), &cell));
    const Tensor x = make_tensor(Cell::take(cell), c10::scalarTypeToTypeMeta(at::kFloat), {}, {}).requires_grad_();
    torch::autograd::grad({x.view_as(x)}, {x}, {x.detach()});
}

namespace
{

// Backward passes that a thread starts run on it, as they do for CPU tensors: handing each to the device's thread of autograd and waiting
// for it costs more than recording it. torch.autograd.set_multithreading_enabled(True), called later, is the user's word.
void keep_backward_here()
{
    thread_local bool kept = false;
    if (C10_LIKELY(kept))
        return;
    kept = true;
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

} // namespace

void note_line()
{
    keep_backward_here();
    inherit_modes();
    const auto node = torch::autograd::get_current_node();
    if (C10_UNLIKELY(node != nullptr)) {
        if (!backward_ran.load(std::memory_order_relaxed))
            backward_ran.store(true, std::memory_order_relaxed);
        if (const Caller call = recall(*node); call.line) {
            opq_line_set(call.line);
            opq_call_set(next_call(), call.number);
            return;
        }
    }
    const Caller call{opq_line_here(), next_call()};
    opq_line_set(call.line);
    opq_call_set(call.number, node ? OPQ_CALL_UNKNOWN : 0);
    if (call.line && Below::grad_outside())
        if (Remembered *const slot = new_slot())
            fill(slot, call);
}

std::string line_of_op()
{
    const auto node = torch::autograd::get_current_node();
    const Caller call = node ? recall(*node) : Caller{};
    return call.line ? line_text(call.line) + " (backward)" : line_here();
}

void note_view(const Tensor &base)
{
    if (!base.requires_grad() || !Below::grad_outside())
        return;
    if (Remembered *const slot = new_slot())
        fill(slot, {opq_line_here(), OPQ_CALL_UNKNOWN});
}

} // namespace opq
