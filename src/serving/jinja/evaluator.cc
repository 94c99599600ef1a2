#include "serving/jinja/evaluator.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::jinja {
namespace {

// Nested calls of eval: macros that call themselves. A level takes up to some 5 KB of stack under the
// sanitizers.
constexpr int kMaxDepth = 400;

}  // namespace

Evaluator::Evaluator(Variables globals, std::chrono::system_clock::time_point now)
    : globals_(std::move(globals)), budget_{kMaxSteps, kMaxBytes}, context_{budget_, now} {}

Result<Text> Evaluator::render(const Node& root) {
  Text out;
  scopes_.assign(1, {});
  TANDEM_TRY(run(root.body, out));
  return out;
}

Value Evaluator::lookup(const std::string& name) const {
  for (size_t i = scopes_.size(); i-- > 0;) {
    if (i < first_scope_ && i != 0) continue;
    for (const auto& [held, value] : scopes_[i]) {
      if (held == name) return value;
    }
  }
  for (const auto& [held, value] : globals_) {
    if (held == name) return value;
  }
  if (is_function(name)) return Function{name};
  return Undefined{name};
}

void Evaluator::set(const std::string& name, Value value) {
  for (auto& [held, slot] : scopes_.back()) {
    if (held == name) {
      slot = std::move(value);
      return;
    }
  }
  scopes_.back().emplace_back(name, std::move(value));
}

Result<Value> Evaluator::eval(const Node& node) {
  TANDEM_TRY(budget_.spend(1));
  if (depth_ >= kMaxDepth) {
    return make_error(ErrorCode::resource_exhausted,
                      fmt::format("chat template line {}: macros call each other deeper than {} levels",
                                  node.line, kMaxDepth));
  }
  ++depth_;
  auto result = eval_inner(node);
  --depth_;
  // The innermost node with an error says where it is.
  if (!result && !result.error().message.starts_with("chat template line ")) {
    return make_error(result.error().code,
                      fmt::format("chat template line {}: {}", node.line, result.error().message));
  }
  return result;
}

Result<Value> Evaluator::eval_inner(const Node& node) {
  switch (node.kind) {
    case NodeKind::constant:
      return node.value;
    case NodeKind::name:
      return lookup(node.text);
    case NodeKind::list:
    case NodeKind::tuple:
      return eval_list(node);
    case NodeKind::dict:
      return eval_dict(node);
    case NodeKind::attribute:
    case NodeKind::subscript:
    case NodeKind::slice:
      return eval_part(node);
    case NodeKind::call:
      return call(node);
    case NodeKind::method:
    case NodeKind::filter:
    case NodeKind::test:
      return eval_builtin(node);
    case NodeKind::not_:
    case NodeKind::negate:
    case NodeKind::plus:
      return eval_unary(node);
    case NodeKind::and_:
    case NodeKind::or_:
    case NodeKind::conditional:
      return eval_branch(node);
    case NodeKind::compare:
      return eval_compare(node);
    default:
      return eval_binary(node);
  }
}

Result<Value> Evaluator::eval_list(const Node& node) {
  std::vector<Value> items;
  for (const Node& child : node.children) {
    TANDEM_ASSIGN(Value item, eval(child));
    items.push_back(std::move(item));
  }
  TANDEM_TRY(budget_.grow(items.size() * sizeof(Value)));
  return Value::list(std::move(items), node.kind == NodeKind::tuple);
}

Result<Value> Evaluator::eval_dict(const Node& node) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
    TANDEM_ASSIGN(Value key, eval(node.children[i]));
    TANDEM_ASSIGN(Value item, eval(node.children[i + 1]));
    bool replaced = false;
    for (auto& [held, slot] : entries) {
      if (!equal(held, key)) continue;
      slot = item;
      replaced = true;
    }
    if (!replaced) entries.emplace_back(std::move(key), std::move(item));
  }
  TANDEM_TRY(budget_.grow(entries.size() * 2 * sizeof(Value)));
  return Value::map(std::move(entries));
}

