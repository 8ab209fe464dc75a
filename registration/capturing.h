// What a function that is captured reaches, beside the cells that the core notes (opaque/capture.h): tensors it has not made, gradients
// of leaves, random draws. It belongs to the origin that captures: a thread and those of autograd that work for it.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/csrc/autograd/node.h>

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "opaque/capture.h"
#include "host_program.h"
#include "shim.h"

namespace opq
{

using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl>;

// A tensor that was there before, as it was when it was reached first.
struct Reached {
    WeakImpl impl;
    bool requires_grad;
    const void *grad_fn;
    Tensor grad;                                    // of a leaf
    bool asked;                                     // Python read or set its gradient
    c10::intrusive_ptr<torch::autograd::Node> node; // that made it, which says if a gradient goes through it, by its hook
    uintptr_t hook;
};

// Draws of one generator: offsets are counted from where it stood.
struct Draws {
    at::Generator generator;
    uint64_t base;
    int seed_id;
};

// A number that each call has anew.
struct NumberSource {
    enum class Kind { seed, offset, integer, real } kind;
    size_t index;   // which generator, or which register of the host program
    uint64_t delta; // offset: from the base
};

class Capturing
{
  public:
    Capturing(); // begins; raises if the thread is capturing
    ~Capturing();
    Capturing(const Capturing &) = delete;
    Capturing &operator=(const Capturing &) = delete;

    void reach(const Tensor &tensor); // nothing, if the function made it, also as a view of what was there before
    void reach_gradient(const Tensor &tensor); // before its gradient is read or set
    // The function cannot be called without recording, and why, where it is the first reason.
    void refuse(const std::string &why);
    std::pair<Value, Value> draw(const at::Generator &generator, uint64_t seed, uint64_t offset);
    // A number of the host program, as the core's. The interpreter lock need not be held, below as well.
    Value number(int reg, opq_dtype dtype, bool weak);
    // The one element of a tensor of the CPU as a number, nullopt: the function made it of nothing but Python's constants.
    std::optional<int> item(const Tensor &tensor);
    void note_upload(const Tensor &tensor, const Order &order, const Value &leaf);
    // What the function makes of constants; held.
    void add_fresh(const Tensor &tensor) { fresh.push_back(tensor); }
    bool is_fresh(const Tensor &tensor) const;
    std::vector<Tensor> given;      // tensors of the CPU among the arguments of the operator that runs
    int slot(const Tensor &tensor); // of the host program; of one that was there before a new one
    // How often it was read in a way that is known.
    int64_t reads(const Tensor &tensor) const;
    void end();
    bool ended() const { return ended_; }
    // What this one captures is the gradient of what that one captured, whose numbers it may use.
    void follow(Capturing &forward);
    int outer(int reg); // a register of the one that it follows, as its own
    const Capturing *followed() const { return forward_; }

    opq_capturing *core = nullptr;
    bool replays = false; // each time what was done is done, on the same tensors: what these were made of does not change
    std::string refused;
    std::vector<Reached> reached;
    std::vector<Draws> draws;
    std::vector<NumberSource> numbers;
    HostProgram program;
    std::vector<Tensor> fresh;
    std::vector<Tensor> host_arguments;             // among the arguments
    std::vector<const c10::TensorImpl *> arguments; // what those of the device were when it began

  private:
    bool is_constant(const Tensor &tensor);
    std::mutex mutex_;
    bool ended_ = false;
    Capturing *forward_ = nullptr;
    std::unordered_map<int, int> outer_;
    std::unordered_map<const c10::TensorImpl *, int64_t> reads_;
    std::unordered_map<const c10::TensorImpl *, size_t> seen_;
};

extern std::atomic<int> open_capturings;
// Of all origins: what each op asks.
inline bool any_capturing() { return C10_UNLIKELY(open_capturings.load(std::memory_order_relaxed) != 0); }
Capturing *find_capturing();
// That of the calling thread's origin, nullptr: none.
inline Capturing *capturing_here() { return any_capturing() ? find_capturing() : nullptr; }
inline void note_reached(const Tensor &tensor)
{
    if (Capturing *const here = capturing_here())
        here->reach(tensor);
}
// The register of a number that is traced, of the calling thread's capturing; nullopt: a number like any other.
std::optional<int> register_of(const at::Scalar &number);
// A number and, if it is traced, its register. What is computed of it is traced, too.
struct Real {
    double value;
    int reg = -1;
    Real(double v) : value(v) {} // NOLINT: implicit on purpose
    explicit Real(const at::Scalar &number);
};
Real operator*(const Real &a, const Real &b);
Real operator-(const Real &a, const Real &b);
Value number(const Real &real, opq_dtype dtype);
// A value is looked at, or what is like it: an error while a function is captured.
void forbid_capturing(const char *what);

} // namespace opq
