// Pieces of request parsing that the APIs share. Internal to the parsers of requests (*_request.cc).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "serving/field_reader.h"
#include "serving/openai_request.h"

namespace tandem {

// The body as a JSON object.
ApiResult<nlohmann::json> parse_body(std::string_view body);
// "model": missing is 400, another than the one served is 404.
std::optional<ApiError> check_model(FieldReader& fields, const RequestContext& context);
// Sampling, the answer's form, stop, n, seed, stream and the fields that have no effect or are refused in
// both APIs. `body`: the request as it came.
void read_common(FieldReader& fields, std::string_view body, const RequestContext& context,
                 int64_t least_max_tokens, CommonRequest& out);
// Stop strings: one, or a list, under `name`.
void read_stops(FieldReader& fields, std::string_view name, CommonRequest& out);
// "timeout", in seconds.
void read_timeout(FieldReader& fields, CommonRequest& out);
// A token id; anything else fails under `name`, naming the value.
std::optional<int32_t> read_token_id(FieldReader& fields, std::string_view name, const nlohmann::json& value,
                                     const RequestContext& context);

}  // namespace tandem
