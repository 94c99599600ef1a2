#include "program/operations_mla.h"

#include <algorithm>
#include <cassert>

#include "base/arena.h"

namespace tandem {
namespace {

// Of each lane. Holds one head of V3 beside the latents of 40,000 keys, or all sixteen of V2-Lite for 6,000.
constexpr size_t kMostWorkspaceBytes = size_t{64} << 20;
// Of fewer the products that are saved are a small part of a step, and short prompts keep the bits of decode's
// form however they are cut. Chosen, not tuned.
constexpr uint32_t kLeastExpandedRows = 128;

// each(first, count, heads): rows [first, first + count) of the step, heads > 0: all of one sequence, which
// are expanded, so many heads at once. Neighbours that are not come together.
template <class Each>
void for_each_run(const MlaSpec& spec, std::span<const AttentionRow> rows, const Each& each) {
  const auto count = static_cast<uint32_t>(rows.size());
  uint32_t absorbed = 0;  // the first row of those that wait
  for (uint32_t first = 0, end = 0; first < count; first = end) {
    while (end < count && rows[end].block_table == rows[first].block_table) ++end;
    const uint32_t keys = rows[end - 1].position + 1;
    const uint32_t heads =
        spec.key_expand.empty() ? 0 : spec.workspace.heads(spec.sizes, spec.values.dtype, keys);
    if (!expands_mla(spec.sizes, end - first, keys, heads)) continue;
    if (absorbed != first) each(absorbed, first - absorbed, 0u);
    each(first, end - first, heads);
    absorbed = end;
  }
  if (absorbed != count) each(absorbed, count - absorbed, 0u);
}

// The columns from `column` on of row `row` on.
ActivationOut out_at(const StepContext& step, const Tensor& tensor, uint32_t row, uint32_t column = 0) {
  ActivationOut out = step.out(tensor, column);
  out.data = static_cast<std::byte*>(out.data) + row * tensor.row_bytes();
  return out;
}

// A product of each head, of the rows that are not expanded.
OperationPtr absorbed_product(std::string name, const MlaSpec& spec, std::span<const PackedWeight> weights,
                              const Tensor& in, uint32_t in_stride, const Tensor& out, uint32_t out_stride) {
  return make_compute(std::move(name), [=](StepContext& step) -> Status {
    for_each_run(spec, step.batch.rows_of(spec.group), [&](uint32_t first, uint32_t count, uint32_t heads) {
      if (heads != 0) return;
      MatmulArgs args;
      args.weights = weights;
      args.in = rows_from(step.view(in), first);
      args.in_batch_stride = in_stride;
      args.out = out_at(step, out, first);
      args.out_batch_stride = out_stride;
      args.rows = count;
      step.kernels.run(step.kernels.table().matmul, args);
    });
    return {};
  });
}

void attend_absorbed(const MlaSpec& spec, StepContext& step, uint32_t first, uint32_t count) {
  const MlaSizes& sizes = spec.sizes;
  MlaArgs args;
  args.rows = step.batch.rows_of(spec.group).subspan(first, count);
  args.cache = spec.cache;
  args.query_latent = step.data<float>(spec.query_latent) + size_t{first} * spec.query_latent.cols;
  args.query_latent_stride = spec.query_latent.cols;
  args.query_rope = step.data<float>(spec.query, sizes.nope_dim) + size_t{first} * spec.query.cols;
  args.query_rope_stride = spec.query.cols;
  args.query_rope_head_stride = sizes.query_width();
  args.out = out_at(step, spec.attended, first);
  args.num_heads = sizes.num_heads;
  args.latent_dim = sizes.latent_dim;
  args.rope_dim = sizes.rope_dim;
  args.scale = spec.scale;
  step.kernels.run(step.kernels.table().mla, args);
}

// One sequence, `room` heads at a time. The rotated part of a key is the same for every head, so it is put
// behind those of the first heads and stays there for the next.
void attend_expanded(const MlaSpec& spec, StepContext& step, uint32_t first, uint32_t count, uint32_t room) {
  const MlaSizes& sizes = spec.sizes;
  const DType dtype = spec.values.dtype;
  const std::span<const AttentionRow> rows = step.batch.rows_of(spec.group).subspan(first, count);
  const uint32_t keys = rows.back().position + 1, width = sizes.expanded_width();
  std::byte* latents = step.buffers + spec.workspace.offset;
  std::byte* expanded = latents + Arena::rounded(dtype_bytes(dtype, size_t{keys} * sizes.latent_dim));
  const size_t stride = size_t{room} * width;
  const auto column = [&](uint32_t at) {
    return ActivationOut{dtype, expanded + dtype_bytes(dtype, at), stride};
  };

  MlaGatherArgs gather;
  gather.cache = spec.cache;
  gather.block_table = rows.front().block_table;
  gather.keys = keys;
  gather.latent_dim = sizes.latent_dim;
  gather.rope_dim = sizes.rope_dim;
  gather.latents = {dtype, latents, sizes.latent_dim};
  gather.rope = column(sizes.value_dim + sizes.nope_dim);
  gather.rope_head_stride = width;
  gather.num_heads = room;
  step.kernels.run(step.kernels.table().mla_gather, gather);

  for (uint32_t head = 0; head < sizes.num_heads; head += room) {
    const uint32_t heads = std::min(room, sizes.num_heads - head);
    const auto expand = [&](std::span<const PackedWeight> weights, uint32_t at) {
      MatmulArgs args;
      args.weights = weights.subspan(head, heads);
      args.in = {dtype, latents, sizes.latent_dim};
      args.out = column(at);
      args.out_batch_stride = width;
      args.rows = keys;
      step.kernels.run(step.kernels.table().matmul, args);
    };
    expand(spec.value_absorb, 0);
    expand(spec.key_expand, sizes.value_dim);

    ExpandedMlaArgs args;
    args.rows = rows;
    args.dtype = dtype;
    args.keys = expanded;
    args.key_stride = stride;
    args.query = step.data<float>(spec.query, head * sizes.query_width()) + size_t{first} * spec.query.cols;
    args.query_stride = spec.query.cols;
    args.out = out_at(step, spec.values, first, head * sizes.value_dim);
    args.num_heads = heads;
    args.key_dim = sizes.query_width();
    args.value_dim = sizes.value_dim;
    args.scale = spec.scale;
    step.kernels.run(step.kernels.table().expanded_mla, args);
  }
}

}  // namespace

size_t MlaWorkspace::bytes_for(const MlaSizes& sizes, DType compute_dtype, uint32_t most_keys) {
  const size_t latents = Arena::rounded(dtype_bytes(compute_dtype, size_t{most_keys} * sizes.latent_dim));
  const size_t width = size_t{sizes.num_heads} * sizes.expanded_width();
  return std::min(kMostWorkspaceBytes, latents + dtype_bytes(compute_dtype, most_keys * width));
}

MlaWorkspace MlaWorkspace::plan(ProgramBuilder& builder, const MlaSizes& sizes, DType compute_dtype,
                                uint32_t most_keys) {
  MlaWorkspace workspace;
  if (builder.shape().capacity < kLeastExpandedRows) return workspace;
  workspace.bytes = bytes_for(sizes, compute_dtype, most_keys);
  workspace.offset = builder.workspace("attention.expanded", workspace.bytes);
  return workspace;
}

uint32_t MlaWorkspace::heads(const MlaSizes& sizes, DType compute_dtype, uint32_t keys) const {
  const size_t latents = Arena::rounded(dtype_bytes(compute_dtype, size_t{keys} * sizes.latent_dim));
  if (latents >= bytes) return 0;
  const size_t room = (bytes - latents) / dtype_bytes(compute_dtype, size_t{keys} * sizes.expanded_width());
  return static_cast<uint32_t>(std::min<size_t>(room, sizes.num_heads));
}

bool expands_mla(const MlaSizes& sizes, uint32_t rows, uint32_t keys, uint32_t heads) {
  if (rows < kLeastExpandedRows || heads == 0) return false;
  // Products of one head.
  const double latent = sizes.latent_dim, made = latent * (sizes.nope_dim + sizes.value_dim);
  const double pairs = rows * (keys - (rows - 1) / 2.0);
  const double absorbed = rows * made + pairs * (2 * latent + sizes.rope_dim);
  const double expanded = keys * made + pairs * sizes.expanded_width();
  return expanded < absorbed;
}

void append_mla(ProgramBuilder& builder, const std::string& name, const MlaSpec& spec) {
  const MlaSizes& sizes = spec.sizes;
  assert(spec.query.cols == sizes.num_heads * sizes.query_width());
  assert(spec.query_latent.cols == sizes.num_heads * sizes.latent_dim);
  assert(spec.values.cols == sizes.num_heads * sizes.value_dim);
  builder.append(absorbed_product(name + "key_absorb", spec, spec.key_absorb, spec.query_rounded,
                                  sizes.query_width(), spec.query_latent, sizes.latent_dim));
  builder.append(make_compute(
      name + "mla",
      [spec](StepContext& step) -> Status {
        for_each_run(spec, step.batch.rows_of(spec.group),
                     [&](uint32_t first, uint32_t count, uint32_t heads) {
                       if (heads == 0) return attend_absorbed(spec, step, first, count);
                       attend_expanded(spec, step, first, count, heads);
                     });
        return {};
      },
      OperationKind::attend));
  builder.append(absorbed_product(name + "value_absorb", spec, spec.value_absorb, spec.attended,
                                  sizes.latent_dim, spec.values, sizes.value_dim));
}

}  // namespace tandem
