// expanded_mla: latent attention over keys and values that were expanded for each head, and mla_gather, which
// brings the latents together that they are expanded from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/attention_shape.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/latent.h"
#include "kernels/isa/mla.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

class ExpandedSource {
 public:
  static constexpr bool kSinks = false, kValueFirst = true;

  ExpandedSource(const ExpandedMlaArgs& args, const AttentionGroup& group, uint32_t head)
      : args_(args),
        group_(group),
        head_(head),
        keys_(static_cast<const std::byte*>(args.keys) +
              dtype_bytes(args.dtype, head * (args.value_dim + args.key_dim))),
        stride_(dtype_bytes(args.dtype, args.key_stride)) {}
  uint32_t keys(uint32_t row) const { return args_.rows[group_.first_row].position + row + 1; }
  const std::byte* key(uint32_t position) const { return keys_ + position * stride_; }
  template <class Lane>
  void query(uint32_t row, uint32_t, const Lane& lane) const {
    lane.put(0, args_.query + (group_.first_row + row) * args_.query_stride + size_t{head_} * args_.key_dim,
             args_.key_dim);
  }
  float sink(uint32_t) const { return 0.0f; }
  void write(uint32_t row, uint32_t, const float* total, uint32_t padded_dim) const {
    write_total(total, padded_dim, args_.out,
                (group_.first_row + row) * args_.out.row_stride + size_t{head_} * args_.value_dim,
                args_.value_dim);
  }

 private:
  const ExpandedMlaArgs& args_;
  const AttentionGroup& group_;
  uint32_t head_;
  const std::byte* keys_;
  size_t stride_;  // bytes
};

struct ExpandedMlaPlan {
  static constexpr bool kCodes = false;
  static size_t decoded_bytes(const ExpandedMlaArgs&) { return 0; }
  static constexpr auto chunks = expanded_chunks;
  static ExpandedSource source(const ExpandedMlaArgs& args, const AttentionGroup& group, uint32_t head) {
    return ExpandedSource(args, group, head);
  }
  static uint32_t key_dim(const ExpandedMlaArgs& args) { return args.key_dim; }
  static uint32_t value_dim(const ExpandedMlaArgs& args) { return args.value_dim; }
  static bool is_f32(const ExpandedMlaArgs& args) { return args.dtype == DType::f32; }
};

inline void expanded_mla_run(const ExpandedMlaArgs& args, size_t task, std::byte* scratch) {
  latent_run<ExpandedMlaPlan>(args, task, scratch);
}
inline void expanded_mla_fold(const ExpandedMlaArgs& args, size_t fold, std::byte* scratch) {
  latent_fold<ExpandedMlaPlan>(args, fold, scratch);
}

// A task: what 64 KiB of latents are, which take some microseconds to copy.
inline constexpr uint32_t kGatherKeys = 64;

inline size_t mla_gather_tasks(const MlaGatherArgs& args) {
  return (args.keys + kGatherKeys - 1) / kGatherKeys;
}

inline void mla_gather_run(const MlaGatherArgs& args, size_t task, std::byte* scratch) {
  const uint32_t width = args.latent_dim + args.rope_dim;
  const PagedKvLayout layout(args.cache.dtype, args.cache.tokens_per_block, 0, width, args.rope_dim);
  const DType dtype = args.latents.dtype;
  const uint32_t begin = static_cast<uint32_t>(task) * kGatherKeys;
  const uint32_t end = begin + kGatherKeys < args.keys ? begin + kGatherKeys : args.keys;
  for (uint32_t position = begin; position < end; ++position) {
    const uint32_t tokens = args.cache.tokens_per_block, token = position % tokens;
    const std::byte* block =
        args.cache.base + static_cast<size_t>(args.block_table[position / tokens]) * args.cache.block_bytes;
    const std::byte* latent = block + layout.latent(token);
    if (layout.coded()) {
      // Of one scale, a power of two: the products are exact.
      const uint32_t codes = layout.latent_codes();
      for (uint32_t d = 0; d < codes; d += kLineBytes)
        decode_line(latent + d, scratch + size_t{d} * 2, kLineBytes);
      std::memcpy(scratch + size_t{args.latent_dim} * 2, latent + codes, size_t{args.rope_dim} * 2);
      const Vec scale = set1(kv_scale(static_cast<uint8_t>(block[layout.latent_scale(token)])));
      auto* values = reinterpret_cast<uint16_t*>(scratch);
      for (uint32_t d = 0; d < width; d += 16) store_bf16(values + d, mul(load_bf16(values + d), scale));
      latent = scratch;
    }
    std::memcpy(
        static_cast<std::byte*>(args.latents.data) + dtype_bytes(dtype, position * args.latents.row_stride),
        latent, dtype_bytes(dtype, args.latent_dim));
    for (uint32_t head = 0; head < args.num_heads; ++head) {
      std::memcpy(static_cast<std::byte*>(args.rope.data) +
                      dtype_bytes(dtype, position * args.rope.row_stride + head * args.rope_head_stride),
                  latent + dtype_bytes(dtype, args.latent_dim), dtype_bytes(dtype, args.rope_dim));
    }
  }
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
