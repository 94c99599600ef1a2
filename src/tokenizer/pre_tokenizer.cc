#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace tandem {
namespace {

struct Range {
  size_t begin, end;  // code points
};

// The text under work: one code point array for all pieces, so that a step costs no strings.
struct Work {
  std::vector<char32_t> text;
  std::vector<Range> pieces;
};

struct Part {
  Range range;
  bool is_match;
};

// Applies the behaviour to the alternation of matches and gaps that covers one piece.
void join_parts(const std::vector<Part>& parts, SplitBehavior behavior, std::vector<Range>& out) {
  const size_t first = out.size();
  switch (behavior) {
    case SplitBehavior::isolated:
      for (const Part& part : parts) out.push_back(part.range);
      break;
    case SplitBehavior::removed:
      for (const Part& part : parts) {
        if (!part.is_match) out.push_back(part.range);
      }
      break;
    case SplitBehavior::contiguous:
    case SplitBehavior::merged_with_previous: {
      bool previous = false;
      for (const Part& part : parts) {
        const bool extend =
            behavior == SplitBehavior::contiguous ? part.is_match == previous : part.is_match && !previous;
        if (extend && out.size() > first) {
          out.back().end = part.range.end;
        } else {
          out.push_back(part.range);
        }
        previous = part.is_match;
      }
      break;
    }
    case SplitBehavior::merged_with_next: {
      bool previous = false;
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->is_match && !previous && out.size() > first) {
          out.back().begin = part->range.begin;
        } else {
          out.push_back(part->range);
        }
        previous = part->is_match;
      }
      std::reverse(out.begin() + first, out.end());
      break;
    }
  }
}

Status split_pieces(const PreTokenizerStep& step, SplitBehavior behavior, Work& work) {
  std::vector<Range> out;
  out.reserve(work.pieces.size() * 2);
  std::vector<Part> parts;
  RegexSearch search(step.regex);
  for (const Range& piece : work.pieces) {
    const size_t length = piece.end - piece.begin;
    search.reset(std::span(work.text).subspan(piece.begin, length));
    parts.clear();
    size_t done = 0;
    while (done < length) {
      TANDEM_ASSIGN(const RegexSearch::Match match, search.find(done));
      const size_t begin = match.found ? match.begin : length;
      if (begin > done) parts.push_back({{piece.begin + done, piece.begin + begin}, step.invert});
      if (!match.found) break;
      parts.push_back({{piece.begin + match.begin, piece.begin + match.end}, !step.invert});
      done = match.end;
    }
    join_parts(parts, behavior, out);
  }
  work.pieces = std::move(out);
  return {};
}

void prefix_spaces(Work& work) {
  Work out;
  for (const Range& piece : work.pieces) {
    const size_t begin = out.text.size();
    if (work.text[piece.begin] != U' ') out.text.push_back(U' ');
    out.text.insert(out.text.end(), work.text.begin() + piece.begin, work.text.begin() + piece.end);
    out.pieces.push_back({begin, out.text.size()});
  }
  work = std::move(out);
}

void replace_spaces(const PreTokenizerStep& step, bool at_start, Work& work) {
  std::vector<char32_t> mark;
  for (size_t offset = 0; offset < step.replacement.size();)
    mark.push_back(next_codepoint(step.replacement, offset));
  Work out;
  for (const Range& piece : work.pieces) {
    const size_t begin = out.text.size();
    const char32_t head = work.text[piece.begin];
    const bool wanted = step.prepend == PreTokenizerStep::Prepend::always ||
                        (step.prepend == PreTokenizerStep::Prepend::first && at_start && piece.begin == 0);
    if (wanted && head != U' ' && head != mark[0]) out.text.insert(out.text.end(), mark.begin(), mark.end());
    for (size_t i = piece.begin; i < piece.end; ++i) {
      if (work.text[i] == U' ') {
        out.text.insert(out.text.end(), mark.begin(), mark.end());
      } else {
        out.text.push_back(work.text[i]);
      }
    }
    out.pieces.push_back({begin, out.text.size()});
  }
  work = std::move(out);
}

}  // namespace

Result<PreTokenizer::Pieces> PreTokenizer::split(std::string_view text, bool at_start) const {
  Pieces result;
  if (text.empty()) return result;
  if (steps_.empty()) {
    result.text = text;
    result.ends.push_back(text.size());
    return result;
  }
  Work work;
  work.text.reserve(text.size());
  for (size_t offset = 0; offset < text.size();) work.text.push_back(next_codepoint(text, offset));
  work.pieces.push_back({0, work.text.size()});
  for (const PreTokenizerStep& step : steps_) {
    switch (step.kind) {
      case PreTokenizerStep::Kind::split:
        TANDEM_TRY(split_pieces(step, step.behavior, work));
        break;
      case PreTokenizerStep::Kind::prefix_space:
        prefix_spaces(work);
        break;
      case PreTokenizerStep::Kind::metaspace:
        replace_spaces(step, at_start, work);
        if (step.cut) TANDEM_TRY(split_pieces(step, SplitBehavior::merged_with_next, work));
        break;
    }
  }
  result.text.reserve(text.size() + work.pieces.size());
  result.ends.reserve(work.pieces.size());
  for (const Range& piece : work.pieces) {
    for (size_t i = piece.begin; i < piece.end; ++i) append_utf8(result.text, work.text[i]);
    result.ends.push_back(result.text.size());
  }
  return result;
}

}  // namespace tandem
