// What PyTorch asks a device for besides operators: guard, hooks, and how autocast and autograd treat it.
// The device has one index and one stream, on which everything recorded is in order. Pending work does not run until somebody
// asks. So whoever asks an event or a stream whether its work is done makes it run, and an event that takes the time is the moment
// at which everything recorded before it had run: it runs that first.
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <chrono>
#include <torch/library.h>

#include "allocators.h"
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
    void setDevice(c10::Device where) const override { check_index(where); }
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
    c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
    c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(); }
    c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
    c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    // Dtypes of which there are tensors, and conversions to each other.
    c10::DeviceCapability getDeviceCapability(c10::Device) const override
    {
        c10::DeviceCapability capability;
        auto &has = capability.capability_data.supported_scalar_types;
        has.has_QInt8 = has.has_QUInt8 = has.has_QInt32 = has.has_QUInt4x2 = has.has_QUInt2x4 = 0;
        return capability;
    }
    void recordDataPtrOnStream(const c10::DataPtr &, const c10::Stream &) const override {}
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
    bool isPinnedPtr(const void *pointer) const override { return is_pinned(pointer); }
    at::Allocator *getPinnedMemoryAllocator() const override { return pinned_allocator(); }
    at::Device getDeviceFromPtr(void *) const override { return device(); }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override
    {
        check(opq_cell_resize(context(), cell_of_storage(storage).get(), static_cast<int64_t>(bytes)));
        storage.unsafeGetStorageImpl()->set_nbytes(bytes);
    }
};

const bool registered = [] {
    c10::register_privateuse1_backend("opaque");
    register_allocators();
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
}();

// The stream is in order with whoever frees or reuses the memory.
void record_stream(Tensor &tensor, c10::Stream) { check_device(tensor, "record_stream"); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { library.impl("record_stream", TORCH_FN(record_stream)); }

TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

} // namespace

// The lists that PyTorch uses for autocast on CPU, and what it promotes on CUDA.
/* clang-format off */
#define LOWER_PRECISION(X)                                                                                             \
    X(conv1d) X(conv2d) X(conv3d) X(conv_tbc) X(conv_transpose1d) X(bmm) X(mm) X(linalg_vecdot) X(baddbmm) X(addmm) X(addbmm) X(linear) \
    X(matmul) X(scaled_dot_product_attention) X(_native_multi_head_attention) X(prelu)
#define FULL_PRECISION(X)                                                                                              \
    X(avg_pool3d) X(binary_cross_entropy) X(grid_sampler) X(polar) X(cdist) X(trace) X(cholesky_inverse) X(cholesky_solve) \
    X(mse_loss) X(cosine_embedding_loss) X(nll_loss) X(nll_loss2d) X(hinge_embedding_loss) X(poisson_nll_loss) X(smooth_l1_loss) \
    X(cross_entropy_loss) X(l1_loss) X(huber_loss) X(margin_ranking_loss) X(soft_margin_loss) X(triplet_margin_loss) \
    X(multi_margin_loss) X(kl_div) X(multilabel_margin_loss) X(binary_cross_entropy_with_logits)
#define PROMOTED(X)                                                                                                    \
    X(stack) X(cat) X(index_copy) X(addcdiv) X(addcmul) X(atan2) X(bilinear) X(cross) X(dot) X(vdot) X(index_put) X(tensordot) X(scatter_add)
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
#define X(op) KERNEL_PRIVATEUSEONE(op, promote)
    PROMOTED(X)
#undef X
}

} // namespace opq
