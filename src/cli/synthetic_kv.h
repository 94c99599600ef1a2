// What engine.synthetic_kv fills the caches with. Before a worker runs on them.
#pragma once

#include "attention/state_pools.h"
#include "base/thread_pool.h"
#include "kernels/paged_kv_layout.h"

namespace tandem {

// Every block of every group gets random values of the size of normed keys, finite in every dtype; caches of
// codes (`layout.coded()`) get their scales, too. Takes as long as writing all of the pools' memory once.
void fill_with_synthetic_kv(StatePools& pools, const PagedKvLayout& layout, ThreadPool& threads);

}  // namespace tandem
