#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>

#include "capturing.h"
#include "random.h"
#include "shim.h"

namespace opq
{

namespace
{

struct PhiloxGenerator final : c10::GeneratorImpl {
    explicit PhiloxGenerator(uint64_t seed = c10::default_rng_seed_val)
        : GeneratorImpl(opq::device(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), seed_(seed)
    {
    }
    uint64_t seed_, offset_ = 0;

    // Offsets of a captured function are counted from where the generator stands when it is called.
    static void refuse(bool fits)
    {
        if (Capturing *const here = fits ? nullptr : capturing_here())
            here->refuse("the random generator is set");
    }
    void set_current_seed(uint64_t seed) override
    {
        refuse(false);
        seed_ = seed;
        offset_ = 0;
    }
    void set_offset(uint64_t offset) override
    {
        refuse(false);
        offset_ = offset;
    }
    uint64_t get_offset() const override { return offset_; }
    uint64_t current_seed() const override { return seed_; }
    uint64_t seed() override
    {
        set_current_seed(c10::detail::getNonDeterministicRandom());
        return seed_;
    }
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override
    {
        const Tensor state = at::empty({2 * sizeof(uint64_t)}, at::TensorOptions().dtype(at::kByte).device(c10::kCPU));
        const uint64_t words[2] = {seed_, offset_};
        std::memcpy(state.mutable_data_ptr(), words, sizeof words);
        return state.getIntrusivePtr();
    }
    void set_state(const c10::TensorImpl &given) override
    {
        at::detail::check_rng_state(given);
        uint64_t words[2];
        TORCH_CHECK(given.numel() == sizeof words, "RNG state of device ", opq::device(), " has ", sizeof words,
                    " bytes, got ", given.numel());
        std::memcpy(words, given.data(), sizeof words);
        refuse(words[0] == seed_ && words[1] <= offset_); // checkpoints go back to where they were
        seed_ = words[0];
        offset_ = words[1];
    }
    PhiloxGenerator *clone_impl() const override
    {
        auto *const copy = new PhiloxGenerator(seed_);
        copy->offset_ = offset_;
        return copy;
    }
};

uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31);
}

} // namespace

at::Generator new_generator() { return at::make_generator<PhiloxGenerator>(); }

const at::Generator &default_generator()
{
    static const auto *const generator = new at::Generator(new_generator());
    return *generator;
}

std::pair<uint64_t, uint64_t> reserve_draws(const std::optional<at::Generator> &given, int64_t draws)
{
    at::Generator generator = given && given->defined() ? *given : default_generator();
    TORCH_CHECK(generator.device().type() == kDeviceType, "Expected a '", device().type(),
                "' device type for generator but found '", generator.device().type(), "'");
    const std::lock_guard<std::mutex> lock(generator.mutex());
    auto *const philox = static_cast<PhiloxGenerator *>(generator.unsafeGetGeneratorImpl());
    const uint64_t offset = philox->offset_;
    philox->offset_ += static_cast<uint64_t>(std::max<int64_t>(draws, 1));
    return {philox->seed_, offset};
}

std::pair<Value, Value> draw_numbers(const std::optional<at::Generator> &given, int64_t draws)
{
    const auto [seed, offset] = reserve_draws(given, draws);
    if (Capturing *const here = capturing_here())
        return here->draw(given && given->defined() ? *given : default_generator(), seed, offset);
    return {number_i64(static_cast<int64_t>(seed)), number_i64(static_cast<int64_t>(offset))};
}

std::pair<uint64_t, uint64_t> take_draws(at::Generator generator, int64_t draws)
{
    const std::lock_guard<std::mutex> lock(generator.mutex());
    auto *const philox = static_cast<PhiloxGenerator *>(generator.unsafeGetGeneratorImpl());
    const uint64_t offset = philox->offset_;
    philox->offset_ += static_cast<uint64_t>(draws);
    return {philox->seed_, offset};
}

at::Generator cpu_generator(const std::optional<at::Generator> &generator)
{
    const auto [seed, offset] = reserve_draws(generator, 4);
    return at::detail::createCPUGenerator(mix(seed ^ mix(offset + 0x9E3779B97F4A7C15U)));
}

} // namespace opq
