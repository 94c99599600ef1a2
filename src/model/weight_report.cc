#include "model/weight_report.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tandem {
namespace {

nlohmann::ordered_json to_json(const QuantizationError& error) {
  return {{"elements", error.elements},
          {"relative_rms_error", error.relative_rms()},
          {"largest_error", error.largest}};
}

}  // namespace

Status write_weight_report(const std::string& path, const std::string& model, WeightStorage storage,
                           const ModelWeights& weights) {
  QuantizationError total;
  auto tensors = nlohmann::ordered_json::array();
  for (const QuantizedTensor& each : weights.quantized) {
    total.add(each.error);
    nlohmann::ordered_json entry = {{"name", each.tensor}, {"format", pack_format_name(each.format)}};
    entry.update(to_json(each.error));
    tensors.push_back(std::move(entry));
  }
  const nlohmann::ordered_json report = {{"model", model},
                                         {"weights", weight_storage_name(storage)},
                                         {"total", to_json(total)},
                                         {"tensors", std::move(tensors)}};
  std::ofstream file(path, std::ios::trunc);
  file << report.dump(1) << '\n';
  file.close();
  if (file) return {};
  return make_error(ErrorCode::unavailable, "engine.weights_report: cannot write " + path + ": " +
                                                std::strerror(errno) +
                                                "; a file in a folder that exists would do");
}

}  // namespace tandem
