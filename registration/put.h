// Writing elements at indices, where the last of several at one place wins, as on the CPU.
#pragma once

#include "adapter.h"

namespace opq
{

// A number is a row of one.
Value lifted(const Value &value);
// Negative indices count from the end; what is still negative or too large fails the run.
Value wrapped_index(const Value &index, int64_t size);
// `target` with target[.., index[i], ..] = source[.., i, ..] along `axis`. index: i64[n]; source: broadcasts to target's shape with n
// in place of the axis; the last of several writes to one place wins. `joined`: sizes of the dims that the index
// joins, if it does.
Value put_along(const Call &call, const Value &target, int64_t axis, const Value &index, const Value &source,
                IntArrayRef joined = {});

// The same in place, into a window of memory: as lines of that memory, of which the others are left alone. `source` has exactly that
// shape. False: it is nothing of that kind, nothing has happened.
bool put_lines(Call &call, int64_t axis, const Value &index, const Value &source);

} // namespace opq
