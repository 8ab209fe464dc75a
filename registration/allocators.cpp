// See allocators.h. The device's memory is the core's; what is asked here is how much of it there is and was.
#include "allocators.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <cstring>
#include <map>
#include <mutex>

#include "opaque/fork_mutex.h"
#include "opaque/memory_stats.h"
#include "shim.h"

namespace opq
{

namespace
{

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

static_assert(static_cast<int>(StatType::AGGREGATE) == OPQ_MEMORY_all &&
              static_cast<int>(StatType::SMALL_POOL) == OPQ_MEMORY_small &&
              static_cast<int>(StatType::LARGE_POOL) == OPQ_MEMORY_large);

Stat stat_of(const opq_memory_counter &counter)
{
    Stat stat;
    stat.current = counter.current;
    stat.peak = counter.peak;
    stat.allocated = counter.allocated;
    stat.freed = counter.freed;
    return stat;
}

void refuse_delete(void *) {}

struct Allocator final : c10::DeviceAllocator {
    c10::DataPtr allocate(size_t bytes) override
    {
        opq_cell *cell = nullptr;
        check(opq_cell_create(context(), static_cast<int64_t>(bytes), &cell));
        return token_pointer(Cell::take(cell));
    }
    void copy_data(void *, const void *, size_t) const override
    {
        TORCH_CHECK(false, "storages of device ", device(), " have no bytes to copy; copy the tensor");
    }
    c10::DeleterFnPtr raw_deleter() const override { return &refuse_delete; }
    bool initialized() override { return true; }
    void emptyCache(c10::MempoolId_t) override
    {
        if (context_exists())
            opq_cache_empty(context());
    }
    void recordStream(const c10::DataPtr &, c10::Stream) override {}
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override
    {
        c10::CachingDeviceAllocator::DeviceStats result;
        if (!context_exists())
            return result;
        const opq_memory_stats stats = opq_memory_stats_read(context());
        for (int i = 0; i < OPQ_MEMORY_SIZES; ++i) {
            const auto at = static_cast<size_t>(i);
            result.allocation[at] = result.active[at] = stat_of(stats.buffers[i].number);
            result.segment[at] = stat_of(stats.blocks[i].number);
            result.allocated_bytes[at] = result.active_bytes[at] = result.requested_bytes[at] =
                stat_of(stats.buffers[i].bytes);
            result.reserved_bytes[at] = stat_of(stats.blocks[i].bytes);
        }
        const opq_memory_counter &blocks = stats.blocks[OPQ_MEMORY_all].number;
        result.num_device_alloc = blocks.allocated;
        result.num_device_free = blocks.freed;
        result.num_ooms = stats.refused;
        result.num_alloc_retries = stats.retries;
        return result;
    }
    void resetAccumulatedStats(c10::DeviceIndex) override
    {
        if (context_exists())
            opq_memory_stats_reset(context());
    }
    void resetPeakStats(c10::DeviceIndex) override
    {
        if (context_exists())
            opq_stats_reset_peak(context());
    }
    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override
    {
        int64_t available = 0, total = 0;
        opq_memory_info(&available, &total);
        return {static_cast<size_t>(available), static_cast<size_t>(total)};
    }
};

// All memory of this device is host memory: pinning has nothing to do but to remember what was asked to be pinned. Nothing is kept to be
// used again, so there is no cache to empty.
struct PinnedAllocator final : at::HostAllocator {
    static PinnedAllocator &instance()
    {
        static auto *const allocator = new PinnedAllocator;
        return *allocator;
    }
    c10::DataPtr allocate(size_t bytes) override
    {
        c10::DataPtr memory = c10::GetAllocator(c10::kCPU)->allocate(bytes);
        void *const data = memory.get();
        const std::lock_guard<std::mutex> lock(mutex_);
        ranges_[data] = bytes;
        count(bytes, &Stat::increase);
        return {data, new Pinned{std::move(memory), bytes}, &drop, c10::Device(c10::kCPU)};
    }
    bool owns(const void *pointer)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        auto after = ranges_.upper_bound(const_cast<void *>(pointer));
        if (after == ranges_.begin())
            return false;
        --after;
        return pointer == after->first ||
               static_cast<const char *>(pointer) < static_cast<const char *>(after->first) + after->second;
    }
    void copy_data(void *to, const void *from, size_t bytes) const override { std::memcpy(to, from, bytes); }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
    bool record_event(void *, void *, c10::Stream) override { return true; } // one stream, which is in order
    void empty_cache() override {}
    at::HostStats get_stats() override
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        return stats_;
    }
    void reset_accumulated_stats() override
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (Stat *const stat : all())
            stat->reset_accumulated();
        stats_.num_host_alloc = stats_.num_host_free = 0;
    }
    void reset_peak_stats() override
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (Stat *const stat : all())
            stat->reset_peak();
    }

  private:
    struct Pinned {
        c10::DataPtr memory;
        size_t bytes;
    };
    std::array<Stat *, 4> all()
    {
        return {&stats_.active_requests, &stats_.allocations, &stats_.active_bytes, &stats_.allocated_bytes};
    }
    void count(size_t bytes, void (Stat::*change)(size_t))
    {
        const auto stats = all();
        for (size_t i = 0; i < stats.size(); ++i)
            (stats[i]->*change)(i < 2 ? 1 : bytes);
        ++(change == &Stat::increase ? stats_.num_host_alloc : stats_.num_host_free);
    }
    static void drop(void *context)
    {
        const std::unique_ptr<Pinned> pinned(static_cast<Pinned *>(context));
        PinnedAllocator &self = instance();
        const std::lock_guard<std::mutex> lock(self.mutex_);
        self.count(pinned->bytes, &Stat::decrease);
        self.ranges_.erase(pinned->memory.get());
    }
    ForkMutex mutex_;
    std::map<void *, size_t> ranges_;
    at::HostStats stats_;
};

} // namespace

at::HostAllocator *pinned_allocator() { return &PinnedAllocator::instance(); }
bool is_pinned(const void *pointer) { return PinnedAllocator::instance().owns(pointer); }

void register_allocators()
{
    static auto *const allocator = new Allocator;
    c10::SetAllocator(kDeviceType, allocator);
    at::setHostAllocator(kDeviceType, pinned_allocator());
}

} // namespace opq
