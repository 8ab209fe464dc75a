// Inside a kernel: calls go straight to the backend kernels, past autograd, autocast, functorch and Python modes.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <utility>

namespace opq
{

class Below
{
  public:
    Below()
        : keys_(c10::DispatchKeySet({c10::DispatchKey::BackendSelect}),
                c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView)
    {
    }
    ~Below() { grad_outside_ = before_; }
    Below(const Below &) = delete;
    Below &operator=(const Below &) = delete;

    // Does autograd record the op whose kernel this is, as far as the mode goes?
    static bool grad_outside() { return grad_outside_ || at::GradMode::is_enabled(); }

  private:
    static inline thread_local bool grad_outside_ = false;
    bool before_ = std::exchange(grad_outside_, grad_outside());
    c10::impl::ForceDispatchKeyGuard keys_;
    at::NoGradGuard no_grad_;
};

} // namespace opq
