// The rank's results beside those of Tandem's own experts, computed in this process from the same model.
#pragma once

#include <string>

#include "cli/conformance/case.h"

namespace tandem::conformance {

// "numbers.reference": rows of every layer within the rounding of the reply's dtype. Loads the model when it
// runs, with the placement that the rank has stated.
Case reference_case(const std::string& model, int threads);

}  // namespace tandem::conformance
