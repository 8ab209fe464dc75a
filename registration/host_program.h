// What a captured function does on the host, done again before each call's plan: Python's numbers (a learning rate, the bias correction of an
// optimizer) and operators on tensors of the CPU (a step counter).
//
//   registers   numbers: i64 or f64, as Python computes with them
//   slots       tensors of the CPU: arguments, tensors that were there before, results of operators
//
// A number that Python looked at in another way (a branch, a size) is guarded: a call for which it is another one does not fit.
// Used with the interpreter lock.
#pragma once

#include <string>
#include <vector>

#include "capture_tree.h"
#include "host_operator.h"

namespace opq
{

// Has nobody any reference to the tensor but for so many?
bool are_all_references(const at::Tensor &tensor, size_t references);

#define OPQ_HOST_OPERATIONS(X)                                                                                         \
    X(add)                                                                                                             \
    X(sub)                                                                                                             \
    X(mul) X(truediv) X(floordiv) X(mod) X(pow) X(neg) X(abs)
#define OPQ_HOST_COMPARISONS(X) X(lt) X(le) X(gt) X(ge) X(eq) X(ne)

class HostProgram
{
  public:
    // ---- recording. Numbers of registers and slots are given.
    int argument(size_t leaf, Register now);                    // a number among the arguments
    int dict_item(py::dict dict, py::object key, Register now); // read at each call
    int item(int slot, Register now);                           // the one element of a tensor
    int outer(int number, Register now); // of the program of the function whose gradient this is of
    int constant(Register value);
    // -1: it has no such result (a complex number, more bits than 64): to be guarded.
    int operate(const std::string &name, int a, int b);
    bool compare(const std::string &name, int a, int b); // guards the outcome
    void guard(int number);                              // that it is the same number
    void guard_finite_f32(int number);                   // that f32 can hold it, as it can now
    const Register &now(int number) const { return registers_[static_cast<size_t>(number)]; }

    int slot_of(const at::Tensor &tensor) const; // -1: none
    int argument_slot(const at::Tensor &tensor, size_t leaf);
    int kept_slot(const at::Tensor &tensor);
    // A call of `function(tensors, numbers) -> tensors`, or, which is the same, of an operator; written: slots that it writes into.
    void call(py::object function, std::optional<HostOperator> op, std::vector<int> tensors, std::vector<int> numbers,
              const std::vector<at::Tensor> &results, std::vector<int> written);
    int upload(int slot, const Order &order); // numbers the uploads
    bool uploads() const { return !uploads_.empty(); }
    bool empty() const { return steps_.empty(); }
    bool guards() const; // may run() be false?
    bool writes() const;
    int traverse(visitproc visit, void *arg) const;
    bool same_as(const HostProgram &other) const;                         // but for values that a call has anew
    const std::vector<Register> &registers() const { return registers_; } // as they were
    const at::Tensor &example(int slot) const { return example_[static_cast<size_t>(slot)]; } // while it is recorded
    bool is_kept(int slot) const { return kept_[static_cast<size_t>(slot)].defined(); }
    // Are there tensors that operators made and that somebody still has, but for `results`? The others are gone then.
    bool escapes(const std::vector<at::Tensor> &results);
    // Nothing but what a call needs is kept.
    void finish();

    // ---- a call
    // What was written into, and what it held: a copy, or, of one element, its bytes.
    struct Before {
        at::Tensor tensor, copy;
        int64_t bytes = 0;
    };
    struct Run {
        bool trial = false; // to be undone
        const std::vector<Register> *outer = nullptr;
        std::vector<Register> registers;
        std::vector<at::Tensor> slots;
        std::vector<Value> uploads; // f32 ..., as wrap_cpu() copies
        std::vector<Before> before;
    };
    // False: a guard failed, or something does not fit; all is as it was.
    bool run(const Leaves &leaves, Run &run, std::string *why, const std::vector<Register> *outer = nullptr) const;
    static void undo(Run &run);

  private:
    enum class Op {
        argument,
        dict_item,
        outer,
        item,
        guard,
        guard_finite_f32,
        call,
        upload,
#define X(name) name,
        OPQ_HOST_OPERATIONS(X) OPQ_HOST_COMPARISONS(X)
#undef X
    };
    struct Step {
        Op op;
        int a = -1, b = -1, result = -1;
        size_t leaf = 0;
        bool outcome = false;
        int call = -1; // of the host calls
    };
    struct HostCall {
        py::object function; // of what is no operator with plain arguments
        std::optional<HostOperator> op;
        std::vector<int> tensors, numbers, results, written;
    };
    struct DictItem {
        py::dict dict;
        py::object key;
    };
    struct Upload {
        int slot;
        Order order;
        at::ScalarType dtype;
        Dims sizes;
    };
    static std::optional<Op> operation(const std::string &name);
    static bool compute(Op op, const Register &a, const Register &b, Register &out);
    static bool holds(Op op, const Register &a, const Register &b);
    int add_register(Register now);
    bool step(const Step &step, const Leaves &leaves, Run &run, std::string *why) const;
    static void remember(const at::Tensor &tensor, Run &run);
    static void call_python(const HostCall &call, Run &run, std::vector<at::Tensor> &results);
    bool call_now(const HostCall &call, Run &run) const;

    std::vector<Step> steps_;
    std::vector<Register> registers_; // as they were
    std::vector<DictItem> items_;
    std::vector<HostCall> calls_;
    std::vector<at::Tensor> kept_;    // per slot: undefined for arguments and results
    std::vector<int> argument_leaf_;  // per slot: -1
    std::vector<at::Tensor> example_; // per slot, while it is recorded
    std::vector<Upload> uploads_;
    bool undoes_ = false; // something is guarded after something was written
};

} // namespace opq
