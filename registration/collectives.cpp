// Collectives: torch.distributed calls one operator of namespace c10d each, and its kernel hands the tensors to the process group's
// backend for their device. Ours hands over CPU tensors on the same memory, so gloo sends from it and receives into it without a copy
// of its own, in the order of the calls.
//
// A collective is an in-place op that somebody else carries out, perhaps after the call has returned. So what is pending of its tensors
// runs first, and a tensor that is written gets memory to itself (opq_cell_lend). Nothing is left to be done at the end: what
// gloo has written is what the tensor holds. To read it before wait() has returned is a race, as on the CPU.
#include "adapter.h"

#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <unordered_map>

#include "below.h"
#include "lending.h"
#include "lines.h"
#include "opaque/fork_mutex.h"
#include "sparse.h"

namespace opq
{

namespace
{

// The tensors of one call and the CPU tensors that stand for them.
class Loan
{
  public:
    // All tensors first, then alias(): what is pending is one run.
    void add(const Tensor &tensor, bool written, const char *name)
    {
        check_device(tensor, name);
        if (!is_sparse(tensor))
            impl_of(tensor); // raises for what is none of ours, such as a nested tensor
        for (Pair &pair : pairs_)
            if (pair.ours.is_same(tensor)) {
                pair.written |= written;
                return;
            }
        pairs_.push_back({tensor, Tensor(), written});
    }

    void alias()
    {
        std::vector<Value> values;
        for (const Pair &pair : pairs_)
            if (Value value = is_sparse(pair.ours) ? Value() : held(pair.ours))
                values.push_back(std::move(value));
        materialize(values, OPQ_REASON_collective);
        values.clear(); // a reference more would be a reader that wants to keep the bytes
        for (const bool written :
             {true, false}) // one that is both is one CPU tensor; a read sees what is lent to the writer
            for (Pair &pair : pairs_)
                if (pair.written == written)
                    pair.cpu = stand_in(pair);
    }

    bool any_sparse() const
    {
        return std::any_of(pairs_.begin(), pairs_.end(), [](const Pair &pair) { return is_sparse(pair.ours); });
    }

    Tensor to_cpu(const Tensor &tensor) const
    {
        for (const Pair &pair : pairs_)
            if (pair.ours.is_same(tensor))
                return pair.cpu;
        return tensor;
    }

    Tensor from_cpu(const Tensor &tensor) const
    {
        for (const Pair &pair : pairs_)
            if (pair.cpu.is_same(tensor))
                return pair.ours;
        return tensor.defined() && tensor.layout() == c10::kStrided ? wrap_cpu(tensor, Order{}) : tensor;
    }

    // The dense tensors that are written, or that are sent if none is.
    std::vector<Tensor> results() const
    {
        std::vector<Tensor> all, written;
        for (const Pair &pair : pairs_)
            if (!is_sparse(pair.ours)) {
                all.push_back(pair.ours);
                if (pair.written)
                    written.push_back(pair.ours);
            }
        return written.empty() ? all : written;
    }

    // After success; any thread, any number of times.
    void finish() const
    {
        std::call_once(finished_, [this] {
            for (const Pair &pair : pairs_)
                if (pair.written && is_sparse(pair.ours))
                    sparse_assign(pair.ours, pair.cpu);
            for (const auto &[cell, buffer] : lent_)
                opq_buffer_settle(buffer.get());
        });
    }

  private:
    struct Pair {
        Tensor ours, cpu;
        bool written;
    };
    std::vector<Pair> pairs_;
    std::vector<std::pair<opq_cell *, BufferRef>> lent_;
    mutable std::once_flag finished_;

    Tensor stand_in(const Pair &pair)
    {
        if (!is_sparse(pair.ours))
            return cpu_window(pair.ours, pair.written ? lent(pair.ours) : readable(pair.ours));
        const Tensor cpu = sparse_to_cpu(pair.ours, OPQ_REASON_collective);
        const Below below;
        return pair.written ? cpu.clone() : cpu; // the number of elements may change
    }

    static Value held(const Tensor &tensor) { return Value::take(opq_cell_value(impl_of(tensor)->cell())); }

    // One loan per cell: windows of one tensor, such as chunks of an output, are written side by side.
    BufferRef lent(const Tensor &tensor)
    {
        opq_cell *const cell = impl_of(tensor)->cell();
        for (const auto &[known, buffer] : lent_)
            if (known == cell)
                return buffer;
        return lent_.emplace_back(cell, lend_memory(tensor, OPQ_REASON_collective)).second;
    }

