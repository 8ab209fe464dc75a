// Inside a kernel: calls go straight to the backend kernels, past autograd, autocast, functorch and Python modes.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

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

  private:
    c10::impl::ForceDispatchKeyGuard keys_;
    at::NoGradGuard no_grad_;
};

} // namespace opq
