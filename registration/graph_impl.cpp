// torch.accelerator.Graph of this device: capture_begin() to capture_end() notes what the thread records, of which nothing is done yet; replay()
// does it, each time with what its tensors hold then. What was made between the two and is still alive when it ends is made anew by each
// replay, in the same tensors. As with other devices' graphs, what Python and the CPU did meanwhile is not done again.
#include <ATen/core/GraphImplInterface.h>

#include "captured.h"

namespace opq
{

namespace
{

std::string text_of(opq_graph *graph)
{
    char *text = nullptr;
    const opq_status status = graph ? opq_graph_print(graph, &text) : OPQ_OK;
    opq_graph_destroy(graph);
    check(status);
    const std::unique_ptr<char, decltype(&free)> owner(text, &free);
    return text ? text : "";
}

class GraphImpl final : public at::GraphImplInterface
{
    std::unique_ptr<Capturing> capturing_;
    Capture capture_;
    Numbers numbers_;
    std::vector<Cell> cells_, made_; // read or written, and made by a replay
    std::string text_;

  public:
    explicit GraphImpl(const at::GraphImplArgs &) {}

    void capture_begin(at::MempoolId_t, at::GraphCaptureMode) override
    {
        TORCH_CHECK(!capture_ && !capturing_, "the graph has captured something already: reset() it first");
        capturing_ = std::make_unique<Capturing>();
        capturing_->replays = true;
    }

    void capture_end() override
    {
        TORCH_CHECK(capturing_, "capture_end() without capture_begin()");
        const std::unique_ptr<Capturing> capturing = std::move(capturing_);
        finish_backward(); // which holds what it has read
        capturing->end();
        TORCH_CHECK(capturing->refused.empty(), "cannot be captured: ", capturing->refused);
        made_ = escaped_cells(*capturing, {});
        opq_graph *graph = nullptr;
        const opq_status status = make_capture(*capturing, made_, capture_, &graph);
        text_ = text_of(graph);
        check(status);
        numbers_ = Numbers(*capturing);
        numbers_.give_back();
        for (int i = 0; i < opq_capturing_cell_count(capturing->core); ++i)
            cells_.push_back(held(opq_capturing_cell(capturing->core, i)));
        opq_capturing_restore(capturing->core);
    }

    void instantiate() override { TORCH_CHECK(capture_, "nothing was captured"); }

    void replay() override
    {
        TORCH_CHECK(capture_, "nothing was captured");
        const std::vector<opq_cell *> cells = pointers(cells_);
        std::vector<opq_cell *> results(made_.size(), nullptr);
        const std::vector<opq_number> numbers = numbers_.take({});
        const opq_capture_call call{cells.data(), nullptr, numbers.data(), nullptr, results.data()};
        const opq_status status = run_capture(capture_.get(), call);
        if (status != OPQ_OK)
            numbers_.give_back();
        TORCH_CHECK(status != OPQ_UNSUPPORTED, "a tensor that the graph reads has another size or dtype than it had");
        check(status);
        const std::vector<Cell> owners = owned(results);
        for (size_t i = 0; i < made_.size(); ++i)
            check(opq_cell_take(made_[i].get(), owners[i].get()));
    }

    void reset() override
    {
        capturing_.reset();
        capture_.reset();
        cells_.clear();
        made_.clear();
        text_.clear();
    }

    at::MempoolId_t pool() const override { return {0, 0}; }
    void enable_debug_mode() override {}
    void debug_dump(const std::string &path) override
    {
        TORCH_CHECK(capture_, "nothing was captured");
        FILE *const file = std::fopen(path.c_str(), "w");
        const bool written = file && std::fwrite(text_.data(), 1, text_.size(), file) == text_.size();
        TORCH_CHECK((!file || std::fclose(file) == 0) && written, "cannot write ", path);
    }
};

} // namespace

void register_graphs()
{
    at::GraphImplRegistry()->Register(c10::DeviceTypeName(kDeviceType, false),
                                      [](const at::GraphImplArgs &args) -> std::unique_ptr<at::GraphImplInterface> {
                                          return std::make_unique<GraphImpl>(args);
                                      });
}

} // namespace opq
