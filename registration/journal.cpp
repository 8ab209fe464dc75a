#include "journal.h"

#include <algorithm>
#include <unordered_set>

#include "modes.h"
#include "opaque/fork_mutex.h"
#include "shim.h"

namespace opq
{

std::atomic<int> open_journals{0};

namespace
{

struct Noted {
    Cell cell;
    at::ScalarType dtype;
    Dims sizes;
    Value before;
};
struct Journal {
    uint32_t origin;
    uint64_t began;
    std::unordered_set<const opq_cell *> made, seen;
    std::vector<Noted> noted;
};
ForkMutex mutex;
std::vector<Journal> journals;

uint32_t origin()
{
    inherit_modes();
    return opq_origin_get();
}

opq_geometry whole(const Noted &noted, const Dims &strides)
{
    return {core_dtype(noted.dtype), static_cast<int>(noted.sizes.size()), noted.sizes.data(), strides.data(), 0};
}

Value contents(const Noted &noted)
{
    const Dims strides = ordered_strides(noted.sizes, Order{});
    const opq_geometry window = whole(noted, strides);
    opq_value *out = nullptr;
    check(opq_cell_read(context(), noted.cell.get(), &window, &out));
    return Value::take(out);
}

std::vector<Value> held_since(uint64_t sequence)
{
    opq_value **values = nullptr;
    int count = 0;
    check(opq_held_since(context(), sequence, &values, &count));
    const std::unique_ptr<opq_value *, decltype(&free)> owner(values, &free);
    std::vector<Value> held;
    for (int i = 0; i < count; ++i)
        held.push_back(Value::take(values[i]));
    return held;
}

std::vector<Tensor> tensors_of(const std::vector<Value> &values)
{
    std::vector<Tensor> tensors;
    for (const Value &value : values)
        tensors.push_back(wrap(value, stand_in_dtype(value.dtype())));
    return tensors;
}

// The calling thread's last one; with `mutex` held.
std::vector<Journal>::iterator innermost()
{
    const uint32_t mine = opq_origin_get();
    auto found = journals.end();
    for (auto it = journals.begin(); it != journals.end(); ++it)
        if (it->origin == mine)
            found = it;
    TORCH_CHECK(found != journals.end(), "no journal is open");
    return found;
}

} // namespace

at::ScalarType stand_in_dtype(opq_dtype dtype)
{
    for (const at::ScalarType type : {at::kFloat8_e5m2, at::kUInt16, at::kUInt32, at::kComplexFloat, at::kComplexDouble})
        if (core_dtype(type) == dtype)
            return type;
    return torch_dtype(dtype);
}

int journal_depth()
{
    const uint32_t mine = origin();
    const std::lock_guard<std::mutex> lock(mutex);
    return static_cast<int>(std::count_if(journals.begin(), journals.end(),
                                          [mine](const Journal &journal) { return journal.origin == mine; }));
}

void journal_begin()
{
    const uint32_t mine = origin();
    const std::lock_guard<std::mutex> lock(mutex);
    journals.push_back({mine, opq_sequence(context()), {}, {}, {}});
    open_journals.store(static_cast<int>(journals.size()), std::memory_order_relaxed);
}

void journal_made(const opq_cell *cell)
{
    const uint32_t mine = origin();
    const std::lock_guard<std::mutex> lock(mutex);
    for (Journal &journal : journals)
        if (journal.origin == mine)
            journal.made.insert(cell);
}

void journal_write(const Tensor &tensor)
{
    const Cell &cell = impl_of(tensor)->cell_ref();
    const uint32_t mine = origin();
    const std::lock_guard<std::mutex> lock(mutex);
    for (Journal &journal : journals) {
        if (journal.origin != mine || journal.made.count(cell.get()) || !journal.seen.insert(cell.get()).second)
            continue;
        const int64_t bytes = opq_cell_bytes(cell.get()), item = static_cast<int64_t>(tensor.itemsize());
        Noted noted{cell, tensor.scalar_type(), {}, {}};
        if (!is_wide(tensor) && tensor.is_contiguous() && tensor.storage_offset() == 0 && tensor.numel() * item == bytes)
            noted.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
        else
            noted.sizes.push_back(bytes / item);
        noted.before = contents(noted);
        journal.noted.push_back(std::move(noted));
    }
}

std::vector<Tensor> journal_held()
{
    uint64_t began = 0;
    inherit_modes();
    {
        const std::lock_guard<std::mutex> lock(mutex);
        began = innermost()->began;
    }
    return tensors_of(held_since(began));
}

std::vector<uintptr_t> journal_cells()
{
    inherit_modes();
    const std::lock_guard<std::mutex> lock(mutex);
    std::vector<uintptr_t> ids;
    for (const Noted &noted : innermost()->noted)
        ids.push_back(reinterpret_cast<uintptr_t>(noted.cell.get()));
    return ids;
}

std::vector<Tensor> pending_tensors(c10::ArrayRef<Value> asked)
{
    inherit_modes();
    std::vector<Value> values = held_since(0);
    std::unordered_set<const opq_value *> seen;
    for (const Value &value : values)
        seen.insert(value.get());
    const auto other = [&](const Value &value) {
        return opq_value_buffer(value.get()) == nullptr && seen.insert(value.get()).second;
    };
    std::copy_if(asked.begin(), asked.end(), std::back_inserter(values), other);
    return tensors_of(values);
}

std::vector<Tensor> journal_end(bool restore)
{
    Journal journal{};
    {
        inherit_modes();
        const std::lock_guard<std::mutex> lock(mutex);
        const auto ended = innermost();
        journal = std::move(*ended);
        journals.erase(ended);
        open_journals.store(static_cast<int>(journals.size()), std::memory_order_relaxed);
    }
    std::vector<Tensor> result;
    for (const Noted &noted : journal.noted) {
        result.push_back(wrap(contents(noted), noted.dtype));
        if (!restore)
            continue;
        const Dims strides = ordered_strides(noted.sizes, Order{});
        const opq_geometry window = whole(noted, strides);
        check(opq_cell_write(context(), noted.cell.get(), &window, noted.before.get()));
    }
    return result;
}

} // namespace opq
