// A journal of first writes: what a function changed, so that it can be shown and put back. Contents are immutable values, so a
// journal keeps references and copies nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <vector>

#include "opaque/record.h"

namespace opq
{

extern std::atomic<int> open_journals;
inline int journal_depth() { return open_journals.load(std::memory_order_relaxed); }
void journal_begin();
// Closes the innermost journal: what each noted cell holds now, as new tensors; with `restore` the cells get their old values back.
std::vector<at::Tensor> journal_end(bool restore);
// Called while a journal is open: before a write through this tensor, and for each new cell.
void journal_write(const at::Tensor &tensor);
void journal_made(const opq_cell *cell);

} // namespace opq
