#include "serving/stop_checker.h"

#include <algorithm>
#include <utility>

namespace tandem {

StopChecker::StopChecker(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    Pattern pattern{.text = std::move(stop), .fallback = {}};
    pattern.fallback.assign(pattern.text.size(), 0);
    uint32_t border = 0;
    for (size_t i = 1; i < pattern.text.size(); ++i) {
      while (border > 0 && pattern.text[i] != pattern.text[border]) border = pattern.fallback[border - 1];
      if (pattern.text[i] == pattern.text[border]) ++border;
      pattern.fallback[i] = border;
    }
    patterns_.push_back(std::move(pattern));
  }
}

bool StopChecker::advance(Pattern& pattern, char c) {
  while (pattern.matched > 0 && pattern.text[pattern.matched] != c) {
    pattern.matched = pattern.fallback[pattern.matched - 1];
  }
  if (pattern.text[pattern.matched] == c) ++pattern.matched;
  return pattern.matched == pattern.text.size();
}

bool StopChecker::push(std::string_view piece, std::string& out) {
  if (stopped_) return true;
  if (patterns_.empty()) {
    out += piece;
    return false;
  }
  const size_t start = held_.size();
  held_ += piece;
  for (size_t i = start; i < held_.size(); ++i) {
    const Pattern* longest = nullptr;
    for (Pattern& pattern : patterns_) {
      if (advance(pattern, held_[i]) && (longest == nullptr || pattern.text.size() > longest->text.size()))
        longest = &pattern;
    }
    if (longest == nullptr) continue;
    out.append(held_, 0, i + 1 - longest->text.size());
    found_ = longest->text;
    held_.clear();
    stopped_ = true;
    return true;
  }
  size_t keep = 0;
  for (const Pattern& pattern : patterns_) keep = std::max<size_t>(keep, pattern.matched);
  out.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

void StopChecker::finish(std::string& out) {
  if (!stopped_) out += held_;
  held_.clear();
}

}  // namespace tandem
