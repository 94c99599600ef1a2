#include "base/result.h"

namespace tandem {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::out_of_range:
      return "out_of_range";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::resource_exhausted:
      return "resource_exhausted";
    case ErrorCode::would_block:
      return "would_block";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::deadline_exceeded:
      return "deadline_exceeded";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::data_loss:
      return "data_loss";
    case ErrorCode::internal:
      return "internal";
  }
  return "internal";
}

}  // namespace tandem
