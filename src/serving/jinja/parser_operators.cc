#include "serving/jinja/parser_impl.h"

#include <fmt/format.h>

namespace tandem::jinja {

Result<Node> Parser::parse_tuple(bool conditional) {
  Node tuple = make(NodeKind::tuple);
  TANDEM_ASSIGN(Node first, conditional ? parse_expression() : parse_or());
  if (!is_op(",")) return first;
  tuple.children.push_back(std::move(first));
  while (accept_op(",")) {
    if (now().kind == Kind::block_end || now().kind == Kind::variable_end || is_op(")")) break;
    TANDEM_ASSIGN(Node item, conditional ? parse_expression() : parse_or());
    tuple.children.push_back(std::move(item));
  }
  return finish(std::move(tuple));
}

Result<Node> Parser::parse_expression() {
  if (++nesting_ > kMaxNesting) return refuse(fmt::format("nesting deeper than {}", kMaxNesting));
  TANDEM_ASSIGN(Node value, parse_or());
  while (is_name("if")) {
    Node node = make(NodeKind::conditional);
    ++at_;
    TANDEM_ASSIGN(Node condition, parse_or());
    node.children.push_back(std::move(condition));
    node.children.push_back(std::move(value));
    if (accept_name("else")) {
      TANDEM_ASSIGN(Node other, parse_expression());
      node.children.push_back(std::move(other));
    }
    TANDEM_ASSIGN(value, finish(std::move(node)));
  }
  --nesting_;
  return value;
}

Result<Node> Parser::parse_or() {
  TANDEM_ASSIGN(Node left, parse_and());
  while (accept_name("or")) {
    TANDEM_ASSIGN(Node right, parse_and());
    TANDEM_ASSIGN(left, binary(NodeKind::or_, std::move(left), std::move(right)));
  }
  return left;
}

Result<Node> Parser::parse_and() {
  TANDEM_ASSIGN(Node left, parse_not());
  while (accept_name("and")) {
    TANDEM_ASSIGN(Node right, parse_not());
    TANDEM_ASSIGN(left, binary(NodeKind::and_, std::move(left), std::move(right)));
  }
  return left;
}

Result<Node> Parser::parse_not() {
  if (!is_name("not")) return parse_compare();
  if (++nesting_ > kMaxNesting) return refuse(fmt::format("nesting deeper than {}", kMaxNesting));
  Node node = make(NodeKind::not_);
  ++at_;
  TANDEM_ASSIGN(Node operand, parse_not());
  --nesting_;
  node.children.push_back(std::move(operand));
  return finish(std::move(node));
}

Result<Node> Parser::parse_compare() {
  Node chain = make(NodeKind::compare);
  TANDEM_ASSIGN(Node first, parse_sum());
  chain.children.push_back(std::move(first));
  while (true) {
    std::string op;
    if (now().kind == Kind::op &&
        (is_op("==") || is_op("!=") || is_op("<") || is_op("<=") || is_op(">") || is_op(">="))) {
      op = now().text;
      ++at_;
    } else if (accept_name("in")) {
      op = "in";
    } else if (is_name("not") && ahead().kind == Kind::name && ahead().text == "in") {
      at_ += 2;
      op = "not in";
    } else {
      break;
    }
    TANDEM_ASSIGN(Node operand, parse_sum());
    chain.names.push_back(std::move(op));
    chain.children.push_back(std::move(operand));
  }
  if (chain.names.empty()) return std::move(chain.children[0]);
  return finish(std::move(chain));
}

Result<Node> Parser::parse_sum() {
  TANDEM_ASSIGN(Node left, parse_concatenation());
  while (is_op("+") || is_op("-")) {
    const NodeKind kind = is_op("+") ? NodeKind::add : NodeKind::subtract;
    ++at_;
    TANDEM_ASSIGN(Node right, parse_concatenation());
    TANDEM_ASSIGN(left, binary(kind, std::move(left), std::move(right)));
  }
  return left;
}

Result<Node> Parser::parse_concatenation() {
  TANDEM_ASSIGN(Node left, parse_product());
  while (accept_op("~")) {
    TANDEM_ASSIGN(Node right, parse_product());
    TANDEM_ASSIGN(left, binary(NodeKind::concatenate, std::move(left), std::move(right)));
  }
  return left;
}

Result<Node> Parser::parse_product() {
  TANDEM_ASSIGN(Node left, parse_power());
  while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
    const NodeKind kind = is_op("*")    ? NodeKind::multiply
                          : is_op("/")  ? NodeKind::divide
                          : is_op("//") ? NodeKind::floor_divide
                                        : NodeKind::modulo;
    ++at_;
    TANDEM_ASSIGN(Node right, parse_power());
    TANDEM_ASSIGN(left, binary(kind, std::move(left), std::move(right)));
  }
  return left;
}

Result<Node> Parser::parse_power() {
  TANDEM_ASSIGN(Node left, parse_unary(true));
  while (accept_op("**")) {
    TANDEM_ASSIGN(Node right, parse_unary(true));
    TANDEM_ASSIGN(left, binary(NodeKind::power, std::move(left), std::move(right)));
  }
  return left;
}

Result<Node> Parser::parse_unary(bool with_filter) {
  Node node;
  if (is_op("-") || is_op("+")) {
    if (++nesting_ > kMaxNesting) return refuse(fmt::format("nesting deeper than {}", kMaxNesting));
    node = make(is_op("-") ? NodeKind::negate : NodeKind::plus);
    ++at_;
    TANDEM_ASSIGN(Node operand, parse_unary(false));
    --nesting_;
    node.children.push_back(std::move(operand));
    TANDEM_ASSIGN(node, finish(std::move(node)));
  } else {
    TANDEM_ASSIGN(node, parse_primary());
  }
  TANDEM_ASSIGN(node, parse_postfix(std::move(node)));
  if (with_filter) return parse_filters(std::move(node));
  return node;
}

}  // namespace tandem::jinja
