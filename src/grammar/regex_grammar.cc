#include "grammar/regex_grammar.h"

#include <fmt/format.h>
#include <span>
#include <utility>
#include <vector>

#include "tokenizer/regex.h"
#include "tokenizer/regex_tree.h"

namespace tandem {
namespace {

using Kind = RegexNode::Kind;

std::unexpected<Error> refuse(std::string_view pattern, std::string_view what) {
  return make_error(ErrorCode::unsupported,
                    fmt::format("pattern \"{}\": {} is not supported; leave it out", pattern, what));
}

Result<GrammarExpression> convert(const RegexNode& node, std::string_view pattern);

Result<std::vector<GrammarExpression>> convert_all(std::span<const RegexNode> nodes,
                                                   std::string_view pattern) {
  std::vector<GrammarExpression> out;
  for (const RegexNode& node : nodes) {
    TANDEM_ASSIGN(GrammarExpression expression, convert(node, pattern));
    out.push_back(std::move(expression));
  }
  return out;
}

Result<GrammarExpression> convert(const RegexNode& node, std::string_view pattern) {
  switch (node.kind) {
    case Kind::set:
      return GrammarExpression::one_of(node.set);
    case Kind::sequence: {
      TANDEM_ASSIGN(auto parts, convert_all(node.children, pattern));
      return GrammarExpression::sequence(std::move(parts));
    }
    case Kind::choice: {
      TANDEM_ASSIGN(auto options, convert_all(node.children, pattern));
      return GrammarExpression::choice(std::move(options));
    }
    case Kind::repeat: {
      TANDEM_ASSIGN(GrammarExpression what, convert(node.children[0], pattern));
      static_assert(Regex::kUnbounded == GrammarExpression::kUnbounded);
      return GrammarExpression::repeat(std::move(what), node.min, node.max);
    }
    case Kind::look:
      return refuse(pattern, "lookahead");
    case Kind::begin:
    case Kind::end:
      return refuse(pattern, "an anchor that is not at an end");
  }
  return refuse(pattern, "this");
}

// One of the pattern's alternatives, with what may stand around it.
Result<GrammarExpression> alternative(const RegexNode& node, std::string_view pattern, RegexMatch match,
                                      const GrammarExpression& around) {
  std::span<const RegexNode> parts(&node, 1);
  if (node.kind == Kind::sequence) parts = node.children;
  const bool begins = !parts.empty() && parts.front().kind == Kind::begin;
  if (begins) parts = parts.subspan(1);
  const bool ends = !parts.empty() && parts.back().kind == Kind::end;
  if (ends) parts = parts.first(parts.size() - 1);
  TANDEM_ASSIGN(auto sequence, convert_all(parts, pattern));
  if (match == RegexMatch::inside && !begins) {
    sequence.insert(sequence.begin(), GrammarExpression::repeat(around, 0));
  }
  if (match == RegexMatch::inside && !ends) sequence.push_back(GrammarExpression::repeat(around, 0));
  return GrammarExpression::sequence(std::move(sequence));
}

}  // namespace

Result<GrammarExpression> regex_grammar(std::string_view pattern, RegexMatch match,
                                        const GrammarExpression& around) {
  TANDEM_ASSIGN(const RegexNode root, parse_regex(pattern, RegexDialect::text));
  std::span<const RegexNode> alternatives(&root, 1);
  if (root.kind == Kind::choice) alternatives = root.children;
  std::vector<GrammarExpression> options;
  for (const RegexNode& node : alternatives) {
    TANDEM_ASSIGN(GrammarExpression option, alternative(node, pattern, match, around));
    options.push_back(std::move(option));
  }
  return GrammarExpression::choice(std::move(options));
}

}  // namespace tandem
