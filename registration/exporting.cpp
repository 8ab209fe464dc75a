// Class Exporter: calls that were captured, written as C (opaque/export.h). What is Python's part: exporting.py.
#include <torch/csrc/autograd/python_variable.h>

#include "captured.h"
#include "lines.h"
#include "opaque/export.h"
#include "python.h"

namespace opq
{

namespace
{

opq_type type_of(const Tensor &tensor)
{
    TORCH_CHECK_VALUE(tensor.dim() <= OPQ_RANK_MAX, "a tensor of ", tensor.dim(), " dims");
    return opq_type_make(core_dtype(tensor.scalar_type()), static_cast<int>(tensor.dim()), tensor.sizes().data());
}

using Names = std::vector<std::pair<std::string, Tensor>>; // of weights
// What a caller passes or gets: name, a tensor like it, and its dims that are no constants: (dim, number of the size), or -1 of what follows sizes.
using Described = std::vector<std::tuple<std::string, Tensor, std::vector<std::pair<int, int>>>>;

class Exporter
{
  public:
    Exporter(const std::string &level, const std::string &folder, int size_count)
    {
        check(opq_exporter_open(context(), level.empty() ? nullptr : level.c_str(), folder.c_str(), size_count,
                                &exporter_));
    }
    ~Exporter() { opq_exporter_close(exporter_); }
    Exporter(const Exporter &) = delete;
    Exporter &operator=(const Exporter &) = delete;

    std::string level() const { return opq_exporter_level(exporter_); }

    // arguments and results: dense tensors, each all of its cell.
    void add(Capturing &capturing, const std::vector<Tensor> &arguments, const std::vector<Tensor> &results,
             const Names &names, const std::vector<int64_t> &sizes)
    {
        TORCH_CHECK_NOT_IMPLEMENTED(!capturing.program.writes(),
                                    "it changes a tensor of the CPU at each call, which an exported model has not (of "
                                    "optimizers: capturable=True)");
        TORCH_CHECK_NOT_IMPLEMENTED(capturing.draws.size() <= 1, "it draws from ", capturing.draws.size(), " generators");
        std::vector<opq_cell *> made;
        std::vector<opq_type> inputs, outputs;
        for (const Tensor &result : results) {
            made.push_back(cell_of(result));
            outputs.push_back(type_of(result));
        }
        for (const Tensor &argument : arguments)
            inputs.push_back(type_of(argument));
        const std::vector<std::string> texts = weight_names(capturing, arguments, names);
        std::vector<opq_exported_cell> cells;
        for (size_t i = 0; i < texts.size(); ++i)
            cells.push_back(describe(opq_capturing_cell(capturing.core, static_cast<int>(i)), arguments, names, texts[i]));
        const std::vector<opq_exported_number> numbers = numbers_of(capturing);
        opq_export_call call{};
        call.results = made.data();
        call.outputs = outputs.data();
        call.result_count = static_cast<int>(made.size());
        call.cells = cells.data();
        call.sizes = sizes.data();
        call.inputs = inputs.data();
        call.input_count = static_cast<int>(inputs.size());
        call.numbers = numbers.data();
        for (const Draws &draws : capturing.draws) {
            at::Generator generator = draws.generator;
            const std::lock_guard<std::mutex> lock(generator.mutex());
            call.seed = generator.current_seed();
            call.offset = draws.base;
            call.drawn = static_cast<int64_t>(generator.get_offset() - draws.base);
        }
        const PythonUnlocked unlocked;
        check(opq_exporter_add(exporter_, capturing.core, &call));
    }

    void finish(const std::string &model, const Described &inputs, const Described &outputs,
                const std::vector<std::string> &sizes, const std::string &weights)
    {
        std::vector<const char *> size_names;
        for (const std::string &size : sizes)
            size_names.push_back(size.c_str());
        const std::vector<opq_exported_name> in = named(inputs), out = named(outputs);
        const opq_export_names all = {
            model.c_str(),    in.data(), out.data(), static_cast<int>(in.size()), static_cast<int>(out.size()),
            size_names.data()};
        const PythonUnlocked unlocked;
        check(opq_exporter_finish(exporter_, &all, weights.c_str()));
    }

