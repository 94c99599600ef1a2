// The KernelTable of one instruction set, from the headers of this folder.
#pragma once

#include <string_view>

#include "kernels/isa/combine.h"
#include "kernels/isa/compressed.h"
#include "kernels/isa/elementwise.h"
#include "kernels/isa/expanded_mla.h"
#include "kernels/isa/gqa.h"
#include "kernels/isa/hyper_connection.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/kv_write.h"
#include "kernels/isa/matmul.h"
#include "kernels/isa/mla.h"
#include "kernels/isa/quantize.h"
#include "kernels/isa/trained_rounding.h"
#include "kernels/kernel_table.h"
#include "kernels/pack.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// Part of every numerics id: raise it when any kernel's results change in any bit.
inline constexpr uint64_t kNumericsVersion = 4;

constexpr uint64_t numerics_id(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u ^ kNumericsVersion;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

constexpr KernelTable make_table(std::string_view name) noexcept {
  KernelTable table;
  table.name = name;
  table.numerics_id = numerics_id(name);
  table.packed_bytes = packed_weight_bytes;
  table.pack = pack_weight;
  table.pack_coded = pack_coded_weight;
  table.matmul = {matmul_tasks, matmul_run};
  table.grouped_gate_up = {gate_up_tasks, gate_up_run};
  table.grouped_down = {down_tasks, down_run};
  table.combine = {combine_tasks, combine_run};
  table.rms_norm = {rms_norm_tasks, rms_norm_run};
  table.rope = {rope_tasks, rope_run};
  table.kv_write = {kv_write_tasks, kv_write_run};
  table.gqa = {{planned_tasks<GqaArgs>, gqa_run}, {planned_folds<GqaArgs>, gqa_fold}};
  table.mla = {{planned_tasks<MlaArgs>, mla_run}, {planned_folds<MlaArgs>, mla_fold}};
  table.mla_gather = {mla_gather_tasks, mla_gather_run};
  table.expanded_mla = {{planned_tasks<ExpandedMlaArgs>, expanded_mla_run},
                        {planned_folds<ExpandedMlaArgs>, expanded_mla_fold}};
  table.compress = {compress_tasks, compress_run};
  table.trained_rounding = {trained_rounding_tasks, trained_rounding_run};
  table.index_select = {{planned_tasks<IndexSelectArgs>, index_select_run},
                        {planned_folds<IndexSelectArgs>, index_select_fold}};
  table.compressed_attention = {{planned_tasks<CompressedAttentionArgs>, compressed_attention_run},
                                {planned_folds<CompressedAttentionArgs>, compressed_attention_fold}};
  table.connection_mix = {connection_mix_tasks, connection_mix_run};
  table.connection_collapse = {connection_collapse_tasks, connection_collapse_run};
  table.connection_expand = {connection_expand_tasks, connection_expand_run};
  table.residual_add = {residual_add_tasks, residual_add_run};
  table.convert = {convert_tasks, convert_run};
  table.quantize_rows = {quantize_tasks, quantize_run};
  table.dequantize_rows = {dequantize_tasks, dequantize_run};
  return table;
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
