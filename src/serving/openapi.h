// The OpenAPI document of a server, at /openapi.json: every path, and every field that a request may have.
// Fields that are refused by name are not in it (docs/api.md has them). Pure; any thread.
#pragma once

#include <string>

namespace tandem {

// `model`: the id that is served; "" while it loads.
std::string openapi_json(const std::string& model);

}  // namespace tandem
