// StopChecker: cuts a growing text at the first stop string, wherever token borders fall. It holds back only
// a suffix that is a proper prefix of some stop string, so text flows as early as it can. The result does not
// depend on how the text is cut into pieces. One per answer; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class StopChecker {
 public:
  // `stops`: none of them empty (the request parser refuses that by name).
  explicit StopChecker(std::vector<std::string> stops);

  // Takes the next piece and appends to `out` what can no longer become part of a stop string. True when a
  // stop string is complete: the one that ends first, of those the longest; neither it nor anything after it
  // is ever released.
  bool push(std::string_view piece, std::string& out);
  // The text has ended: appends what was held back.
  void finish(std::string& out);

  bool stopped() const { return stopped_; }
  // The stop string that was found; "" for none.
  const std::string& found() const { return found_; }
  size_t held() const { return held_.size(); }

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> fallback;  // [text.size()]: length of the longest proper border of each prefix
    uint32_t matched = 0;            // how much of `text` the seen text ends with
  };
  static bool advance(Pattern& pattern, char c);

  std::vector<Pattern> patterns_;
  std::string held_, found_;
  bool stopped_ = false;
};

}  // namespace tandem
