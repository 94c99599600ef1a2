#include "bench/random_pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/buffer.h"

namespace tandem::bench {
namespace {

// KernelTable::pack takes ranges that start at a multiple of this.
constexpr uint32_t kPackRows = 64;
// Bytes that a thread copies at a time.
constexpr size_t kCopyBytes = size_t{1} << 20;

// Root mean squares of codes that are drawn uniformly, NaN left out.
constexpr float kE4m3Rms = 132.0f, kE2m1Rms = 2.92f, kInt8Rms = 73.9f;

// The power of two next to `value`, as its exponent.
int nearest_exponent(float value) {
  return static_cast<int>(std::lround(std::log2(value)));
}

// Codes and scales of one row as CodedRows has them. `base` counts the random numbers.
struct CodeShape {
  size_t code_bytes = 0;   // of a row
  size_t scale_count = 0;  // of a row
  size_t scale_bytes = 0;  // of one
  int exponent = 0;        // of the scales, or one more
  bool has_nan = false;    // e4m3: 0x7f and 0xff are none
};

Result<CodeShape> code_shape(PackFormat format, uint32_t cols, float magnitude) {
  const size_t blocks = (size_t{cols} + scale_block_cols(format) - 1) / scale_block_cols(format);
  switch (format) {
    case PackFormat::fp8_block:
      return CodeShape{cols, blocks, sizeof(float), nearest_exponent(magnitude / kE4m3Rms), true};
    case PackFormat::mxfp4:
      return CodeShape{(size_t{cols} + 1) / 2, blocks, 1, nearest_exponent(magnitude / kE2m1Rms), false};
    case PackFormat::mxfp8:
      return CodeShape{cols, blocks, 1, nearest_exponent(magnitude / kE4m3Rms), true};
    case PackFormat::int8:
      return CodeShape{cols, 1, sizeof(float), nearest_exponent(magnitude / kInt8Rms), false};
    case PackFormat::f32:
    case PackFormat::bf16:
      break;
  }
  return make_error(ErrorCode::internal, "codes of weights that have none");
}

void fill_codes(const CodeShape& shape, uint32_t rows, uint64_t counter, std::byte* codes,
                std::byte* scales) {
  for (size_t at = 0; at < rows * shape.code_bytes; at += 8) {
    uint64_t bits = random_bits(counter++);
    if (shape.has_nan) {
      // A byte whose low seven bits are all set loses its lowest.
      const uint64_t all = ((bits & 0x7f7f7f7f7f7f7f7fu) + 0x0101010101010101u) & 0x8080808080808080u;
      bits &= ~(all >> 7);
    }
    std::memcpy(codes + at, &bits, std::min<size_t>(8, rows * shape.code_bytes - at));
  }
  for (size_t i = 0; i < rows * shape.scale_count; ++i) {
    const int exponent = shape.exponent - static_cast<int>(random_bits(counter++) & 1);
    if (shape.scale_bytes == 1) {
      scales[i] = static_cast<std::byte>(127 + exponent);
    } else {
      const float scale = std::ldexp(1.0f, exponent);
      std::memcpy(scales + i * sizeof(float), &scale, sizeof(float));
    }
  }
}

}  // namespace

void fill_random_bf16(uint16_t* values, size_t count, float magnitude, uint64_t seed) {
  // Sign, seven bits of mantissa and the lowest bit of an even exponent are random: magnitudes in
  // [2^e, 2^(e + 2)), about 1.8 * 2^e.
  int biased = 127 + nearest_exponent(magnitude / 1.8f);
  biased &= ~1;
  const uint64_t exponent = uint64_t{static_cast<uint16_t>(biased << 7)} * 0x0001000100010001u;
  for (size_t i = 0; i < count; i += 4) {
    const uint64_t bits = (random_bits(seed + i / 4) & 0x80ff80ff80ff80ffu) | exponent;
    std::memcpy(values + i, &bits, std::min<size_t>(4, count - i) * sizeof(uint16_t));
  }
}

void set_kv_scales(std::span<std::byte> blocks, const PagedKvLayout& layout) {
  constexpr int kScale = 127 - 7;  // codes end at 448
  const size_t first = layout.num_kv_heads == 0 ? layout.latent_scale(0) : layout.scales(0, 0),
               block_bytes = layout.block_bytes();
  for (size_t at = 0; at + block_bytes <= blocks.size(); at += block_bytes)
    std::memset(blocks.data() + at + first, kScale, block_bytes - first);
}

Status pack_random(const KernelTable& table, ThreadPool& pool, PackFormat format, PackArrangement arrangement,
                   uint32_t rows, uint32_t cols, float gain, uint64_t seed, std::byte* destination) {
  const float magnitude = gain / std::sqrt(static_cast<float>(cols));
  const bool plain = format == PackFormat::bf16 || format == PackFormat::f32;
  CodeShape shape;
  if (!plain) {
    TANDEM_ASSIGN(shape, code_shape(format, cols, magnitude));
  }
  const size_t tasks = (size_t{rows} + kPackRows - 1) / kPackRows;
  const size_t values_bytes =
      plain ? size_t{cols} * kPackRows * sizeof(uint16_t) : kPackRows * shape.code_bytes + sizeof(uint64_t);
  const size_t scales_offset = (values_bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  std::vector<OwnedBuffer> scratch;
  for (int worker = 0; worker < pool.threads(); ++worker) {
    TANDEM_ASSIGN(OwnedBuffer buffer,
                  OwnedBuffer::allocate(scales_offset + kPackRows * shape.scale_count * shape.scale_bytes));
    scratch.push_back(std::move(buffer));
  }
  // Numbers that a task draws at most; tasks draw from ranges of their own.
  const uint64_t draws = uint64_t{kPackRows} * (cols + shape.scale_count + 8);
  std::atomic<PackFault> fault = PackFault::none;
  pool.run(tasks, [&](size_t task, int worker) {
    std::byte* values = scratch[static_cast<size_t>(worker)].data();
    const auto begin = static_cast<uint32_t>(task * kPackRows);
    const uint32_t end = std::min(rows, begin + kPackRows);
    const uint64_t counter = seed * 0x100000001b3u + task * draws;
    if (plain) {
      fill_random_bf16(reinterpret_cast<uint16_t*>(values), size_t{end - begin} * cols, magnitude, counter);
      table.pack(format, arrangement, rows, cols, begin, end, DType::bf16, values, destination);
      return;
    }
    std::byte* scales = values + scales_offset;
    fill_codes(shape, end - begin, counter, values, scales);
    const CodedRows source = {values, shape.code_bytes, scales, shape.scale_count};
    const PackFault found =
        table.pack_coded(format, arrangement, rows, cols, 0, begin, end, source, destination);
    if (found != PackFault::none) fault.store(found, std::memory_order_relaxed);
  });
  if (fault.load() == PackFault::none) return {};
  return make_error(ErrorCode::internal, fmt::format("a random {} weight {}", pack_format_name(format),
                                                     pack_fault_text(fault.load())));
}

Status RandomPacker::fill(PackFormat format, PackArrangement arrangement, uint32_t rows, uint32_t cols,
                          std::byte* destination) {
  const std::byte*& first = made_[{format, arrangement, rows, cols}];
  if (first == nullptr) {
    TANDEM_TRY(
        pack_random(table_, pool_, format, arrangement, rows, cols, 1.0f, seed_ + made_.size(), destination));
    first = destination;
    return {};
  }
  const size_t bytes = table_.packed_bytes(format, arrangement, rows, cols);
  pool_.run((bytes + kCopyBytes - 1) / kCopyBytes, [&](size_t task, int) {
    const size_t begin = task * kCopyBytes;
    std::memcpy(destination + begin, first + begin, std::min(kCopyBytes, bytes - begin));
  });
  return {};
}

}  // namespace tandem::bench