    BufferRef readable(const Tensor &tensor)
    {
        for (const auto &[known, buffer] : lent_)
            if (known == impl_of(tensor)->cell())
                return buffer;
        const Value value = held(tensor);
        opq_buffer *const buffer = value ? opq_value_buffer(value.get()) : nullptr;
        if (!buffer || static_cast<int64_t>(opq_buffer_bytes(buffer)) < opq_cell_bytes(impl_of(tensor)->cell()))
            return lent(tensor); // never written, or written again meanwhile
        opq_buffer_retain(buffer);
        return {buffer, &opq_buffer_release};
    }
};

// The value with every tensor in it, at any depth of lists, replaced by `each(tensor)`.
template <class Each> IValue map_tensors(const IValue &value, const Each &each)
{
    if (value.isTensor())
        return value.toTensor().defined() ? IValue(each(value.toTensor())) : value;
    if (!value.isList())
        return value;
    const c10::List<IValue> from = value.toList();
    c10::impl::GenericList to(from.elementType());
    for (size_t i = 0; i < from.size(); ++i)
        to.push_back(map_tensors(from.get(i), each));
    return to;
}

// A collective under way. What it gives are the tensors it was called with.
class DeviceWork final : public c10d::Work
{
  public:
    DeviceWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<const Loan> loan)
        : Work(-1, inner->retrieveOpType()), inner_(std::move(inner)), loan_(std::move(loan))
    {
    }
    bool isCompleted() override { return inner_->isCompleted(); }
    bool isSuccess() const override { return inner_->isSuccess(); }
    std::exception_ptr exception() const override { return inner_->exception(); }
    int sourceRank() const override { return inner_->sourceRank(); }
    void synchronize() override { inner_->synchronize(); }   // of streams: there is nothing to order
    void blockCurrentStream() override { wait(kNoTimeout); } // the stream is this thread
    void abort() override { inner_->abort(); }
    float getDuration() const override { return inner_->getDuration(); }
    uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }
    c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return inner_->getFutureResult(); }
    std::vector<Tensor> result() override
    {
        std::vector<Tensor> tensors = inner_->result();
        for (Tensor &tensor : tensors)
            tensor = loan_->from_cpu(tensor);
        return tensors;
    }
    bool wait(std::chrono::milliseconds timeout) override
    {
        const bool done = inner_->wait(timeout);
        loan_->finish();
        return done;
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        const auto future = inner_->getFuture();
        return future->then(
            [loan = loan_](c10::ivalue::Future &done) {
                const IValue value = done.value(); // raises if the collective failed
                loan->finish();
                return map_tensors(value, [&](const Tensor &tensor) { return loan->from_cpu(tensor); });
            },
            future->elementType());
    }

  private:
    const c10::intrusive_ptr<c10d::Work> inner_;
    const std::shared_ptr<const Loan> loan_;
};

// The group under which the CPU kernel finds the backend that the group has for our device. Mostly that is the group itself.
c10::intrusive_ptr<c10d::ProcessGroup> cpu_group(const c10::intrusive_ptr<c10d::ProcessGroup> &group)
{
    const auto backend = group->getBackend(kDeviceType);
    for (const c10::Device &where : group->getDeviceTypes())
        if (where.is_cpu() && group->getBackend(c10::kCPU) == backend)
            return group;
    auto other = c10::make_intrusive<c10d::ProcessGroup>(group->getRank(), group->getSize());
    other->setBoundDeviceId(group->getBoundDeviceId()); // setBackend() hands it to the backend
    other->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
    return other;
}

// A functional collective gives its tensor at once, and wait_tensor() waits for the work that PyTorch noted under the tensor's storage.
// Ours have none, so it is noted here, under the cell. As with PyTorch's notes, what nobody waits for stays.
class Unfinished
{
  public:
    static Unfinished &instance()
    {
        static auto *const all = new Unfinished;
        return *all;
    }
    void add(const Tensor &tensor, const c10::intrusive_ptr<c10d::Work> &work)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const Cell &cell = impl_of(tensor)->cell_ref();
        works_.emplace(cell.get(), Entry{cell, work});
    }
    std::vector<c10::intrusive_ptr<c10d::Work>> take(const Tensor &tensor)
    {
        std::vector<Entry> entries; // outlive the lock: letting go of a work or a cell can run code of others
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            const auto [first, last] = works_.equal_range(impl_of(tensor)->cell());
            for (auto at = first; at != last; ++at)
                entries.push_back(std::move(at->second));
            works_.erase(first, last);
        }
        std::vector<c10::intrusive_ptr<c10d::Work>> works;
        for (const Entry &entry : entries)
            works.push_back(entry.work);
        return works;
    }

  private:
    struct Entry {
        Cell cell; // its address is not used again while the work is noted
        c10::intrusive_ptr<c10d::Work> work;
    };
    ForkMutex mutex_;
    std::unordered_multimap<const opq_cell *, Entry> works_;
};

