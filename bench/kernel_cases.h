// The cases of the kernel benchmark: each owns its tensors and runs one product, expert block or attention
// once a call.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/kernel_table.h"

namespace tandem::bench {

enum class FlopRoof : uint8_t { bf16_dot, f32_fma, int8_dot };

struct KernelCase {
  std::string name;
  double bytes = 0;  // that one call has to read from memory
  double flops = 0;  // of one call
  FlopRoof flop_roof = FlopRoof::bf16_dot;
  // One call; the weights or caches of the next differ where they must be cold.
  std::function<void(KernelRunner&)> run;
  double passes = 1;  // that one call makes: what is reported as time is that of one
  std::string note;   // what the reader must know of the case; may be empty
  // Before the first call; may be empty.
  std::function<Status(KernelRunner&)> prepare = {};
};

// A case is made when its turn comes and dropped after it: together they would not fit small machines.
struct CaseMaker {
  std::string name;
  std::function<Result<KernelCase>(const KernelTable&)> make;
};

std::vector<CaseMaker> kernel_cases();

}  // namespace tandem::bench
