// JsonScan: where an object or a list ends in a text that grows, each byte looked at once. Whether it is
// well-formed is for a parser to say. A value; one thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace tandem {

struct JsonScan {
  size_t at = 0;   // bytes that were read; where the value begins, to begin with
  size_t end = 0;  // behind the value; 0: it is open
  int depth = 0;
  bool string = false, escape = false;

  bool has_begun() const { return depth != 0 || end != 0; }
  // Reads on, the first bracket at `at` first of all; whether the value has ended. `text` begins as it did
  // before.
  bool read(std::string_view text) {
    for (; end == 0 && at < text.size(); ++at) {
      const char c = text[at];
      if (string) {
        if (escape) {
          escape = false;
        } else if (c == '\\') {
          escape = true;
        } else if (c == '"') {
          string = false;
        }
      } else if (c == '"') {
        string = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if ((c == '}' || c == ']') && --depth == 0) {
        end = at + 1;
      }
    }
    return end != 0;
  }
};

}  // namespace tandem