  private:
    static std::vector<opq_exported_number> numbers_of(const Capturing &capturing)
    {
        std::vector<opq_exported_number> made;
        for (const NumberSource &source : capturing.numbers) {
            opq_exported_number one{};
            one.further = static_cast<int64_t>(source.delta);
            one.kind = source.kind == NumberSource::Kind::seed     ? opq_exported_number::OPQ_EXPORTED_seed
                       : source.kind == NumberSource::Kind::offset ? opq_exported_number::OPQ_EXPORTED_offset
                                                                   : opq_exported_number::OPQ_EXPORTED_constant;
            made.push_back(one);
        }
        return made;
    }

    // Per cell. What is no parameter has a number, by first use in any call; held, so that no other cell comes to lie there.
    std::vector<std::string> weight_names(const Capturing &capturing, const std::vector<Tensor> &arguments,
                                          const Names &names)
    {
        std::vector<std::string> texts;
        for (int i = 0; i < opq_capturing_cell_count(capturing.core); ++i) {
            opq_cell *const cell = opq_capturing_cell(capturing.core, i);
            if (std::any_of(arguments.begin(), arguments.end(), [&](const Tensor &one) { return cell_of(one) == cell; })) {
                texts.emplace_back();
                continue;
            }
            const auto found =
                std::find_if(names.begin(), names.end(), [&](const auto &one) { return cell_of(one.second) == cell; });
            const auto other =
                std::find_if(others_.begin(), others_.end(), [&](const Cell &one) { return one.get() == cell; });
            texts.push_back(found == names.end() ? c10::str("tensor.", other - others_.begin()) : found->first);
            if (found == names.end() && other == others_.end())
                others_.push_back(held(cell));
        }
        return texts;
    }

    static opq_exported_cell describe(opq_cell *cell, const std::vector<Tensor> &arguments, const Names &names,
                                      const std::string &text)
    {
        opq_exported_cell made = {-1, text.c_str(), {}};
        for (size_t k = 0; k < arguments.size() && made.argument < 0; ++k)
            if (cell_of(arguments[k]) == cell)
                made.argument = static_cast<int>(k);
        if (made.argument >= 0)
            return made;
        made.type.dtype = static_cast<uint8_t>(OPQ_u8); // its bytes, unless it is one whole tensor
        made.type.rank = 1;
        made.type.size[0] = opq_cell_bytes(cell);
        for (const auto &[name, tensor] : names)
            if (cell_of(tensor) == cell && name == text && tensor.is_contiguous() &&
                static_cast<int64_t>(tensor.nbytes()) == opq_cell_bytes(cell))
                made.type = type_of(tensor);
        return made;
    }

    static std::vector<opq_exported_name> named(const Described &described)
    {
        std::vector<opq_exported_name> made;
        for (const auto &[name, tensor, dims] : described) {
            made.push_back({name.c_str(), type_of(tensor)});
            for (const auto &[dim, size] : dims)
                made.back().type.size[dim] = size < 0 ? OPQ_EXPORT_DERIVED : -1 - size;
        }
        return made;
    }

    opq_exporter *exporter_ = nullptr;
    std::vector<Cell> others_;
};

} // namespace

void bind_exporting(py::module_ &m)
{
    py::class_<Exporter>(m, "Exporter")
        .def(py::init<const std::string &, const std::string &, int>())
        .def_property_readonly("level", &Exporter::level)
        .def("add", &Exporter::add, "What was recorded since the capturing began, for these sizes.")
        .def("finish", &Exporter::finish, "Writes the tables and the weights.");
    // Tensors hold again what they held before it began.
    m.def("capturing_restore", [](const Capturing &capturing) { opq_capturing_restore(capturing.core); });
}

} // namespace opq
