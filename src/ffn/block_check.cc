#include "ffn/block_check.h"

#include <fmt/format.h>

namespace tandem {

Status check_block(const SplitSettings& settings, const MoeBlock& block) {
  const auto refuse = [](const char* what, bool block_does) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("FFN worker: the block {} {}, the settings say otherwise",
                                  block_does ? "does" : "does not", what));
  };
  const MoeBlockOptions& options = block.options();
  if (options.routes == settings.gate_on_attention) return refuse("route", options.routes);
  if (options.runs_shared_experts == settings.shared_experts_on_attention) {
    return refuse("run shared experts", options.runs_shared_experts);
  }
  if (options.compute_dtype != settings.compute_dtype || options.reply_dtype != settings.reply_dtype ||
      options.sum_mode != settings.sum_mode) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("FFN worker: the block computes {} to {}, the settings say {} to {}",
                                  dtype_name(options.compute_dtype), dtype_name(options.reply_dtype),
                                  dtype_name(settings.compute_dtype), dtype_name(settings.reply_dtype)));
  }
  if (options.activation_format != settings.activation_format) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("FFN worker: the block takes {} activations, the settings say {}",
                                  activation_format_name(options.activation_format),
                                  activation_format_name(settings.activation_format)));
  }
  if (block.shape().hidden_size != settings.hidden_size ||
      block.shape().router.num_experts != settings.num_experts ||
      block.shape().router.top_k != settings.top_k ||
      block.shape().num_hash_layers != settings.num_hash_layers) {
    return make_error(ErrorCode::invalid_argument, "FFN worker: block and settings are of different models");
  }
  return {};
}

}  // namespace tandem
