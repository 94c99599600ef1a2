// Result<T>: how a failure crosses a module border. The function that first knows what is wrong writes the
// message (one line: the thing, the value, the remedy); everything above passes it on unchanged. Any thread.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace tandem {

enum class ErrorCode : uint8_t {
  invalid_argument,    // the caller's input is wrong: HTTP 400, exit status 2
  not_found,           // a named thing does not exist: HTTP 404
  out_of_range,        // a value or an id outside its limits
  unsupported,         // understood, and refused by name
  resource_exhausted,  // memory, blocks, queue: HTTP 429
  would_block,         // not now: poll and try again. Never an error to report
  unavailable,         // a peer or a state that may come back: HTTP 503
  deadline_exceeded,   // time is up
  cancelled,           // asked to stop
  data_loss,           // a file or a frame is not what it says it is
  internal,            // an invariant of ours does not hold
};

// "invalid_argument", "data_loss", ...: for logs and --json.
std::string_view error_code_name(ErrorCode code);

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;
};

template <class T>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> make_error(ErrorCode code, std::string message) {
  return std::unexpected<Error>(Error{code, std::move(message)});
}

// A status without a value, for completions that travel through queues.
using Status = Result<void>;

}  // namespace tandem

#define TANDEM_CONCAT_INNER(a, b) a##b
#define TANDEM_CONCAT(a, b) TANDEM_CONCAT_INNER(a, b)

// TANDEM_TRY(expr): returns the error of `expr` from the enclosing function, or goes on.
#define TANDEM_TRY(expr)                                                             \
  do {                                                                               \
    auto tandem_try_result = (expr);                                                 \
    if (!tandem_try_result) {                                                        \
      return std::unexpected<::tandem::Error>(std::move(tandem_try_result).error()); \
    }                                                                                \
  } while (0)

// TANDEM_ASSIGN(auto x, expr): the value of `expr`, or its error returned from the enclosing function.
#define TANDEM_ASSIGN(declaration, expr) \
  TANDEM_ASSIGN_INNER(TANDEM_CONCAT(tandem_result_, __LINE__), declaration, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): names and declarations cannot stand in parentheses.
#define TANDEM_ASSIGN_INNER(temporary, declaration, expr)                                \
  auto temporary = (expr);                                                               \
  if (!temporary) return std::unexpected<::tandem::Error>(std::move(temporary).error()); \
  declaration = std::move(*temporary)
// NOLINTEND(bugprone-macro-parentheses)
