#include "serving/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "serving/jinja/builtins.h"
#include "serving/jinja/lexer.h"

namespace tandem::jinja {
namespace {

using Kind = Token::Kind;

// Each level of nesting costs some ten stack frames of the parser.
constexpr int kMaxNesting = 60;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
    // Macros may be used before the place where they are defined.
    for (size_t i = 0; i + 1 < tokens_.size(); ++i) {
      if (tokens_[i].kind == Kind::name && tokens_[i].text == "macro") macros_.insert(tokens_[i + 1].text);
    }
  }

  Result<Node> parse_template() {
    Node root = make(NodeKind::block);
    TANDEM_ASSIGN(root.body, parse_body({}));
    return finish(std::move(root));
  }

 private:
  // ---- tokens
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool is_op(std::string_view text) const { return now().kind == Kind::op && now().text == text; }
  bool is_name(std::string_view text) const { return now().kind == Kind::name && now().text == text; }
  bool accept_op(std::string_view text) {
    if (!is_op(text)) return false;
    ++at_;
    return true;
  }
  bool accept_name(std::string_view text) {
    if (!is_name(text)) return false;
    ++at_;
    return true;
  }
  std::unexpected<Error> bad(std::string_view what) const {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("chat template line {}: {}", now().line, what));
  }
  std::unexpected<Error> refuse(std::string_view what) const {
    return make_error(ErrorCode::unsupported,
                      fmt::format("chat template line {}: {} is not supported", now().line, what));
  }
  std::string here() const {
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
  Status expect_op(std::string_view text) {
    if (!accept_op(text)) return bad(fmt::format("expected \"{}\" and found {}", text, here()));
    return {};
  }
  Status expect_block_end() {
    if (now().kind != Kind::block_end) return bad(fmt::format("expected \"%}}\" and found {}", here()));
    ++at_;
    return {};
  }
  Result<std::string> expect_identifier() {
    if (now().kind != Kind::name) return bad(fmt::format("expected a name and found {}", here()));
    return tokens_[at_++].text;
  }

  // ---- nodes
  Node make(NodeKind kind) const {
    Node node;
    node.kind = kind;
    node.line = now().line;
    return node;
  }
  // Sets the depth; deep trees would overflow the evaluator's stack.
  Result<Node> finish(Node node) const {
    for (const auto* list : {&node.children, &node.body, &node.otherwise}) {
      for (const Node& child : *list) node.depth = std::max(node.depth, child.depth + 1);
    }
    if (node.depth > kMaxTreeDepth)
      return refuse(fmt::format("an expression or block deeper than {}", kMaxTreeDepth));
    return node;
  }
  Result<Node> binary(NodeKind kind, Node left, Node right) const {
    Node node = make(kind);
    node.line = left.line;
    node.children.push_back(std::move(left));
    node.children.push_back(std::move(right));
    return finish(std::move(node));
  }
  Node constant(Value value) const {
    Node node = make(NodeKind::constant);
    node.value = std::move(value);
    return node;
  }

  // ---- statements
  // Statements until a block tag with one of the names in `ends`; the tag's name is left to be read.
  Result<std::vector<Node>> parse_body(std::initializer_list<std::string_view> ends) {
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
        if (now().kind != Kind::variable_end)
          return bad(fmt::format("expected \"}}}}\" and found {}", here()));
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

  Result<Node> parse_statement() {
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
    for (std::string_view known :
         {"elif", "else", "endif", "endfor", "endset", "endmacro", "endgeneration"}) {
      if (word == known) return bad(fmt::format("\"{}\" without its beginning", word));
    }
    return refuse(fmt::format("the statement \"{}\"", word));
  }

  Result<Node> parse_if() {
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

  Result<std::vector<std::string>> parse_targets() {
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

  Result<Node> parse_for() {
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

  Result<Node> parse_set() {
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

  Result<Node> parse_macro() {
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

  // ---- expressions, loosest binding first
  // `a, b` is a tuple here.
  Result<Node> parse_tuple(bool conditional) {
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

  Result<Node> parse_expression() {
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

  Result<Node> parse_or() {
    TANDEM_ASSIGN(Node left, parse_and());
    while (accept_name("or")) {
      TANDEM_ASSIGN(Node right, parse_and());
      TANDEM_ASSIGN(left, binary(NodeKind::or_, std::move(left), std::move(right)));
    }
    return left;
  }

  Result<Node> parse_and() {
    TANDEM_ASSIGN(Node left, parse_not());
    while (accept_name("and")) {
      TANDEM_ASSIGN(Node right, parse_not());
      TANDEM_ASSIGN(left, binary(NodeKind::and_, std::move(left), std::move(right)));
    }
    return left;
  }

  Result<Node> parse_not() {
    if (!is_name("not")) return parse_compare();
    if (++nesting_ > kMaxNesting) return refuse(fmt::format("nesting deeper than {}", kMaxNesting));
    Node node = make(NodeKind::not_);
    ++at_;
    TANDEM_ASSIGN(Node operand, parse_not());
    --nesting_;
    node.children.push_back(std::move(operand));
    return finish(std::move(node));
  }

  Result<Node> parse_compare() {
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

  Result<Node> parse_sum() {
    TANDEM_ASSIGN(Node left, parse_concatenation());
    while (is_op("+") || is_op("-")) {
      const NodeKind kind = is_op("+") ? NodeKind::add : NodeKind::subtract;
      ++at_;
      TANDEM_ASSIGN(Node right, parse_concatenation());
      TANDEM_ASSIGN(left, binary(kind, std::move(left), std::move(right)));
    }
    return left;
  }

  Result<Node> parse_concatenation() {
    TANDEM_ASSIGN(Node left, parse_product());
    while (accept_op("~")) {
      TANDEM_ASSIGN(Node right, parse_product());
      TANDEM_ASSIGN(left, binary(NodeKind::concatenate, std::move(left), std::move(right)));
    }
    return left;
  }

  Result<Node> parse_product() {
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

  Result<Node> parse_power() {
    TANDEM_ASSIGN(Node left, parse_unary(true));
    while (accept_op("**")) {
      TANDEM_ASSIGN(Node right, parse_unary(true));
      TANDEM_ASSIGN(left, binary(NodeKind::power, std::move(left), std::move(right)));
    }
    return left;
  }

  Result<Node> parse_unary(bool with_filter) {
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

  Result<Node> parse_primary() {
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

  Result<Node> parse_parentheses() {
    ++at_;
    if (accept_op(")")) return make(NodeKind::tuple);
    TANDEM_ASSIGN(Node node, parse_tuple(true));
    TANDEM_TRY(expect_op(")"));
    return node;
  }

  Result<Node> parse_list() {
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

  Result<Node> parse_dict() {
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

  // Arguments behind "(", up to and with ")".
  Status parse_arguments(Node& node) {
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

  Result<Node> parse_postfix(Node node) {
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

  Result<Node> parse_subscript(Node object) {
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

  Result<Node> parse_call(Node callee) {
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

  Result<Node> parse_filters(Node node) {
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

  // map("upper"), selectattr("role", "equalto", ...): the names inside are known now, so they are checked
  // now.
  Status check_inner_names(const Node& node) {
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

  Result<Node> parse_test(Node value) {
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

  std::vector<Token> tokens_;
  std::set<std::string> macros_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
};

}  // namespace

Result<Node> parse(std::string_view source) {
  TANDEM_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).parse_template();
}

}  // namespace tandem::jinja
