#include "serving/jinja/parser_impl.h"

#include <fmt/format.h>

namespace tandem::jinja {

Result<std::vector<Node>> Parser::parse_body(std::initializer_list<std::string_view> ends) {
  if (++nesting_ > kMaxNesting) return refuse(fmt::format("nesting deeper than {}", kMaxNesting));
  std::vector<Node> body;
  while (true) {
    if (now().kind == Kind::end) {
      if (ends.size() != 0) return bad(fmt::format("\"{}\" is missing", *(ends.end() - 1)));
      break;
    }
    if (now().kind == Kind::data) {
      Node node = make(NodeKind::data);
      node.value = Value(now().text);
      ++at_;
      body.push_back(std::move(node));
    } else if (now().kind == Kind::variable_begin) {
      ++at_;
      Node node = make(NodeKind::output);
      TANDEM_ASSIGN(Node expression, parse_tuple(true));
      node.children.push_back(std::move(expression));
      if (now().kind != Kind::variable_end) return bad(fmt::format("expected \"}}}}\" and found {}", here()));
      ++at_;
      TANDEM_ASSIGN(node, finish(std::move(node)));
      body.push_back(std::move(node));
    } else {
      ++at_;  // block_begin
      if (now().kind != Kind::name) return bad(fmt::format("expected a statement and found {}", here()));
      if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) break;
      TANDEM_ASSIGN(Node node, parse_statement());
      body.push_back(std::move(node));
    }
  }
  --nesting_;
  return body;
}

Result<Node> Parser::parse_statement() {
  const std::string& word = now().text;
  if (word == "if") return parse_if();
  if (word == "for") return parse_for();
  if (word == "set") return parse_set();
  if (word == "macro") return parse_macro();
  if (word == "generation") {
    // Marks what the assistant says, for training; here only its body counts.
    ++at_;
    TANDEM_TRY(expect_block_end());
    Node node = make(NodeKind::block);
    TANDEM_ASSIGN(node.body, parse_body({"endgeneration"}));
    ++at_;
    TANDEM_TRY(expect_block_end());
    return finish(std::move(node));
  }
  if (word == "break" || word == "continue") {
    if (loops_ == 0) return bad(fmt::format("\"{}\" outside a loop", word));
    Node node = make(word == "break" ? NodeKind::break_ : NodeKind::continue_);
    ++at_;
    TANDEM_TRY(expect_block_end());
    return node;
  }
  for (std::string_view known : {"elif", "else", "endif", "endfor", "endset", "endmacro", "endgeneration"}) {
    if (word == known) return bad(fmt::format("\"{}\" without its beginning", word));
  }
  return refuse(fmt::format("the statement \"{}\"", word));
}

Result<Node> Parser::parse_if() {
  Node node = make(NodeKind::if_);
  ++at_;
  TANDEM_ASSIGN(Node condition, parse_tuple(false));
  node.children.push_back(std::move(condition));
  TANDEM_TRY(expect_block_end());
  TANDEM_ASSIGN(node.body, parse_body({"elif", "else", "endif"}));
  if (is_name("elif")) {
    if (++nesting_ > kMaxNesting) return refuse(fmt::format("nesting deeper than {}", kMaxNesting));
    TANDEM_ASSIGN(Node other, parse_if());
    --nesting_;
    node.otherwise.push_back(std::move(other));
    return finish(std::move(node));
  }
  if (accept_name("else")) {
    TANDEM_TRY(expect_block_end());
    TANDEM_ASSIGN(node.otherwise, parse_body({"endif"}));
  }
  ++at_;
  TANDEM_TRY(expect_block_end());
  return finish(std::move(node));
}

Result<std::vector<std::string>> Parser::parse_targets() {
  std::vector<std::string> names;
  const bool parentheses = accept_op("(");
  do {
    if (!names.empty() && (is_op(")") || is_op("="))) break;
    TANDEM_ASSIGN(std::string name, expect_identifier());
    names.push_back(std::move(name));
  } while (accept_op(","));
  if (parentheses) TANDEM_TRY(expect_op(")"));
  return names;
}

