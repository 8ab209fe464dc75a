// As run.c, with a model that closes itself.
#include "tagger.h"

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

class Tagger
{
  public:
    Tagger()
    {
        opaque_model *model = nullptr;
        check(tagger_open(nullptr, 1, &model));
        model_.reset(model);
    }
    std::vector<int64_t> operator()(const std::vector<int64_t> &tokens) const
    {
        std::vector<int64_t> tags(tokens.size());
        check(tagger_run(model_.get(), static_cast<int64_t>(tokens.size()), tokens.data(), tags.data()));
        return tags;
    }

  private:
    static void check(int code)
    {
        if (code != OPAQUE_MODEL_OK)
            throw std::runtime_error(tagger_error());
    }
    struct Close {
        void operator()(opaque_model *model) const { tagger_close(model); }
    };
    std::unique_ptr<opaque_model, Close> model_;
};

int main()
{
    const Tagger tag;
    for (const std::size_t length : {5, 24}) {
        std::vector<int64_t> tokens(length);
        for (std::size_t i = 0; i < length; ++i)
            tokens[i] = static_cast<int64_t>(i * 7 % 100);
        const char *between = "";
        for (const int64_t one : tag(tokens)) {
            std::printf("%s%lld", between, static_cast<long long>(one));
            between = " ";
        }
        std::printf("\n");
    }
}
