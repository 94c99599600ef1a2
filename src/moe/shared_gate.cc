#include "moe/shared_gate.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "base/bf16.h"

namespace tandem {
namespace {

// Sums that do not wait for each other: as many as two vectors of AVX2 hold.
constexpr size_t kLanes = 16;

float value(float x) {
  return x;
}
float value(bf16 x) {
  return to_float(x);
}
float value(int8_t x) {
  return static_cast<float>(x);
}

template <class T>
float dot(const T* row, std::span<const float> gate) {
  float sums[kLanes] = {};
  const size_t whole = gate.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += value(row[i + lane]) * gate[i + lane];
  }
  for (size_t i = whole; i < gate.size(); ++i) sums[i - whole] += value(row[i]) * gate[i];
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

float dot_row(const ActivationView& in, size_t row, std::span<const float> gate) {
  const size_t begin = row * in.row_stride;
  if (in.format == ActivationFormat::int8) {
    const float scale = static_cast<const float*>(in.scales)[row * in.scale_stride];
    return scale * dot(static_cast<const int8_t*>(in.data) + begin, gate);
  }
  assert(!is_quantized(in.format));
  if (in.dtype == DType::bf16) return dot(static_cast<const bf16*>(in.data) + begin, gate);
  return dot(static_cast<const float*>(in.data) + begin, gate);
}

}  // namespace

void gate_rows(std::span<const float> gate, std::span<const uint32_t> row_index, const ActivationView& in,
               ThreadPool& pool, float* outputs) {
  pool.run(row_index.size(), [&](size_t index, int) {
    const size_t row = row_index[index];
    const float share = 1.0f / (1.0f + std::exp(-dot_row(in, row, gate)));
    const std::span<float> out(outputs + row * gate.size(), gate.size());
    for (float& each : out) each *= share;
  });
}

}  // namespace tandem
