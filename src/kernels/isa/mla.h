// mla: latent attention over the paged cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/attention_shape.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/latent.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

class MlaSource {
 public:
  static constexpr bool kSinks = false, kValueFirst = false;

  MlaSource(const MlaArgs& args, const AttentionGroup& group, uint32_t first_head)
      : args_(args),
        group_(group),
        first_head_(first_head),
        table_(args.rows[group.first_row].block_table),
        layout_(mla_layout(args)) {}
  uint32_t keys(uint32_t row) const { return args_.rows[group_.first_row].position + row + 1; }
  const std::byte* key(uint32_t position) const {
    return block_of(position) + layout_.latent(position % args_.cache.tokens_per_block);
  }
  uint8_t scale(uint32_t position) const {
    return static_cast<uint8_t>(
        block_of(position)[layout_.latent_scale(position % args_.cache.tokens_per_block)]);
  }
  uint32_t value_codes() const { return layout_.latent_codes(); }
  void decode(const std::byte* key, std::byte* to) const {
    const uint32_t codes = layout_.latent_codes();
    for (uint32_t d = 0; d < codes; d += kLineBytes) decode_line(key + d, to + size_t{d} * 2, kLineBytes);
    std::memcpy(to + size_t{args_.latent_dim} * 2, key + codes, size_t{args_.rope_dim} * 2);
  }
  template <class Lane>
  void query(uint32_t row, uint32_t h, const Lane& lane) const {
    const size_t at = group_.first_row + row, head = first_head_ + h;
    lane.put(0, args_.query_latent + at * args_.query_latent_stride + head * args_.latent_dim,
             args_.latent_dim);
    lane.put(args_.latent_dim,
             args_.query_rope + at * args_.query_rope_stride + head * args_.query_rope_head_stride,
             args_.rope_dim);
  }
  float sink(uint32_t) const { return 0.0f; }
  void write(uint32_t row, uint32_t h, const float* total, uint32_t padded_dim) const {
    write_total(total, padded_dim, args_.out,
                (group_.first_row + row) * args_.out.row_stride + size_t{first_head_ + h} * args_.latent_dim,
                args_.latent_dim);
  }

 private:
  const std::byte* block_of(uint32_t position) const {
    return args_.cache.base +
           static_cast<size_t>(table_[position / args_.cache.tokens_per_block]) * args_.cache.block_bytes;
  }

  const MlaArgs& args_;
  const AttentionGroup& group_;
  uint32_t first_head_;
  const int32_t* table_;
  PagedKvLayout layout_;
};

struct MlaPlan {
  static constexpr bool kCodes = true;
  static constexpr auto decoded_bytes = mla_decoded_bytes;
  static constexpr auto chunks = mla_chunks;
  static MlaSource source(const MlaArgs& args, const AttentionGroup& group, uint32_t first_head) {
    return MlaSource(args, group, first_head);
  }
  static uint32_t key_dim(const MlaArgs& args) { return args.latent_dim + args.rope_dim; }
  static uint32_t value_dim(const MlaArgs& args) { return args.latent_dim; }
  static bool is_f32(const MlaArgs& args) { return args.cache.dtype == DType::f32; }
};

inline void mla_run(const MlaArgs& args, size_t task, std::byte* scratch) {
  latent_run<MlaPlan>(args, task, scratch);
}
inline void mla_fold(const MlaArgs& args, size_t fold, std::byte* scratch) {
  latent_fold<MlaPlan>(args, fold, scratch);
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
