// tandem bench kernels, moe, attention, decode and prefill: the sizes of released models, without their
// files, against this machine's roofs.
#include <fmt/format.h>

#include <charconv>
#include <cstdio>

#include "bench/kernel_bench.h"
#include "bench/model_shapes.h"
#include "bench/shape_cases.h"
#include "bench/step_bench.h"
#include "cli/bench_engine.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/compute.h"

namespace tandem {
namespace {

using namespace bench;

Result<int> print(const Result<std::string>& text) {
  if (!text) return std::unexpected(text.error());
  std::fputs(text->c_str(), stdout);
  return kExitSuccess;
}

Result<std::vector<uint32_t>> numbers(const char* key, const std::vector<std::string>& texts, uint32_t least,
                                      uint32_t most) {
  std::vector<uint32_t> values;
  for (const std::string& text : texts) {
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
      return make_error(
          ErrorCode::invalid_argument,
          fmt::format("{}: '{}' is not a whole number in {}..{}; several with commas between them "
                      "would do",
                      key, text, least, most));
    }
    values.push_back(value);
  }
  if (values.empty())
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("{}: an empty list; use one number or more", key));
  return values;
}

struct Formats {
  PackFormat weights, experts;
};
Result<Formats> formats(const MeasureSettings& measure, const ModelShape& shape) {
  Formats found{shape.released, shape.released_experts};
  if (measure.weights != "released") {
    TANDEM_ASSIGN(found.weights, find_weight_format(measure.weights));
    found.experts = found.weights;
  }
  if (!measure.expert_weights.empty()) {
    TANDEM_ASSIGN(found.experts, find_weight_format(measure.expert_weights));
  }
  return found;
}

KernelBenchOptions kernel_options(const Settings& settings) {
  KernelBenchOptions options;
  options.threads = static_cast<int>(settings.engine.threads);
  options.rounds = static_cast<int>(settings.measure.runs);
  options.filter = settings.measure.filter;
  return options;
}

constexpr uint32_t kMostContext = 1u << 20;

Result<int> run_steps(Settings& settings, StepKind kind) {
  const MeasureSettings& measure = settings.measure;
  if (measure.list_shapes) return print(list_model_shapes(settings.json));
  StepBenchOptions options;
  options.kind = kind;
  TANDEM_ASSIGN(options.shape, find_model_shape(measure.shape));
  TANDEM_ASSIGN(const Formats chosen, formats(measure, *options.shape));
  options.weights = chosen.weights;
  options.experts = chosen.experts;
  options.layers = static_cast<uint32_t>(measure.layers);
  options.model = model_options(settings);
  TANDEM_ASSIGN(options.batches, numbers("measure.batch", measure.batch, 1, 65536));
  TANDEM_ASSIGN(options.contexts, numbers("measure.context", measure.context, 0, kMostContext));
  options.threads = static_cast<int>(settings.engine.threads);
  options.runs = static_cast<int>(measure.runs);
  options.profile = measure.profile;
  return print(run_step_bench(options, settings.json));
}

}  // namespace

Result<int> run_bench_kernels(Settings& settings) {
  TANDEM_TRY(use_huge_pages(settings));
  const MeasureSettings& measure = settings.measure;
  if (measure.list_shapes) return print(list_model_shapes(settings.json));
  if (measure.shape.empty()) return print(run_kernel_bench(kernel_options(settings), settings.json));
  TANDEM_ASSIGN(const ModelShape* shape, find_model_shape(measure.shape));
  TANDEM_ASSIGN(const Formats chosen, formats(measure, *shape));
  TANDEM_ASSIGN(const std::vector<uint32_t> batches, numbers("measure.batch", measure.batch, 1, kMostRows));
  return print(
      run_case_bench(kernel_options(settings), dense_cases(*shape, chosen.weights, batches), settings.json));
}

Result<int> run_bench_moe(Settings& settings) {
  const MeasureSettings& measure = settings.measure;
  if (measure.list_shapes) return print(list_model_shapes(settings.json));
  TANDEM_ASSIGN(const ModelShape* shape, find_model_shape(measure.shape));
  TANDEM_ASSIGN(const Formats chosen, formats(measure, *shape));
  TANDEM_ASSIGN(const std::vector<uint32_t> batches, numbers("measure.batch", measure.batch, 1, 65536));
  const MoeCase options{chosen.experts, static_cast<uint32_t>(measure.layers), 0};
  return print(run_case_bench(kernel_options(settings), moe_cases(*shape, options, batches), settings.json));
}

Result<int> run_bench_attention(Settings& settings) {
  const MeasureSettings& measure = settings.measure;
  if (measure.list_shapes) return print(list_model_shapes(settings.json));
  TANDEM_ASSIGN(const ModelShape* shape, find_model_shape(measure.shape));
  TANDEM_ASSIGN(const std::vector<uint32_t> batches, numbers("measure.batch", measure.batch, 1, 4096));
  TANDEM_ASSIGN(const std::vector<uint32_t> contexts,
                numbers("measure.context", measure.context, 1, kMostContext));
  return print(run_case_bench(kernel_options(settings),
                              attention_cases(*shape, batches, contexts, static_cast<uint32_t>(measure.chunk),
                                              kv_cache_dtype(settings)),
                              settings.json));
}

Result<int> run_bench_decode(Settings& settings) {
  const MeasureSettings& measure = settings.measure;
  if (!settings.model.empty()) {
    if (!measure.shape.empty())
      return make_error(ErrorCode::invalid_argument, "measure.shape: " + measure.shape + " with model " +
                                                         settings.model + "; use one of them");
    TANDEM_ASSIGN(const std::vector<uint32_t> batches, numbers("measure.batch", measure.batch, 1, 4096));
    TANDEM_ASSIGN(const std::vector<uint32_t> contexts,
                  numbers("measure.context", measure.context, 2, kMostContext));
    return run_engine_decode(settings, batches, contexts);
  }
  if (!settings.engine.trace.empty()) {
    return make_error(ErrorCode::unsupported,
                      "engine.trace: " + settings.engine.trace +
                          " without a model is not supported: sizes run without an engine; use --model");
  }
  return run_steps(settings, StepKind::decode);
}

Result<int> run_bench_prefill(Settings& settings) {
  return run_steps(settings, StepKind::prefill);
}

}  // namespace tandem
