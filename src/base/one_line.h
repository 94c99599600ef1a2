// What others wrote, fit for a message of one line.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// `text` with a '?' in place of each control character, newlines among them.
inline std::string one_line(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

}  // namespace tandem
