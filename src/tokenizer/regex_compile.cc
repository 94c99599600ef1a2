// Tree to program.
#include <fmt/format.h>

#include "tokenizer/regex.h"
#include "tokenizer/regex_tree.h"
#include "tokenizer/unicode.h"

namespace tandem {

using Op = RegexInstruction::Op;
using Kind = RegexNode::Kind;

namespace {

constexpr size_t kMaxProgram = 4096;  // real patterns have under 100 instructions

// What can begin a match of the node, and whether it can match nothing.
struct Start {
  CodepointSet first;
  bool nullable = false;
};

Start start_of(const RegexNode& node) {
  Start start;
  switch (node.kind) {
    case Kind::set:
      start.first = node.set;
      break;
    case Kind::sequence:
      start.nullable = true;
      for (const RegexNode& child : node.children) {
        const Start inner = start_of(child);
        start.first.add(inner.first);
        if (!inner.nullable) {
          start.nullable = false;
          break;
        }
      }
      break;
    case Kind::choice:
      for (const RegexNode& child : node.children) {
        const Start inner = start_of(child);
        start.first.add(inner.first);
        start.nullable = start.nullable || inner.nullable;
      }
      break;
    case Kind::repeat:
      start = start_of(node.children[0]);
      start.nullable = start.nullable || node.min == 0;
      break;
    case Kind::look:
    case Kind::begin:
    case Kind::end:
      start.nullable = true;
      break;
  }
  return start;
}

}  // namespace

class RegexCompiler {
 public:
  static Result<Regex> compile(const RegexNode& root, std::string_view pattern) {
    RegexCompiler compiler;
    Start start = start_of(root);
    if (start.nullable) {
      return make_error(
          ErrorCode::unsupported,
          fmt::format("pattern \"{}\" can match the empty string, which is not supported", pattern));
    }
    TANDEM_TRY(compiler.emit(root));
    TANDEM_TRY(compiler.append({.op = Op::match}));
    Regex regex = std::move(compiler.regex_);
    regex.pattern_ = pattern;
    regex.first_ = std::move(start.first);
    regex.first_.seal();
    for (CodepointSet& set : regex.sets_) set.seal();
    return regex;
  }

 private:
  Status append(RegexInstruction instruction) {
    if (regex_.program_.size() >= kMaxProgram) {
      return make_error(ErrorCode::unsupported, "a pattern of more than 4096 instructions is not supported");
    }
    regex_.program_.push_back(instruction);
    return {};
  }
  uint32_t here() const { return static_cast<uint32_t>(regex_.program_.size()); }
  uint32_t add_set(const CodepointSet& set) {
    regex_.sets_.push_back(set);
    return static_cast<uint32_t>(regex_.sets_.size() - 1);
  }

  Status emit(const RegexNode& node) {
    switch (node.kind) {
      case Kind::set:
        return append({.op = Op::set, .a = add_set(node.set)});
      case Kind::sequence:
        for (const RegexNode& child : node.children) TANDEM_TRY(emit(child));
        return {};
      case Kind::choice:
        return emit_choice(node);
      case Kind::repeat:
        return emit_repeat(node);
      case Kind::look: {
        const uint32_t at = here();
        TANDEM_TRY(append({.op = Op::look, .negated = node.negated}));
        TANDEM_TRY(emit(node.children[0]));
        TANDEM_TRY(append({.op = Op::match}));
        regex_.program_[at].a = here();
        return {};
      }
      case Kind::begin:  // only of the other dialect
        return make_error(ErrorCode::unsupported, "the anchor \"^\" is not supported");
      case Kind::end:
        return append({.op = Op::end});
    }
    return {};
  }

  Status emit_choice(const RegexNode& node) {
    std::vector<uint32_t> jumps;
    for (size_t i = 0; i + 1 < node.children.size(); ++i) {
      const uint32_t split = here();
      TANDEM_TRY(append({.op = Op::split, .a = split + 1}));
      TANDEM_TRY(emit(node.children[i]));
      jumps.push_back(here());
      TANDEM_TRY(append({.op = Op::jump}));
      regex_.program_[split].b = here();
    }
    TANDEM_TRY(emit(node.children.back()));
    for (uint32_t jump : jumps) regex_.program_[jump].a = here();
    return {};
  }

  Status emit_repeat(const RegexNode& node) {
    const RegexNode& child = node.children[0];
    if (child.kind == Kind::set) {
      return append({.op = Op::run,
                     .possessive = node.possessive,
                     .a = add_set(child.set),
                     .min = node.min,
                     .max = node.max,
                     .slot = regex_.num_runs_++});
    }
    // Every copy below then has at least one instruction, so the program's limit bounds the loops too.
    if (start_of(child).nullable) {
      return make_error(ErrorCode::unsupported,
                        "a repetition of something that can be empty is not supported");
    }
    for (uint32_t i = 0; i < node.min; ++i) TANDEM_TRY(emit(child));
    if (node.max == Regex::kUnbounded) {
      const uint32_t split = here();
      TANDEM_TRY(append({.op = Op::split, .a = split + 1}));
      TANDEM_TRY(emit(child));
      TANDEM_TRY(append({.op = Op::jump, .a = split}));
      regex_.program_[split].b = here();
      return {};
    }
    std::vector<uint32_t> splits;
    for (uint32_t i = node.min; i < node.max; ++i) {
      splits.push_back(here());
      TANDEM_TRY(append({.op = Op::split, .a = here() + 1}));
      TANDEM_TRY(emit(child));
    }
    for (uint32_t split : splits) regex_.program_[split].b = here();
    return {};
  }

  Regex regex_;
};

Result<Regex> Regex::compile(std::string_view pattern) {
  TANDEM_ASSIGN(const RegexNode root, parse_regex(pattern, RegexDialect::pre_tokenizer));
  return RegexCompiler::compile(root, pattern);
}

Result<Regex> Regex::literal(std::string_view text) {
  if (find_invalid_utf8(text) != std::string_view::npos) {
    return make_error(ErrorCode::invalid_argument, "a string pattern must be UTF-8");
  }
  RegexNode sequence;
  for (size_t offset = 0; offset < text.size();) {
    RegexNode node{.kind = Kind::set};
    node.set.add(next_codepoint(text, offset));
    sequence.children.push_back(std::move(node));
  }
  return RegexCompiler::compile(sequence, text);
}

}  // namespace tandem
