// What a function that is captured reaches, beside the cells that the core notes (opaque/capture.h): tensors it has not made, gradients
// of leaves, random draws. It belongs to the origin that captures: a thread and those of autograd that work for it.
#pragma once

#include <ATen/core/Generator.h>

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "opaque/capture.h"
#include "shim.h"

namespace opq
{

using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl>;

// A tensor that was there before, as it was when it was reached first.
struct Reached {
    WeakImpl impl;
    bool requires_grad;
    const void *grad_fn;
    Tensor grad; // of a leaf
};

// Draws of one generator: offsets are counted from where it stood.
struct Draws {
    at::Generator generator;
    uint64_t base;
    int seed_id;
};

// A number that each call has anew.
struct NumberSource {
    enum class Kind { seed, offset } kind;
    size_t draws;   // which generator
    uint64_t delta; // offset: from the base
};

class Capturing
{
  public:
    Capturing(); // begins; raises if the thread is capturing
    ~Capturing();
    Capturing(const Capturing &) = delete;
    Capturing &operator=(const Capturing &) = delete;

    void reach(const Tensor &tensor);
    // The function cannot be called without recording, and why, where it is the first reason.
    void refuse(const std::string &why);
    std::pair<Value, Value> draw(const at::Generator &generator, uint64_t seed, uint64_t offset);
    void end();

    opq_capturing *core = nullptr;
    uint32_t origin = 0;
    std::string refused;
    std::vector<Reached> reached;
    std::vector<Draws> draws;
    std::vector<NumberSource> numbers;

  private:
    std::mutex mutex_;
    std::unordered_map<const c10::TensorImpl *, size_t> seen_;
};

extern std::atomic<int> open_capturings;
// Of all origins: what each op asks.
inline bool any_capturing() { return C10_UNLIKELY(open_capturings.load(std::memory_order_relaxed) != 0); }
Capturing *capturing_here(); // nullptr: none
inline void note_reached(const Tensor &tensor)
{
    if (any_capturing())
        if (Capturing *const here = capturing_here())
            here->reach(tensor);
}
// A value is looked at, or what is like it: an error while a function is captured.
void forbid_capturing(const char *what);

} // namespace opq
