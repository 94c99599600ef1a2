// One recorded case of tests/fixtures/tokenizer, read and compared. For the tests and the tokenizer_cases
// tool only.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace tandem {

// `line`: `<hex of the text>\t<ids>\t<hex of the decoded ids>`. Empty when encode, decode and the incremental
// decoder agree with it; otherwise what differs, readable.
std::string check_tokenizer_case(const Tokenizer& tokenizer, std::string_view line);

}  // namespace tandem
