// Parser: recursive descent over the tokens of one template. What it is made of stands in three files:
// statements, operators (loosest binding first) and operands with what hangs on them (calls, filters, tests).
// One thread.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "serving/jinja/ast.h"
#include "serving/jinja/lexer.h"

namespace tandem::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens);
  Result<Node> parse_template();

 private:
  using Kind = Token::Kind;

  // Each level of nesting costs some ten stack frames of the parser.
  static constexpr int kMaxNesting = 60;

  // Tokens.
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool is_op(std::string_view text) const { return now().kind == Kind::op && now().text == text; }
  bool is_name(std::string_view text) const { return now().kind == Kind::name && now().text == text; }
  bool accept_op(std::string_view text);
  bool accept_name(std::string_view text);
  std::unexpected<Error> bad(std::string_view what) const;
  std::unexpected<Error> refuse(std::string_view what) const;
  std::string here() const;
  Status expect_op(std::string_view text);
  Status expect_block_end();
  Result<std::string> expect_identifier();

  // Nodes.
  Node make(NodeKind kind) const;
  // Sets the depth; deep trees would overflow the evaluator's stack.
  Result<Node> finish(Node node) const;
  Result<Node> binary(NodeKind kind, Node left, Node right) const;
  Node constant(Value value) const;

  // Statements.
  // Statements until a block tag with one of the names in `ends`; the tag's name is left to be read.
  Result<std::vector<Node>> parse_body(std::initializer_list<std::string_view> ends);
  Result<Node> parse_statement();
  Result<Node> parse_if();
  Result<std::vector<std::string>> parse_targets();
  Result<Node> parse_for();
  Result<Node> parse_set();
  Result<Node> parse_macro();

  // Operators.
  // `a, b` is a tuple here.
  Result<Node> parse_tuple(bool conditional);
  Result<Node> parse_expression();
  Result<Node> parse_or();
  Result<Node> parse_and();
  Result<Node> parse_not();
  Result<Node> parse_compare();
  Result<Node> parse_sum();
  Result<Node> parse_concatenation();
  Result<Node> parse_product();
  Result<Node> parse_power();
  Result<Node> parse_unary(bool with_filter);

  // Operands.
  Result<Node> parse_primary();
  Result<Node> parse_parentheses();
  Result<Node> parse_list();
  Result<Node> parse_dict();
  // Arguments behind "(", up to and with ")".
  Status parse_arguments(Node& node);
  Result<Node> parse_postfix(Node node);
  Result<Node> parse_subscript(Node object);
  Result<Node> parse_call(Node callee);
  Result<Node> parse_filters(Node node);
  // map("upper"), selectattr("role", "equalto", ...): the names inside are known now, so they are checked
  // now.
  Status check_inner_names(const Node& node);
  Result<Node> parse_test(Node value);

  std::vector<Token> tokens_;
  std::set<std::string> macros_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
};

}  // namespace tandem::jinja
