// Running what is pending: the one place from which this folder makes the core compute.
#include "shim.h"

#include <atomic>

#include "capturing.h"
#include "fallbacks.h"
#include "lines.h"
#include "modes.h"
#include "opaque/log.h"

namespace opq
{

namespace
{

std::atomic<run_watcher> watcher{nullptr};

// Why a run was in pieces, as " in pieces (...)".
std::string in_pieces(const opq_tier &tier)
{
    char text[128];
    if (tier.kind == OPQ_TIER_set_pieces)
        return " in pieces (OPAQUE_TIERS)";
    if (tier.kind == OPQ_TIER_background)
        return " in pieces (its plan is being made in the background)";
    if (tier.in_pieces < 2)
        return " in pieces (a new graph)";
    snprintf(text, sizeof text, " in pieces (run %d of the graph: lost %.2f ms of the %.2f ms that a plan takes)",
             tier.in_pieces, 1e3 * tier.in_pieces * tier.each, 1e3 * tier.price);
    return text;
}

void log(opq_reason reason, const opq_stats &before)
{
    opq_stats after;
    opq_stats_read(context(), &after);
    opq_log("run (%s) at %s: %lld kernels%s, %lld compiled, %.3f ms", opq_reason_name(reason), line_here().c_str(),
            static_cast<long long>(after.kernels_run - before.kernels_run),
            after.runs_in_pieces > before.runs_in_pieces ? in_pieces(opq_tier_logged()).c_str() : "",
            static_cast<long long>(after.kernels_compiled - before.kernels_compiled),
            (after.run_seconds - before.run_seconds) * 1e3);
}

template <class Body> void run(c10::ArrayRef<Value> asked, opq_reason reason, Body body)
{
    inherit_modes();
    if (const run_watcher watch = watcher.load(std::memory_order_relaxed))
        watch(asked, reason, line_here());
    opq_stats before{};
    const bool log_it = opq_logs(OPQ_LOG_flush, OPQ_LOG_INFO);
    if (log_it)
        opq_stats_read(context(), &before);
    const opq_status status = [&body] {
        const PythonUnlocked unlocked;
        return body();
    }();
    if (log_it)
        log(reason, before);
    check(status);
}

} // namespace

std::string line_text(uint32_t line)
{
    char place[256], library[256];
    const size_t length = opq_line_text(line, OPQ_LINE_place, place, sizeof place);
    if (length == 0)
        return "unknown line";
    const size_t more = opq_line_text(line, OPQ_LINE_library, library, sizeof library);
    return std::string(place, length) + (more ? " via " + std::string(library, more) : "");
}

std::string line_here() { return line_text(opq_line_here()); }

void watch_runs(run_watcher watch) { watcher.store(watch, std::memory_order_relaxed); }

void materialize(c10::ArrayRef<Value> values, opq_reason reason)
{
    inherit_modes();
    forbid_capturing(opq_reason_name(reason));
    bool pending = false;
    for (const Value &value : values)
        pending |= opq_value_buffer(value.get()) == nullptr;
    if (!pending)
        return;
    if (C10_UNLIKELY((opq_modes_get() & OPQ_MODE_FORBID_SYNC) != 0 && opq_reason_hidden(reason)))
        TORCH_CHECK(false, "forbid_sync(): ", line_here(), " needs a value now (", opq_reason_name(reason), ")");
    run(values, reason, [&] {
        return opq_materialize(context(), reinterpret_cast<opq_value *const *>(values.data()),
                               static_cast<int>(values.size()), reason);
    });
}

void synchronize(opq_reason reason)
{
    if (context_exists() && !capturing_here()) // what is captured runs after it
        run({}, reason, [&] { return opq_synchronize(context(), reason); });
}

} // namespace opq
