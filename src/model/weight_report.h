// The report of what quantising weights at load lost: a JSON file for scripts. One thread.
#pragma once

#include <string>

#include "model/model_weights.h"

namespace tandem {

// Writes `path`: {"model", "weights", "total": {..}, "tensors": [{"name", "format", "elements",
// "relative_rms_error", "largest_error"}, ..]}, tensors in the order of the load plan, over the parts that
// this rank holds; none where nothing was quantised. Relative: root of the squared differences over the
// squared weights. The error names the file.
Status write_weight_report(const std::string& path, const std::string& model, WeightStorage storage,
                           const ModelWeights& weights);

}  // namespace tandem
