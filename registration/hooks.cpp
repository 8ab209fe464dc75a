// What PyTorch asks a device for besides operators: guard, hooks, allocator, and how autocast and autograd treat it.
// The device has one index and one stream, on which everything recorded is in order. Pending work does not run until somebody
// asks. So whoever asks an event or a stream whether its work is done makes it run, and an event that takes the time is the moment
// at which everything recorded before it had run: it runs that first.
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <torch/library.h>

#include "random.h"
#include "shim.h"

namespace opq
{

namespace
{

using Moment = std::chrono::steady_clock::time_point;

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return kDeviceType; }
    c10::Device exchangeDevice(c10::Device) const override { return device(); }
    c10::Device getDevice() const override { return device(); }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
    c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
    c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(); }
    c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
    c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    void record(void **event, const c10::Stream &, const c10::DeviceIndex, const c10::EventFlag flag) const override
    {
        if (flag != c10::EventFlag::BACKEND_DEFAULT)
            return;
        run_all();
        if (!*event)
            *event = new Moment;
        *static_cast<Moment *>(*event) = std::chrono::steady_clock::now();
    }
    void block(void *, const c10::Stream &) const override {}
    bool queryEvent(void *event) const override { return event || run_all(); }
    void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override
    {
        delete static_cast<Moment *>(event);
    }
    bool queryStream(const c10::Stream &) const override { return run_all(); }
    void synchronizeStream(const c10::Stream &) const override { run_all(); }
    void synchronizeEvent(void *event) const override { queryEvent(event); }
    void synchronizeDevice(const c10::DeviceIndex) const override { run_all(); }
    // Of two events that take the time and were recorded, in milliseconds.
    double elapsedTime(void *begin, void *end, const c10::DeviceIndex) const override
    {
        const auto gap = *static_cast<const Moment *>(end) - *static_cast<const Moment *>(begin);
        return std::chrono::duration<double, std::milli>(gap).count();
    }

  private:
    static bool run_all()
    {
        synchronize(OPQ_REASON_synchronize);
        return true;
    }
    static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device()); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

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
        opq_stats stats{};
        if (context_exists())
            opq_stats_read(context(), &stats);
        c10::CachingDeviceAllocator::DeviceStats result;
        const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
        for (auto *bytes : {&result.allocated_bytes, &result.active_bytes, &result.requested_bytes}) {
            (*bytes)[all].current = stats.bytes_allocated;
            (*bytes)[all].peak = stats.bytes_peak;
        }
        result.reserved_bytes[all].current = stats.bytes_reserved;
        result.reserved_bytes[all].peak = stats.bytes_reserved_peak;
        return result;
    }
    void resetAccumulatedStats(c10::DeviceIndex) override {}
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
Allocator *allocator()
{
    static auto *const instance = new Allocator;
    return instance;
}

// All memory of this device is host memory: pinning has nothing to do but to remember what was asked to be pinned.
struct PinnedAllocator final : c10::Allocator {
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
        return {data, new c10::DataPtr(std::move(memory)), &drop, c10::Device(c10::kCPU)};
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

  private:
    static void drop(void *context)
    {
        const std::unique_ptr<c10::DataPtr> memory(static_cast<c10::DataPtr *>(context));
        const std::lock_guard<std::mutex> lock(instance().mutex_);
        instance().ranges_.erase(memory->get());
    }
    std::mutex mutex_;
    std::map<void *, size_t> ranges_;
};

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    void init() const override {}
    c10::DeviceIndex deviceCount() const override { return 1; }
    void setCurrentDevice(c10::DeviceIndex) const override {}
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
    const at::Generator &getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
    at::Generator getNewGenerator(c10::DeviceIndex) const override { return new_generator(); }
    bool isPinnedPtr(const void *pointer) const override { return PinnedAllocator::instance().owns(pointer); }
    at::Allocator *getPinnedMemoryAllocator() const override { return &PinnedAllocator::instance(); }
    at::Device getDeviceFromPtr(void *) const override { return device(); }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override
    {
        check(opq_cell_resize(context(), cell_of_storage(storage).get(), static_cast<int64_t>(bytes)));
        storage.unsafeGetStorageImpl()->set_nbytes(bytes);
    }
};

const bool registered = [] {
    c10::register_privateuse1_backend("opaque");
    c10::SetAllocator(kDeviceType, allocator());
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
}();

TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

} // namespace

// The lists that PyTorch uses for autocast on CPU.
/* clang-format off */
#define LOWER_PRECISION(X)                                                                                             \
    X(conv1d) X(conv2d) X(conv3d) X(conv_tbc) X(conv_transpose1d) X(bmm) X(mm) X(linalg_vecdot) X(baddbmm) X(addmm) X(addbmm) X(linear) \
    X(matmul) X(scaled_dot_product_attention) X(_native_multi_head_attention) X(prelu)
#define FULL_PRECISION(X)                                                                                              \
    X(avg_pool3d) X(binary_cross_entropy) X(grid_sampler) X(polar) X(cdist) X(trace) X(cholesky_inverse) X(cholesky_solve) \
    X(mse_loss) X(cosine_embedding_loss) X(nll_loss) X(nll_loss2d) X(hinge_embedding_loss) X(poisson_nll_loss) X(smooth_l1_loss) \
    X(cross_entropy_loss) X(l1_loss) X(huber_loss) X(margin_ranking_loss) X(soft_margin_loss) X(triplet_margin_loss) \
    X(multi_margin_loss) X(kl_div) X(multilabel_margin_loss) X(binary_cross_entropy_with_logits)
/* clang-format on */

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m)
{
#define X(op) KERNEL_PRIVATEUSEONE(op, lower_precision_fp)
    LOWER_PRECISION(X)
#undef X
#define X(op) KERNEL_PRIVATEUSEONE(op, fp32)
    FULL_PRECISION(X)
#undef X
    KERNEL_PRIVATEUSEONE(prod, fp32)
    KERNEL_PRIVATEUSEONE(prod, dim_int, fp32)
    KERNEL_PRIVATEUSEONE(conv_transpose2d, input, lower_precision_fp)
    KERNEL_PRIVATEUSEONE(conv_transpose3d, input, lower_precision_fp)
    KERNEL_PRIVATEUSEONE(_convolution, deprecated, lower_precision_fp)
    KERNEL_PRIVATEUSEONE(_convolution, lower_precision_fp)
    KERNEL_PRIVATEUSEONE(stack, promote)
    KERNEL_PRIVATEUSEONE(cat, promote)
    KERNEL_PRIVATEUSEONE(index_copy, promote)
}

} // namespace opq
