#include "serving/jinja/parser_impl.h"

#include <fmt/format.h>

#include <charconv>

#include "serving/jinja/builtins.h"

namespace tandem::jinja {

Result<Node> Parser::parse_primary() {
  const Token& token = now();
  switch (token.kind) {
    case Kind::name: {
      ++at_;
      if (token.text == "true" || token.text == "True") return constant(Value(true));
      if (token.text == "false" || token.text == "False") return constant(Value(false));
      if (token.text == "none" || token.text == "None") return constant(Value(None{}));
      Node node = make(NodeKind::name);
      node.line = token.line;
      node.text = token.text;
      return node;
    }
    case Kind::string: {
      std::string text;
      while (now().kind == Kind::string) text += tokens_[at_++].text;
      return constant(Value(std::string_view(text)));
    }
    case Kind::integer: {
      int64_t value = 0;
      const auto read = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      if (read.ec != std::errc()) return refuse(fmt::format("the integer {}", token.text));
      ++at_;
      return constant(Value(value));
    }
    case Kind::number: {
      double value = 0;
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      ++at_;
      return constant(Value(value));
    }
    case Kind::op:
      if (token.text == "(") return parse_parentheses();
      if (token.text == "[") return parse_list();
      if (token.text == "{") return parse_dict();
      break;
    default:
      break;
  }
  return bad(fmt::format("expected an expression and found {}", here()));
}

Result<Node> Parser::parse_parentheses() {
  ++at_;
  if (accept_op(")")) return make(NodeKind::tuple);
  TANDEM_ASSIGN(Node node, parse_tuple(true));
  TANDEM_TRY(expect_op(")"));
  return node;
}

Result<Node> Parser::parse_list() {
  Node node = make(NodeKind::list);
  ++at_;
  while (!is_op("]")) {
    TANDEM_ASSIGN(Node item, parse_expression());
    node.children.push_back(std::move(item));
    if (!accept_op(",")) break;
  }
  TANDEM_TRY(expect_op("]"));
  return finish(std::move(node));
}

Result<Node> Parser::parse_dict() {
  Node node = make(NodeKind::dict);
  ++at_;
  while (!is_op("}")) {
    TANDEM_ASSIGN(Node key, parse_expression());
    TANDEM_TRY(expect_op(":"));
    TANDEM_ASSIGN(Node value, parse_expression());
    node.children.push_back(std::move(key));
    node.children.push_back(std::move(value));
    if (!accept_op(",")) break;
  }
  TANDEM_TRY(expect_op("}"));
  return finish(std::move(node));
}

Status Parser::parse_arguments(Node& node) {
  while (!is_op(")")) {
    if (is_op("*") || is_op("**")) return refuse("an argument with \"*\"");
    const bool named = now().kind == Kind::name && ahead().kind == Kind::op && ahead().text == "=";
    if (named) {
      node.names.push_back(now().text);
      at_ += 2;
    } else if (!node.names.empty()) {
      return bad("a positional argument behind a named one");
    }
    TANDEM_ASSIGN(Node argument, parse_expression());
    node.children.push_back(std::move(argument));
    if (!accept_op(",")) break;
  }
  return expect_op(")");
}

Result<Node> Parser::parse_postfix(Node node) {
  while (true) {
    if (accept_op(".")) {
      if (now().kind == Kind::integer) return refuse("an attribute that is a number");
      Node outer = make(NodeKind::attribute);
      TANDEM_ASSIGN(outer.text, expect_identifier());
      if (accept_op("(")) {
        outer.kind = NodeKind::method;
        if (!is_method(outer.text)) return refuse(fmt::format("the method \"{}\"", outer.text));
      }
      outer.children.push_back(std::move(node));
      if (outer.kind == NodeKind::method) TANDEM_TRY(parse_arguments(outer));
      TANDEM_ASSIGN(node, finish(std::move(outer)));
    } else if (accept_op("[")) {
      TANDEM_ASSIGN(node, parse_subscript(std::move(node)));
    } else if (is_op("(")) {
      TANDEM_ASSIGN(node, parse_call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<Node> Parser::parse_subscript(Node object) {
  Node node = make(NodeKind::subscript);
  node.children.push_back(std::move(object));
  const auto optional = [&]() -> Result<Node> {
    if (is_op(":") || is_op("]")) return constant(Value(None{}));
    return parse_expression();
  };
  TANDEM_ASSIGN(Node first, optional());
  node.children.push_back(std::move(first));
  if (accept_op(":")) {
    node.kind = NodeKind::slice;
    TANDEM_ASSIGN(Node end, optional());
    node.children.push_back(std::move(end));
    if (!accept_op(":")) {
      node.children.push_back(constant(Value(None{})));
    } else {
      TANDEM_ASSIGN(Node step, optional());
      node.children.push_back(std::move(step));
    }
  } else if (node.children[1].kind == NodeKind::constant && node.children[1].value.is_none()) {
    return bad("an empty subscript");
  }
  if (is_op(",")) return refuse("a subscript with a comma");
  TANDEM_TRY(expect_op("]"));
  return finish(std::move(node));
}

Result<Node> Parser::parse_call(Node callee) {
  if (callee.kind != NodeKind::name) return refuse("a call of something that is not a name or a method");
  if (!is_function(callee.text) && !macros_.contains(callee.text)) {
    return refuse(fmt::format("the function \"{}\"", callee.text));
  }
  Node node = make(NodeKind::call);
  ++at_;
  node.children.push_back(std::move(callee));
  TANDEM_TRY(parse_arguments(node));
  return finish(std::move(node));
}

Result<Node> Parser::parse_filters(Node node) {
  while (true) {
    if (accept_op("|")) {
      Node outer = make(NodeKind::filter);
      TANDEM_ASSIGN(outer.text, expect_identifier());
      if (!is_filter(outer.text)) return refuse(fmt::format("the filter \"{}\"", outer.text));
      outer.children.push_back(std::move(node));
      if (accept_op("(")) TANDEM_TRY(parse_arguments(outer));
      TANDEM_TRY(check_inner_names(outer));
      TANDEM_ASSIGN(node, finish(std::move(outer)));
    } else if (is_name("is")) {
      TANDEM_ASSIGN(node, parse_test(std::move(node)));
    } else if (is_op("(")) {
      TANDEM_ASSIGN(node, parse_call(std::move(node)));
    } else {
      return node;
    }
  }
}

Status Parser::check_inner_names(const Node& node) {
  const size_t place = node.text == "map" || node.text == "select" || node.text == "reject" ? 1
                       : node.text == "selectattr" || node.text == "rejectattr"             ? 2
                                                                                            : 0;
  if (place == 0 || node.children.size() <= place || node.children.size() - node.names.size() <= place)
    return {};
  const Node& name = node.children[place];
  if (name.kind != NodeKind::constant || name.value.text() == nullptr) {
    return refuse(fmt::format("a name for \"{}\" that is not written out", node.text));
  }
  const std::string& text = name.value.text()->bytes;
  if (node.text == "map" ? !is_filter(text) : !is_test(text)) {
    return refuse(fmt::format("the {} \"{}\"", node.text == "map" ? "filter" : "test", text));
  }
  return {};
}

Result<Node> Parser::parse_test(Node value) {
  Node node = make(NodeKind::test);
  ++at_;
  const bool negated = accept_name("not");
  TANDEM_ASSIGN(node.text, expect_identifier());
  if (!is_test(node.text)) return refuse(fmt::format("the test \"{}\"", node.text));
  node.children.push_back(std::move(value));
  const bool word = now().kind == Kind::name && !is_name("else") && !is_name("or") && !is_name("and") &&
                    !is_name("if") && !is_name("in") && !is_name("not") && !is_name("recursive");
  if (accept_op("(")) {
    TANDEM_TRY(parse_arguments(node));
  } else if (word || now().kind == Kind::string || now().kind == Kind::integer ||
             now().kind == Kind::number || is_op("[") || is_op("{")) {
    if (is_name("is")) return bad("two tests in a row need parentheses");
    TANDEM_ASSIGN(Node argument, parse_primary());
    TANDEM_ASSIGN(argument, parse_postfix(std::move(argument)));
    node.children.push_back(std::move(argument));
  }
  TANDEM_ASSIGN(node, finish(std::move(node)));
  if (!negated) return node;
  Node outer = make(NodeKind::not_);
  outer.children.push_back(std::move(node));
  return finish(std::move(outer));
}

}  // namespace tandem::jinja
