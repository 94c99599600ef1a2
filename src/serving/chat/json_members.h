// The members of a JSON object as the text has them, so that a value can be passed on as it was written (long
// numbers, order of keys). Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct JsonMember {
  std::string key;         // decoded
  std::string_view value;  // as it stands, without blanks around
};

// `object`: the well-formed text of an object, which outlives what is returned.
std::vector<JsonMember> json_members(std::string_view object);

}  // namespace tandem