Result<Node> Parser::parse_for() {
  Node node = make(NodeKind::for_);
  ++at_;
  TANDEM_ASSIGN(node.names, parse_targets());
  if (!accept_name("in")) return bad(fmt::format("expected \"in\" and found {}", here()));
  TANDEM_ASSIGN(Node iterable, parse_tuple(false));
  node.children.push_back(std::move(iterable));
  if (accept_name("if")) {
    TANDEM_ASSIGN(Node filter, parse_expression());
    node.children.push_back(std::move(filter));
  }
  if (is_name("recursive")) return refuse("a recursive loop");
  TANDEM_TRY(expect_block_end());
  const size_t begin = at_;
  ++loops_;
  TANDEM_ASSIGN(node.body, parse_body({"else", "endfor"}));
  --loops_;
  node.uses_loop = std::any_of(tokens_.begin() + begin, tokens_.begin() + at_, [](const Token& token) {
    return token.kind == Kind::name && token.text == "loop";
  });
  if (accept_name("else")) {
    TANDEM_TRY(expect_block_end());
    TANDEM_ASSIGN(node.otherwise, parse_body({"endfor"}));
  }
  ++at_;
  TANDEM_TRY(expect_block_end());
  return finish(std::move(node));
}

Result<Node> Parser::parse_set() {
  Node node = make(NodeKind::set);
  ++at_;
  if (ahead().kind == Kind::op && ahead().text == ".") {
    node.kind = NodeKind::set_member;
    TANDEM_ASSIGN(std::string space, expect_identifier());
    ++at_;
    TANDEM_ASSIGN(std::string name, expect_identifier());
    node.names = {std::move(space), std::move(name)};
  } else {
    TANDEM_ASSIGN(node.names, parse_targets());
  }
  if (accept_op("=")) {
    TANDEM_ASSIGN(Node value, parse_tuple(true));
    node.children.push_back(std::move(value));
    TANDEM_TRY(expect_block_end());
    return finish(std::move(node));
  }
  if (is_op("|")) return refuse("a filter on a set block");
  if (node.kind != NodeKind::set || node.names.size() != 1) return bad("a set block takes one name");
  node.kind = NodeKind::set_block;
  TANDEM_TRY(expect_block_end());
  TANDEM_ASSIGN(node.body, parse_body({"endset"}));
  ++at_;
  TANDEM_TRY(expect_block_end());
  return finish(std::move(node));
}

Result<Node> Parser::parse_macro() {
  Node node = make(NodeKind::macro);
  ++at_;
  TANDEM_ASSIGN(node.text, expect_identifier());
  TANDEM_TRY(expect_op("("));
  while (!is_op(")")) {
    TANDEM_ASSIGN(std::string name, expect_identifier());
    node.names.push_back(std::move(name));
    if (accept_op("=")) {
      TANDEM_ASSIGN(Node value, parse_expression());
      node.children.push_back(std::move(value));
    } else if (!node.children.empty()) {
      return bad("a parameter without default behind one with a default");
    }
    if (!accept_op(",")) break;
  }
  TANDEM_TRY(expect_op(")"));
  TANDEM_TRY(expect_block_end());
  const int loops = std::exchange(loops_, 0);
  const size_t begin = at_;
  TANDEM_ASSIGN(node.body, parse_body({"endmacro"}));
  for (size_t i = begin; i < at_; ++i) {
    for (std::string_view name : {"caller", "varargs", "kwargs"}) {
      if (tokens_[i].kind == Kind::name && tokens_[i].text == name)
        return refuse(fmt::format("\"{}\" in a macro", name));
    }
  }
  loops_ = loops;
  ++at_;
  TANDEM_TRY(expect_block_end());
  return finish(std::move(node));
}

}  // namespace tandem::jinja
