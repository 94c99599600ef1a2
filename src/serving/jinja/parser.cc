#include "serving/jinja/parser_impl.h"

#include <fmt/format.h>

#include "serving/jinja/parser.h"

namespace tandem::jinja {

Parser::Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  // Macros may be used before the place where they are defined.
  for (size_t i = 0; i + 1 < tokens_.size(); ++i) {
    if (tokens_[i].kind == Kind::name && tokens_[i].text == "macro") macros_.insert(tokens_[i + 1].text);
  }
}

Result<Node> Parser::parse_template() {
  Node root = make(NodeKind::block);
  TANDEM_ASSIGN(root.body, parse_body({}));
  return finish(std::move(root));
}

bool Parser::accept_op(std::string_view text) {
  if (!is_op(text)) return false;
  ++at_;
  return true;
}

bool Parser::accept_name(std::string_view text) {
  if (!is_name(text)) return false;
  ++at_;
  return true;
}

std::unexpected<Error> Parser::bad(std::string_view what) const {
  return make_error(ErrorCode::invalid_argument, fmt::format("chat template line {}: {}", now().line, what));
}

std::unexpected<Error> Parser::refuse(std::string_view what) const {
  return make_error(ErrorCode::unsupported,
                    fmt::format("chat template line {}: {} is not supported", now().line, what));
}

std::string Parser::here() const {
  switch (now().kind) {
    case Kind::end:
      return "the end of the template";
    case Kind::block_end:
      return "\"%}\"";
    case Kind::variable_end:
      return "\"}}\"";
    case Kind::string:
      return "a string";
    default:
      return fmt::format("\"{}\"", now().text);
  }
}

Status Parser::expect_op(std::string_view text) {
  if (!accept_op(text)) return bad(fmt::format("expected \"{}\" and found {}", text, here()));
  return {};
}

Status Parser::expect_block_end() {
  if (now().kind != Kind::block_end) return bad(fmt::format("expected \"%}}\" and found {}", here()));
  ++at_;
  return {};
}

Result<std::string> Parser::expect_identifier() {
  if (now().kind != Kind::name) return bad(fmt::format("expected a name and found {}", here()));
  return tokens_[at_++].text;
}

Node Parser::make(NodeKind kind) const {
  Node node;
  node.kind = kind;
  node.line = now().line;
  return node;
}

Result<Node> Parser::finish(Node node) const {
  for (const auto* list : {&node.children, &node.body, &node.otherwise}) {
    for (const Node& child : *list) node.depth = std::max(node.depth, child.depth + 1);
  }
  if (node.depth > kMaxTreeDepth)
    return refuse(fmt::format("an expression or block deeper than {}", kMaxTreeDepth));
  return node;
}

Result<Node> Parser::binary(NodeKind kind, Node left, Node right) const {
  Node node = make(kind);
  node.line = left.line;
  node.children.push_back(std::move(left));
  node.children.push_back(std::move(right));
  return finish(std::move(node));
}

Node Parser::constant(Value value) const {
  Node node = make(NodeKind::constant);
  node.value = std::move(value);
  return node;
}

Result<Node> parse(std::string_view source) {
  TANDEM_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).parse_template();
}

}  // namespace tandem::jinja
