// The allocators that PyTorch finds for this device: of its storages, which have no bytes, and of pinned host memory.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace opq
{

at::HostAllocator *pinned_allocator();
bool is_pinned(const void *pointer);
void register_allocators();

} // namespace opq
