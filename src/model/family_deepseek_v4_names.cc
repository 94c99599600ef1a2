#include <array>
#include <utility>

#include "model/family_deepseek_v4.h"

namespace tandem {
namespace {

using Spelling = std::pair<std::string_view, std::string_view>;  // other, released

// Whole names without "model.".
constexpr std::array<Spelling, 5> kWhole = {{{"embed_tokens.weight", "embed.weight"},
                                             {"lm_head.weight", "head.weight"},
                                             {"hc_head.hc_fn", "hc_head_fn"},
                                             {"hc_head.hc_base", "hc_head_base"},
                                             {"hc_head.hc_scale", "hc_head_scale"}}};

// Runs of parts between dots, tried in this order: what transformers' saved files and its modules say.
constexpr std::array<Spelling, 31> kParts = {{{"self_attn", "attn"},
                                              {"mlp", "ffn"},
                                              {"input_layernorm", "attn_norm"},
                                              {"post_attention_layernorm", "ffn_norm"},
                                              {"attn_hc.fn", "hc_attn_fn"},
                                              {"attn_hc.base", "hc_attn_base"},
                                              {"attn_hc.scale", "hc_attn_scale"},
                                              {"ffn_hc.fn", "hc_ffn_fn"},
                                              {"ffn_hc.base", "hc_ffn_base"},
                                              {"ffn_hc.scale", "hc_ffn_scale"},
                                              {"attn.norm", "attn.kv_norm"},
                                              {"attn.sinks", "attn.attn_sink"},
                                              {"q_a_norm", "q_norm"},
                                              {"q_a_proj", "wq_a"},
                                              {"q_b_proj", "wq_b"},
                                              {"o_a_proj", "wo_a"},
                                              {"o_b_proj", "wo_b"},
                                              {"attn.kv_proj", "attn.wkv"},
                                              {"attn.compressor.indexer.wq_b", "attn.indexer.wq_b"},
                                              {"attn.compressor.indexer.scorer", "attn.indexer"},
                                              {"attn.compressor.indexer", "attn.indexer.compressor"},
                                              {"compressor.kv_proj", "compressor.wkv"},
                                              {"compressor.gate_proj", "compressor.wgate"},
                                              {"compressor.kv_norm", "compressor.norm"},
                                              {"compressor.position_bias", "compressor.ape"},
                                              {"gate.e_score_correction_bias", "gate.bias"},
                                              {"gate_proj", "w1"},
                                              {"down_proj", "w2"},
                                              {"up_proj", "w3"},
                                              {"weight_scale_inv", "scale"},
                                              {"weight_scale", "scale"}}};

void replace(std::string& name, const Spelling& spelling) {
  const auto& [other, released] = spelling;
  size_t at = 0;
  while ((at = name.find(other, at)) != std::string::npos) {
    const size_t end = at + other.size();
    const bool whole_parts = (at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.');
    if (whole_parts) name.replace(at, other.size(), released);
    at += whole_parts ? released.size() : other.size();
  }
}

}  // namespace

std::string canonical_deepseek_v4_name(std::string_view stored) {
  constexpr std::string_view kModel = "model.";
  std::string name(stored.starts_with(kModel) ? stored.substr(kModel.size()) : stored);
  for (const auto& [other, released] : kWhole)
    if (name == other) return std::string(released);
  for (const Spelling& spelling : kParts) replace(name, spelling);
  return name;
}

bool is_deepseek_v4_draft_copy(std::string_view canonical) {
  if (!canonical.starts_with("mtp.")) return false;
  // The drafter's own heads end the same way.
  for (const std::string_view own : {"markov_head", "confidence_head"})
    if (canonical.find(own) != std::string_view::npos) return false;
  return canonical.find("emb") != std::string_view::npos || canonical.ends_with("head.weight");
}

}  // namespace tandem
