// Modes and origin travel in at::ThreadLocalState, which the engine captures in the thread that calls backward() and sets around
// every node that it evaluates. Its slot for extensions holds Python objects by name. Ours is None; what matters is the deleter of
// the shared pointer, which has the data: so taking it out needs neither the interpreter lock nor a cast.
//
// A thread that records or observes while no node is evaluated and nothing is handed to it is a thread of the program. It makes its
// origin, hands it on from then on, and never looks again. All others look once per node.
#include "modes.h"

#include <Python.h>

#include <ATen/ThreadLocalPythonObjects.h>
#include <atomic>
#include <memory>
#include <string>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>

#include "opaque/record.h"

namespace opq
{

namespace
{

using Objects = at::impl::ThreadLocalPythonObjects;

struct Carried {
    unsigned modes;
    uint32_t origin;
    void operator()(c10::SafePyObject *) const {} // the object is one for the process and stays
};

const std::string name = "torch_opaque"; // short enough to be copied without an allocation
c10::SafePyObject *object = nullptr;
std::atomic<unsigned> default_modes{0};

thread_local bool own = false;       // a thread of the program
thread_local uint32_t unclaimed = 0; // origin for backward passes of threads that handed nothing on
thread_local const void *last_node = nullptr;
thread_local int last_task = -1;

void hand_on(Carried carried) { Objects::set(name, std::shared_ptr<c10::SafePyObject>(object, carried)); }

void look(const torch::autograd::Node *node)
{
    const int task = torch::autograd::get_current_graph_task_id();
    if (node && node == last_node && task == last_task)
        return;
    last_node = node;
    last_task = task;
    const Carried *const carried = Objects::contains(name) ? std::get_deleter<Carried>(Objects::get(name)) : nullptr;
    opq_modes_set(carried ? carried->modes : default_modes.load(std::memory_order_relaxed));
    if (carried) {
        opq_origin_set(carried->origin);
    } else if (node) {
        opq_origin_set(unclaimed);
        unclaimed = opq_origin_get();
    } else {
        own = true;
        hand_on({opq_modes_get(), opq_origin_get()});
    }
}

} // namespace

void start_modes() { object = new c10::SafePyObject(Py_NewRef(Py_None), getPyInterpreter()); }

void set_default_modes(unsigned modes) { default_modes.store(modes, std::memory_order_relaxed); }

void set_modes(unsigned modes)
{
    inherit_modes();
    opq_modes_set(modes);
    hand_on({modes, opq_origin_get()});
    last_node = nullptr;
}

void inherit_modes()
{
    if (C10_LIKELY(own))
        return;
    look(torch::autograd::get_current_node().get());
}

} // namespace opq