thread_local bool in_functional = false; // this thread is in an operator of _c10d_functional

Tensor wait_tensor(const Tensor &tensor)
{
    const auto works = Unfinished::instance().take(tensor);
    const PythonUnlocked unlocked;
    for (const auto &work : works)
        work->wait(kNoTimeout);
    return tensor;
}

bool is_written(const c10::FunctionSchema &schema, const c10::Argument &argument)
{
    return argument.name().rfind("input", 0) != 0 && schema.name() != "c10d::send";
}

void collective(const OperatorHandle &op, Stack *stack)
{
    note_line();
    const c10::FunctionSchema &schema = op.schema();
    const size_t count = schema.arguments().size();
    const auto loan = std::make_shared<Loan>();
    Stack inner(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    for (size_t i = 0; i < count; ++i)
        map_tensors(inner[i], [&](const Tensor &tensor) {
            loan->add(tensor, is_written(schema, schema.arguments()[i]), schema.name().c_str());
            return tensor;
        });
    guarded([&] { loan->alias(); });
    for (IValue &value : inner) {
        value = map_tensors(value, [&](const Tensor &tensor) { return loan->to_cpu(tensor); });
        if (value.isCustomClass() && value.type()->str() == "__torch__.torch.classes.c10d.ProcessGroup")
            value = cpu_group(value.toCustomClass<c10d::ProcessGroup>());
    }
    const auto key = loan->any_sparse() ? c10::DispatchKey::SparseCPU : c10::DispatchKey::CPU;
    op.redispatchBoxed(c10::DispatchKeySet(key), &inner);
    torch::jit::drop(*stack, count);
    for (size_t i = 0; i < inner.size(); ++i) {
        if (!inner[i].isCustomClass()) {
            stack->push_back(map_tensors(inner[i], [&](const Tensor &tensor) { return loan->from_cpu(tensor); }));
            continue;
        }
        c10::intrusive_ptr<c10d::Work> work = c10::make_intrusive<DeviceWork>(inner[i].toCustomClass<c10d::Work>(), loan);
        if (in_functional)
            for (const Tensor &tensor : loan->results())
                Unfinished::instance().add(tensor, work);
        stack->emplace_back(std::move(work));
    }
}

// Passes on every warning but those that contain `text`.
struct Without final : c10::WarningHandler {
    explicit Without(const char *text_) : text(text_), next(c10::WarningUtils::get_warning_handler()), guard(this) {}
    void process(const c10::Warning &warning) override
    {
        if (warning.msg().find(text) == std::string::npos)
            next->process(warning);
    }
    const char *const text;
    c10::WarningHandler *const next;
    const c10::WarningUtils::WarningHandlerGuard guard;
};

// PyTorch's own kernel; what it would note is noted by the collectives that it calls.
void functional(const OperatorHandle &op, Stack *stack)
{
    struct Flag {
        const bool before = std::exchange(in_functional, true);
        ~Flag() { in_functional = before; }
    } const flag;
    const Without quiet("without storage");
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// Every operator of the namespace with a kernel for `like`.
template <void (*kernel)(const OperatorHandle &, Stack *)>
void register_all(torch::Library &library, const std::string &space, c10::DispatchKey like)
{
    const Without quiet("Overriding a previously registered kernel"); // which is the purpose
    auto &dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName &name : dispatcher.getAllOpNames())
        if (name.name.rfind(space, 0) == 0 && name.name != "_c10d_functional::wait_tensor" &&
            dispatcher.findOp(name)->hasKernelForDispatchKey(like))
            library.impl(toString(name).c_str() + space.size(), torch::CppFunction::makeFromBoxedFunction<kernel>());
}

TORCH_LIBRARY_IMPL(c10d, PrivateUse1, library)
{
    register_all<&collective>(library, "c10d::", c10::DispatchKey::PrivateUse1);
}

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, library)
{
    register_all<&collective>(library, "c10d::", c10::DispatchKey::SparseCPU);
}

TORCH_LIBRARY_IMPL(_c10d_functional, PrivateUse1, library)
{
    register_all<&functional>(library, "_c10d_functional::", c10::DispatchKey::CompositeExplicitAutograd);
    library.impl("wait_tensor", TORCH_FN(wait_tensor));
}

} // namespace

} // namespace opq
