// A journal of first writes: what a function changed, so that it can be shown and put back. Contents are immutable values, so a
// journal keeps references and copies nothing. It belongs to the origin that opened it, which is the calling thread and the threads
// of autograd that work for it: what other threads write meanwhile is neither noted nor put back.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <vector>

#include "opaque/record.h"
#include "shim.h"

namespace opq
{

extern std::atomic<int> open_journals;
// Of all origins. The question of every op whether journals matter at all.
inline bool any_journal() { return open_journals.load(std::memory_order_relaxed) != 0; }
// Of the calling thread's origin.
int journal_depth();
void journal_begin();
// What was recorded since the innermost journal began, is pending and a live tensor holds, as new tensors.
std::vector<at::Tensor> journal_held();
// Ids (see cell_id) of the cells that the innermost journal noted: those of journal_end's tensors, in their order.
std::vector<uintptr_t> journal_cells();
// A dtype of PyTorch whose tensors hold such values.
at::ScalarType stand_in_dtype(opq_dtype dtype);
// All that the calling thread recorded, is pending and a live tensor holds, then what else is pending of `asked`.
std::vector<at::Tensor> pending_tensors(c10::ArrayRef<Value> asked);
// Closes the innermost journal: what each noted cell holds now, as new tensors; with `restore` the cells get their old values back.
std::vector<at::Tensor> journal_end(bool restore);
// Called while any journal is open: before a write through this tensor, and for each new cell.
void journal_write(const at::Tensor &tensor);
void journal_made(const opq_cell *cell);

} // namespace opq
