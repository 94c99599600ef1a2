// For the tests of the kernels: random tensors, weights packed for a table, and runs on one or two threads.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bf16.h"
#include "base/thread_pool.h"
#include "kernels/kernel_table.h"

namespace tandem::kernel_testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Float32 or bf16 elements, exactly as many as asked for: the address sanitizer sees any read beyond them.
class Tensor {
 public:
  Tensor(DType dtype, size_t elements, float fill = 0.0f)
      : dtype_(dtype), elements_(elements), bytes_(elements * dtype_bytes(dtype, 1)) {
    for (size_t i = 0; i < elements; ++i) set(i, fill);
  }
  static Tensor random(DType dtype, size_t elements, uint32_t seed, float scale = 1.0f) {
    Tensor tensor(dtype, elements);
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    for (size_t i = 0; i < elements; ++i) tensor.set(i, normal(generator));
    return tensor;
  }

  size_t size() const { return elements_; }
  DType dtype() const { return dtype_; }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  float* f32() { return reinterpret_cast<float*>(bytes_.data()); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  float get(size_t i) const {
    if (dtype_ == DType::f32) {
      float value;
      std::memcpy(&value, bytes_.data() + i * 4, 4);
      return value;
    }
    bf16 value;
    std::memcpy(&value, bytes_.data() + i * 2, 2);
    return to_float(value);
  }
  void set(size_t i, float value) {
    if (dtype_ == DType::f32) {
      std::memcpy(bytes_.data() + i * 4, &value, 4);
    } else {
      const bf16 narrow = to_bf16(value);
      std::memcpy(bytes_.data() + i * 2, &narrow, 2);
    }
  }

  ActivationView view(size_t row_stride) const { return {dtype_, bytes_.data(), row_stride}; }
  ActivationOut out(size_t row_stride) { return {dtype_, bytes_.data(), row_stride}; }

 private:
  DType dtype_;
  size_t elements_;
  std::vector<std::byte> bytes_;
};

// A weight packed for a table, with its bytes.
struct TestWeight {
  std::vector<std::byte> bytes;
  PackedWeight weight;
};

inline TestWeight pack(const KernelTable& table, PackFormat format, PackArrangement arrangement,
                       uint32_t rows, uint32_t cols, const Tensor& source) {
  TestWeight result;
  // Lines are 64-byte aligned in a WeightStore; here they need not be: kernels must not depend on it.
  result.bytes.resize(table.packed_bytes(format, arrangement, rows, cols));
  table.pack(format, arrangement, rows, cols, 0, rows, source.dtype(), source.data(), result.bytes.data());
  result.weight = {format, arrangement, rows, cols, result.bytes.data(), result.bytes.size()};
  return result;
}

inline DType activation_dtype(PackFormat format) {
  return format == PackFormat::f32 ? DType::f32 : DType::bf16;
}

// Runs on a pool that lives on, so that the scratch holds what the last kernel left there.
template <template <class> class AnyKernel, class Args>
void run(const KernelTable& table, const AnyKernel<Args>& kernel, const Args& args, int threads = 1) {
  static std::map<std::pair<const KernelTable*, int>, std::unique_ptr<KernelRunner>> runners;
  static ThreadPool pools[2] = {ThreadPool(1), ThreadPool(2)};
  std::unique_ptr<KernelRunner>& runner = runners[{&table, threads}];
  if (runner == nullptr) {
    auto created = KernelRunner::create(table, pools[threads - 1]);
    ASSERT_TRUE(created.has_value()) << created.error().message;
    runner = std::make_unique<KernelRunner>(std::move(*created));
  }
  runner->run(kernel, args);
}

// Equal bits, or both NaN.
inline ::testing::AssertionResult same_bits(const Tensor& a, size_t a_offset, const Tensor& b,
                                            size_t b_offset, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float x = a.get(a_offset + i), y = b.get(b_offset + i);
    if (std::isnan(x) && std::isnan(y)) continue;
    if (std::bit_cast<uint32_t>(x) != std::bit_cast<uint32_t>(y)) {
      return ::testing::AssertionFailure() << "element " << i << ": " << x << " and " << y;
    }
  }
  return ::testing::AssertionSuccess();
}

// What rounding a result to its dtype may add: half a unit in the last place, and the smallest normal where a
// bf16 dot product or a rounding takes denormals for zero.
inline double rounding(DType dtype, double value) {
  return std::fabs(value) * (dtype == DType::bf16 ? 0x1p-8 : 0x1p-23) + 1.2e-38;
}

class EveryTable : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& table() const { return *GetParam(); }
};

inline auto every_table() {
  const auto tables = runnable_kernel_tables();
  return ::testing::ValuesIn(tables.begin(), tables.end());
}
inline std::string table_name(const ::testing::TestParamInfo<const KernelTable*>& info) {
  return std::string(info.param->name);
}

}  // namespace tandem::kernel_testing

#define TANDEM_EVERY_TABLE(suite)                                               \
  INSTANTIATE_TEST_SUITE_P(Isa, suite, ::tandem::kernel_testing::every_table(), \
                           ::tandem::kernel_testing::table_name)
