// For tests: counts what `operator new` hands out in this process, on any thread. A test links
// allocation_counter.cc, which replaces the operator.
#pragma once

#include <cstddef>

namespace tandem::test {

size_t allocations_so_far();

}  // namespace tandem::test