Result<Value> Evaluator::eval_part(const Node& node) {
  TANDEM_ASSIGN(const Value object, eval(node.children[0]));
  if (node.kind == NodeKind::attribute) {
    if (object.is_undefined()) {
      return type_error(
          fmt::format("\"{}\" is undefined, so it has no \"{}\"", object.undefined_name(), node.text));
    }
    return member(object, node.text);
  }
  TANDEM_ASSIGN(const Value first, eval(node.children[1]));
  if (node.kind == NodeKind::subscript) return subscript(object, first);
  TANDEM_ASSIGN(const Value end, eval(node.children[2]));
  TANDEM_ASSIGN(const Value step, eval(node.children[3]));
  return slice(context_, object, first, end, step);
}

Result<Value> Evaluator::eval_builtin(const Node& node) {
  TANDEM_ASSIGN(const Value value, eval(node.children[0]));
  TANDEM_ASSIGN(const Arguments arguments, eval_arguments(node));
  if (node.kind == NodeKind::method) return call_method(context_, node.text, value, arguments);
  if (node.kind == NodeKind::filter) return apply_filter(context_, node.text, value, arguments);
  TANDEM_ASSIGN(const bool holds, apply_test(context_, node.text, value, arguments));
  return Value(holds);
}

Result<Arguments> Evaluator::eval_arguments(const Node& node) {
  Arguments arguments;
  const size_t first_named = node.children.size() - node.names.size();
  for (size_t i = 1; i < node.children.size(); ++i) {
    TANDEM_ASSIGN(Value value, eval(node.children[i]));
    if (i < first_named) {
      arguments.positional.push_back(std::move(value));
    } else {
      arguments.named.emplace_back(node.names[i - first_named], std::move(value));
    }
  }
  return arguments;
}

Result<Value> Evaluator::call(const Node& node) {
  const std::string& name = node.children[0].text;
  const Value callee = lookup(name);
  TANDEM_ASSIGN(const Arguments arguments, eval_arguments(node));
  if (callee.macro() != nullptr) return call_macro(*callee.macro()->node, arguments);
  if (callee.function() != nullptr) return call_function(context_, callee.function()->name, arguments);
  return type_error(fmt::format("\"{}\" is of type {} and cannot be called", name, callee.type_name()));
}

Result<Value> Evaluator::call_macro(const Node& macro, const Arguments& arguments) {
  const size_t count = macro.names.size();
  if (arguments.positional.size() > count) {
    return type_error(fmt::format("macro \"{}\" takes {} arguments and got {}", macro.text, count,
                                  arguments.positional.size()));
  }
  for (const auto& [name, value] : arguments.named) {
    const auto place = std::find(macro.names.begin(), macro.names.end(), name) - macro.names.begin();
    if (static_cast<size_t>(place) == count)
      return type_error(fmt::format("macro \"{}\" has no parameter \"{}\"", macro.text, name));
    if (static_cast<size_t>(place) < arguments.positional.size()) {
      return type_error(fmt::format("macro \"{}\" got \"{}\" twice", macro.text, name));
    }
  }
  const size_t caller_scope = std::exchange(first_scope_, scopes_.size());
  scopes_.emplace_back();
  Text out;
  const Status status = [&]() -> Status {
    const size_t first_default = count - macro.children.size();
    for (size_t i = 0; i < count; ++i) {
      const Value* given = arguments.get(i, macro.names[i]);
      if (given != nullptr) {
        set(macro.names[i], *given);
      } else if (i >= first_default) {
        TANDEM_ASSIGN(Value value, eval(macro.children[i - first_default]));
        set(macro.names[i], std::move(value));
      } else {
        set(macro.names[i], Value(Undefined{macro.names[i]}));
      }
    }
    TANDEM_TRY(run(macro.body, out));
    return {};
  }();
  scopes_.pop_back();
  first_scope_ = caller_scope;
  TANDEM_TRY(status);
  return Value(std::move(out));
}

}  // namespace tandem::jinja
