// A trial call on stand-ins warns nobody: the call itself will.
#pragma once

#include <c10/util/Exception.h>

namespace opq
{

class Quiet
{
    struct Handler final : c10::WarningHandler {
        void process(const c10::Warning &) override {}
    };
    Handler handler_;
    c10::WarningUtils::WarningHandlerGuard guard_{&handler_};
};

} // namespace opq
