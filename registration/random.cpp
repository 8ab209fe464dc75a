// Random integers and choices. Every number is a function of the generator's seed and the place of its draws.
#include <cmath>
#include <limits>

#include "below.h"
#include "checks.h"
#include "movement.h"
#include "random.h"

namespace opq
{

namespace
{

using MaybeGenerator = std::optional<at::Generator>;

MaybeGenerator generator_of(const Call &call, size_t i)
{
    return call.none(i) ? std::nullopt : std::optional(call.args[i].toGenerator());
}

// ---- integers

constexpr double kWord = 0x1p24; // what one draw has

// Random bits as integers: i64 in [0, 2^63).
Value bits(IntArrayRef shape, const MaybeGenerator &generator)
{
    Value all;
    for (const double size : {kWord, kWord, 0x1p15}) {
        const Value drawn = draw(OPQ_OP_uniform, shape, generator);
        const Value word = cast(record(OPQ_OP_floor, {times(drawn, number(size, OPQ_f32))}), OPQ_i64);
        all = all ? plus(times(all, number_i64(static_cast<int64_t>(size))), word) : word;
    }
    return all;
}

// Of [low, low + range), range up to 2^63, which is given as 0.
Value integers(int64_t low, uint64_t range, opq_dtype dtype, IntArrayRef shape, const MaybeGenerator &generator)
{
    if (range > 0 && range <= uint64_t{1} << 32) {
        const Value high = cast(draw(OPQ_OP_uniform, shape, generator), OPQ_f64);
        const Value rest = cast(draw(OPQ_OP_uniform, shape, generator), OPQ_f64);
        const Value drawn = plus(high, times(rest, number(1 / kWord, OPQ_f64))); // multiples of 2^-48 below 1: all exact
        const Value scaled = record(OPQ_OP_floor, {times(drawn, number(static_cast<double>(range), OPQ_f64))});
        return cast(plus(scaled, number(static_cast<double>(low), OPQ_f64)), dtype);
    }
    const Value drawn = bits(shape, generator);
    const Value within = range == 0 ? drawn : record(OPQ_OP_remainder, {drawn, number_i64(static_cast<int64_t>(range))});
    return cast(plus(within, number_i64(low)), dtype);
}

// The largest integer up to which all are numbers of the dtype; that random_() gives.
int64_t last_integer(at::ScalarType dtype)
{
    switch (dtype) {
    case at::kBool: return 1;
    case at::kByte: return 255;
    case at::kChar: return 127;
    case at::kShort: return 32767;
    case at::kInt: return std::numeric_limits<int32_t>::max();
    case at::kHalf: return 1 << 11;
    case at::kBFloat16: return 1 << 8;
    case at::kFloat: return 1 << 24;
    case at::kDouble: return int64_t{1} << 53;
    default: return std::numeric_limits<int64_t>::max();
    }
}

bool give_integers(Call &call, int64_t from, int64_t last, size_t generator)
{
    const Tensor &self = call.tensor(0);
    const auto range = static_cast<uint64_t>(last) - static_cast<uint64_t>(from) + 1;
    if (is_raw(self) || range > uint64_t{1} << 63)
        return false;
    const opq_dtype dtype = core_dtype(self.scalar_type());
    const Value drawn =
        integers(from, range == uint64_t{1} << 63 ? 0 : range, dtype, self.sizes(), generator_of(call, generator));
    call.give(drawn, self.scalar_type());
    return true;
}

// Bounds that the dtype does not hold are an error that PyTorch words.
bool give_between(Call &call, int64_t from, int64_t to, size_t generator)
{
    const at::ScalarType dtype = call.tensor(0).scalar_type();
    const int64_t most = last_integer(dtype);
    const bool is_signed = at::isFloatingType(dtype) || (dtype != at::kByte && dtype != at::kBool);
    const int64_t least = !is_signed ? 0 : at::isFloatingType(dtype) ? -most : -most - 1;
    return from < to && from >= least && to - 1 <= most && give_integers(call, from, to - 1, generator);
}

// random(self, *, generator)
bool random(Call &call) { return give_integers(call, 0, last_integer(call.tensor(0).scalar_type()), 1); }

// random.to(self, to, *, generator)
bool random_to(Call &call) { return give_between(call, 0, call.integer(1), 2); }

// random.from(self, from, to, *, generator): without `to` up to the largest number
bool random_from(Call &call)
{
    if (!call.none(2))
        return give_between(call, call.integer(1), call.integer(2), 3);
    const at::ScalarType dtype = call.tensor(0).scalar_type();
    const int64_t from = call.integer(1), most = last_integer(dtype);
    return dtype != at::kBool && at::isIntegralType(dtype, false) && from >= 0 && from <= most &&
           give_integers(call, from, most, 3);
}

// ---- choices

constexpr int64_t kCompared = 64; // categories that are compared all

// How many of the ascending numbers along the last axis of `bounds` are at most x: [.., n], each among the bounds of its row.
Value rank_of(const Value &bounds, const Value &x)
{
    const Dims shape = shape_of(x);
    const int64_t axis = x.rank() - 1, count = shape_of(bounds).back();
    if (count <= kCompared) {
        Dims lifted_x = shape, lifted_bounds = shape_of(bounds);
        lifted_x.push_back(1);
        lifted_bounds.insert(lifted_bounds.end() - 1, 1);
        const Value below = record(OPQ_OP_le, {reshape(bounds, lifted_bounds), reshape(x, lifted_x)});
        const int64_t axes[] = {axis + 1};
        return reduce(OPQ_OP_sum, {cast(below, OPQ_i64)}, axes, false);
    }
    Value place = full(0, OPQ_i64, shape);
    int64_t step = 1;
    while (step <= count / 2)
        step *= 2;
    for (; step > 0; step /= 2) {
        const Value next = plus(place, number_i64(step)), at = record(OPQ_OP_minimum, {next, number_i64(count)});
        const Value bound = record(OPQ_OP_gather, {bounds, plus(at, number_i64(-1))}, {attr_int(OPQ_ATTR_axis, axis)});
        const Value further =
            record(OPQ_OP_bitwise_and, {record(OPQ_OP_le, {bound, x}), record(OPQ_OP_le, {next, number_i64(count)})});
        place = record(OPQ_OP_where, {further, next, place});
    }
    return place;
}

// By the sums of the probabilities so far, in f64, where a number below 1 times the sum of all is below it.
Value chosen_again(const Value &p, int64_t samples, const MaybeGenerator &generator)
{
    const int64_t axis = p.rank() - 1, count = shape_of(p).back();
    const Value sums = stored(record(OPQ_OP_scan_add, {cast(p, OPQ_f64)}, {attr_int(OPQ_ATTR_axis, axis)}));
    Dims shape = shape_of(p);
    shape.back() = samples;
    const Value drawn = times(uniform_values(OPQ_f64, shape, generator), number(1 - 0x1p-50, OPQ_f64));
    const Value x = stored(times(drawn, slice(sums, axis, count - 1, 1)));
    return record(OPQ_OP_minimum, {rank_of(sums, x), number_i64(count - 1)});
}

// The first of a race: probabilities divided by numbers of the exponential distribution.
Value chosen_once(const Value &p, int64_t samples, const MaybeGenerator &generator)
{
    const int64_t axes[] = {p.rank() - 1};
    Value weight = p;
    if (p.dtype() == OPQ_f64) // in f32 from here on
        weight = record(OPQ_OP_div, {p, reduce(OPQ_OP_amax, {p}, axes, true)});
    const Value drawn = draw(OPQ_OP_uniform, shape_of(p), generator);
    const Value waits = record(OPQ_OP_neg, {record(OPQ_OP_log1p, {record(OPQ_OP_neg, {drawn})})});
    const Value speed =
        record(OPQ_OP_div, {cast(weight, OPQ_f32), record(OPQ_OP_maximum, {waits, number(0x1p-25, OPQ_f32)})});
    if (samples == 1)
        return reduce(OPQ_OP_argmax, {speed}, axes, true);
    return slice(record(OPQ_OP_argsort_down, {speed}, {attr_int(OPQ_ATTR_axis, axes[0])}), axes[0], 0, samples);
}

// Are they some? For each row.
Value probabilities(const Value &p)
{
    const int64_t axes[] = {p.rank() - 1};
    const double infinity = std::numeric_limits<double>::infinity();
    const Value least = reduce(OPQ_OP_amin, {p}, axes, true), most = reduce(OPQ_OP_amax, {p}, axes, true);
    const Value finite = record(OPQ_OP_bitwise_and, {record(OPQ_OP_ge, {least, number(0, p.dtype())}),
                                                     record(OPQ_OP_lt, {most, number(infinity, p.dtype())})});
    const Value known =
        holding(finite, "aten::multinomial: probability tensor contains either `inf`, `nan` or element < 0");
    const Value some = record(OPQ_OP_bitwise_or,
                              {record(OPQ_OP_gt, {most, number(0, p.dtype())}), record(OPQ_OP_bitwise_not, {known})});
    return holding(some, "aten::multinomial: invalid multinomial distribution (sum of probabilities <= 0)");
}

// multinomial(self, num_samples, replacement, *, generator)
bool multinomial(Call &call)
{
    const Tensor &self = call.tensor(0);
    const int64_t samples = call.integer(1);
    const bool again = call.flag(2);
    if (!at::isFloatingType(self.scalar_type()) || is_raw(self) || self.dim() < 1 || self.dim() > 2 ||
        self.numel() == 0 || samples < 1 || self.size(-1) > int64_t{1} << 24 || (!again && samples > self.size(-1)))
        return false;
    call.expect_into(at::kLong);
    const Value p = call.in(0);
    const MaybeGenerator generator = generator_of(call, 3);
    const Value chosen = again && samples > 1 ? chosen_again(p, samples, generator) : chosen_once(p, samples, generator);
    call.give(record(OPQ_OP_where, {probabilities(p), chosen, number_i64(0)}));
    return true;
}

// ---- evenly spaced numbers

// From both ends to the middle, as the CPU kernel has them.
Value spaced(const at::Scalar &start, const at::Scalar &end, int64_t steps, opq_dtype compute)
{
    const Value index = iota(steps);
    if (steps == 1)
        return full(start, compute, {1});
    const Value first = scalar(start, compute), last = scalar(end, compute), back = number_i64(steps - 1);
    const Value step =
        record(OPQ_OP_div, {record(OPQ_OP_sub, {last, first}), number(static_cast<double>(steps - 1), compute)});
    const Value up = plus(first, times(step, cast(index, compute)));
    const Value down = record(OPQ_OP_sub, {last, times(step, cast(record(OPQ_OP_sub, {back, index}), compute))});
    return record(OPQ_OP_where, {record(OPQ_OP_lt, {index, number_i64(steps / 2)}), up, down});
}

void resize_to(Tensor &out, int64_t steps)
{
    TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
    if (out.numel() != steps)
        out.resize_({steps});
}

// False: for the CPU kernel, which steps in the dtype of halves, and of whose fused steps integers show the rounding.
template <class Make> bool spaced_natively(Tensor &out, int64_t steps, Make make)
{
    const opq_dtype dtype = core_dtype(out.scalar_type());
    if (!is_float(dtype) || computing(dtype) != dtype || steps == 0)
        return false;
    try {
        write(out, reshape(make(dtype), out.sizes()));
    } catch (const Decline &) {
        return false;
    }
    return true;
}

Tensor &linspace_out(const at::Scalar &start, const at::Scalar &end, int64_t steps, Tensor &out)
{
    note_line();
    resize_to(out, steps);
    const bool made = !start.isComplex() && !end.isComplex() &&
                      spaced_natively(out, steps, [&](opq_dtype compute) { return spaced(start, end, steps, compute); });
    if (made)
        return out;
    const Below below;
    return out.copy_(at::linspace(start, end, steps, out.options().device(c10::kCPU)).view(out.sizes()));
}

Tensor &logspace_out(const at::Scalar &start, const at::Scalar &end, int64_t steps, double base, Tensor &out)
{
    note_line();
    resize_to(out, steps);
    const bool made = !start.isComplex() && !end.isComplex() && spaced_natively(out, steps, [&](opq_dtype compute) {
        return record(OPQ_OP_pow, {number(base, compute), spaced(start, end, steps, compute)});
    });
    if (made)
        return out;
    const Below below;
    return out.copy_(at::logspace(start, end, steps, base, out.options().device(c10::kCPU)).view(out.sizes()));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "random", &random);
    adapt(library, "random.to", &random_to);
    adapt(library, "random.from", &random_from);
    adapt(library, "multinomial", &multinomial);
    library.impl("linspace.out", OPQ_KERNEL(linspace_out));
    library.impl("logspace.out", OPQ_KERNEL(logspace_out));
}

} // namespace

} // namespace opq
