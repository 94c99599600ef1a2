#include "serving/jinja/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem::jinja {
namespace {

// A long conversation with tools takes some 10^5 steps and a few MB of strings; these stop what is hostile
// within seconds.
constexpr uint64_t kMaxSteps = 20'000'000;
constexpr uint64_t kMaxBytes = uint64_t{512} << 20;
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

Status Evaluator::write(Text& out, const Text& text) {
  TANDEM_TRY(budget_.grow(text.bytes.size()));
  out.append(text);
  return {};
}

Result<Evaluator::Flow> Evaluator::run(const std::vector<Node>& statements, Text& out) {
  for (const Node& node : statements) {
    TANDEM_ASSIGN(const Flow flow, run_statement(node, out));
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

Result<Evaluator::Flow> Evaluator::run_statement(const Node& node, Text& out) {
  TANDEM_TRY(budget_.spend(1));
  switch (node.kind) {
    case NodeKind::data:
      TANDEM_TRY(write(out, *node.value.text()));
      return Flow::next;
    case NodeKind::output: {
      TANDEM_ASSIGN(const Value value, eval(node.children[0]));
      TANDEM_TRY(budget_.spend(value.weight()));
      TANDEM_TRY(write(out, to_text(value)));
      return Flow::next;
    }
    case NodeKind::block:
      return run(node.body, out);
    case NodeKind::if_: {
      TANDEM_ASSIGN(const Value condition, eval(node.children[0]));
      return run(condition.truthy() ? node.body : node.otherwise, out);
    }
    case NodeKind::for_:
      return run_for(node, out);
    case NodeKind::set: {
      TANDEM_ASSIGN(const Value value, eval(node.children[0]));
      TANDEM_TRY(assign(node, node.names, value));
      return Flow::next;
    }
    case NodeKind::set_member: {
      TANDEM_ASSIGN(Value value, eval(node.children[0]));
      Value target = lookup(node.names[0]);
      if (target.space() == nullptr) {
        return type_error(
            fmt::format("chat template line {}: \"{}\" is no namespace", node.line, node.names[0]));
      }
      if (value.space() != nullptr) {
        return make_error(ErrorCode::unsupported,
                          fmt::format("chat template line {}: a namespace in a namespace", node.line));
      }
      for (auto& [name, held] : target.space()->entries) {
        if (name == node.names[1]) {
          held = std::move(value);
          return Flow::next;
        }
      }
      target.space()->entries.emplace_back(node.names[1], std::move(value));
      return Flow::next;
    }
    case NodeKind::set_block: {
      Text text;
      scopes_.emplace_back();  // what the block sets stays inside
      const auto flow = run(node.body, text);
      scopes_.pop_back();
      TANDEM_TRY(flow);
      set(node.names[0], Value(std::move(text)));
      return *flow;
    }
    case NodeKind::macro:
      set(node.text, Value(Macro{&node}));
      return Flow::next;
    case NodeKind::break_:
      return Flow::break_loop;
    case NodeKind::continue_:
      return Flow::continue_loop;
    default:
      return make_error(ErrorCode::internal, "chat template: an expression stands as a statement");
  }
}

Result<Evaluator::Flow> Evaluator::run_for(const Node& node, Text& out) {
  TANDEM_ASSIGN(const Value iterable, eval(node.children[0]));
  auto all = iterate(context_, iterable);
  if (!all) {
    return make_error(all.error().code,
                      fmt::format("chat template line {}: {}", node.line, all.error().message));
  }
  std::vector<Value> items;
  if (node.children.size() == 1) {
    items = std::move(*all);
  } else {
    for (Value& item : *all) {
      scopes_.emplace_back();
      Result<bool> keep = [&]() -> Result<bool> {
        TANDEM_TRY(assign(node, node.names, item));
        TANDEM_ASSIGN(const Value condition, eval(node.children[1]));
        return condition.truthy();
      }();
      scopes_.pop_back();
      TANDEM_TRY(keep);
      if (*keep) items.push_back(std::move(item));
    }
  }
  if (items.empty()) return run(node.otherwise, out);
  for (size_t i = 0; i < items.size(); ++i) {
    TANDEM_TRY(budget_.spend(1));
    scopes_.emplace_back();
    Result<Flow> flow = [&]() -> Result<Flow> {
      if (node.uses_loop) {
        const auto count = static_cast<int64_t>(items.size());
        const auto index = static_cast<int64_t>(i);
        auto loop = std::make_shared<Namespace>();
        loop->entries = {
            {"index", index + 1},
            {"index0", index},
            {"first", i == 0},
            {"last", i + 1 == items.size()},
            {"length", count},
            {"revindex", count - index},
            {"revindex0", count - index - 1},
            {"previtem", i > 0 ? items[i - 1] : Value(Undefined{"loop.previtem"})},
            {"nextitem", i + 1 < items.size() ? items[i + 1] : Value(Undefined{"loop.nextitem"})}};
        set("loop", Value(std::move(loop)));
      }
      TANDEM_TRY(assign(node, node.names, items[i]));
      return run(node.body, out);
    }();
    scopes_.pop_back();
    TANDEM_TRY(flow);
    if (*flow == Flow::break_loop) break;
  }
  return Flow::next;
}

Status Evaluator::assign(const Node& node, const std::vector<std::string>& names, const Value& value) {
  if (names.size() == 1) {
    set(names[0], value);
    return {};
  }
  const auto items = iterate(context_, value);
  if (!items || items->size() != names.size()) {
    return type_error(fmt::format("chat template line {}: a value of type {} does not unpack into {} names",
                                  node.line, value.type_name(), names.size()));
  }
  for (size_t i = 0; i < names.size(); ++i) set(names[i], (*items)[i]);
  return {};
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
    case NodeKind::tuple: {
      std::vector<Value> items;
      for (const Node& child : node.children) {
        TANDEM_ASSIGN(Value item, eval(child));
        items.push_back(std::move(item));
      }
      TANDEM_TRY(budget_.grow(items.size() * sizeof(Value)));
      return Value::list(std::move(items), node.kind == NodeKind::tuple);
    }
    case NodeKind::dict: {
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
    case NodeKind::attribute: {
      TANDEM_ASSIGN(const Value object, eval(node.children[0]));
      if (object.is_undefined()) {
        return type_error(
            fmt::format("\"{}\" is undefined, so it has no \"{}\"", object.undefined_name(), node.text));
      }
      return member(object, node.text);
    }
    case NodeKind::subscript: {
      TANDEM_ASSIGN(const Value object, eval(node.children[0]));
      TANDEM_ASSIGN(const Value key, eval(node.children[1]));
      return subscript(object, key);
    }
    case NodeKind::slice: {
      TANDEM_ASSIGN(const Value object, eval(node.children[0]));
      TANDEM_ASSIGN(const Value begin, eval(node.children[1]));
      TANDEM_ASSIGN(const Value end, eval(node.children[2]));
      TANDEM_ASSIGN(const Value step, eval(node.children[3]));
      return slice(context_, object, begin, end, step);
    }
    case NodeKind::call:
      return call(node);
    case NodeKind::method: {
      TANDEM_ASSIGN(const Value object, eval(node.children[0]));
      TANDEM_ASSIGN(const Arguments arguments, eval_arguments(node));
      return call_method(context_, node.text, object, arguments);
    }
    case NodeKind::filter: {
      TANDEM_ASSIGN(const Value value, eval(node.children[0]));
      TANDEM_ASSIGN(const Arguments arguments, eval_arguments(node));
      return apply_filter(context_, node.text, value, arguments);
    }
    case NodeKind::test: {
      TANDEM_ASSIGN(const Value value, eval(node.children[0]));
      TANDEM_ASSIGN(const Arguments arguments, eval_arguments(node));
      TANDEM_ASSIGN(const bool holds, apply_test(context_, node.text, value, arguments));
      return Value(holds);
    }
    case NodeKind::not_: {
      TANDEM_ASSIGN(const Value value, eval(node.children[0]));
      return Value(!value.truthy());
    }
    case NodeKind::negate:
    case NodeKind::plus: {
      TANDEM_ASSIGN(const Value value, eval(node.children[0]));
      if (!value.is_number())
        return type_error(fmt::format("a sign before a value of type {}", value.type_name()));
      if (value.is_float()) return Value(node.kind == NodeKind::negate ? -value.number() : value.number());
      if (value.integer() == INT64_MIN) return type_error("an integer out of range");
      return Value(node.kind == NodeKind::negate ? -value.integer() : value.integer());
    }
    case NodeKind::and_:
    case NodeKind::or_: {
      TANDEM_ASSIGN(Value left, eval(node.children[0]));
      if (left.truthy() == (node.kind == NodeKind::or_)) return left;
      return eval(node.children[1]);
    }
    case NodeKind::compare:
      return eval_compare(node);
    case NodeKind::conditional: {
      TANDEM_ASSIGN(const Value condition, eval(node.children[0]));
      if (condition.truthy()) return eval(node.children[1]);
      if (node.children.size() == 3) return eval(node.children[2]);
      return Value(Undefined{"the missing else"});
    }
    default:
      return eval_binary(node);
  }
}

Result<Value> Evaluator::eval_compare(const Node& node) {
  TANDEM_ASSIGN(Value left, eval(node.children[0]));
  for (size_t i = 0; i < node.names.size(); ++i) {
    TANDEM_ASSIGN(Value right, eval(node.children[i + 1]));
    const std::string& op = node.names[i];
    TANDEM_TRY(budget_.spend(comparison_cost(left, right)));
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      TANDEM_ASSIGN(const bool inside, contains(context_, right, left));
      holds = inside == (op == "in");
    } else {
      const bool swapped = op[0] == '>';
      const Value& low = swapped ? right : left;
      const Value& high = swapped ? left : right;
      TANDEM_ASSIGN(holds, less(low, high));
      if (op.size() == 2) holds = holds || equal(low, high);
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Evaluator::eval_binary(const Node& node) {
  TANDEM_ASSIGN(const Value left, eval(node.children[0]));
  TANDEM_ASSIGN(const Value right, eval(node.children[1]));
  if (node.kind == NodeKind::concatenate) {
    TANDEM_TRY(budget_.spend(left.weight() + right.weight()));
    Text out = to_text(left);
    const Text tail = to_text(right);
    TANDEM_TRY(budget_.grow(out.bytes.size() + tail.bytes.size()));
    out.append(tail);
    return Value(std::move(out));
  }
  if (node.kind == NodeKind::add && left.text() != nullptr && right.text() != nullptr) {
    TANDEM_TRY(budget_.grow(left.text()->bytes.size() + right.text()->bytes.size()));
    Text out = *left.text();
    out.append(*right.text());
    return Value(std::move(out));
  }
  if (node.kind == NodeKind::add && left.list() != nullptr && right.list() != nullptr) {
    std::vector<Value> items = left.list()->items;
    items.insert(items.end(), right.list()->items.begin(), right.list()->items.end());
    TANDEM_TRY(budget_.grow(items.size() * sizeof(Value)));
    return Value::list(std::move(items), left.list()->tuple);
  }
  if (node.kind == NodeKind::multiply) {
    const Value& repeated = left.text() != nullptr || left.list() != nullptr ? left : right;
    const Value& count = &repeated == &left ? right : left;
    if ((repeated.text() != nullptr || repeated.list() != nullptr) && count.is_number() &&
        !count.is_float()) {
      const auto times = static_cast<uint64_t>(std::max<int64_t>(0, count.integer()));
      const uint64_t unit = repeated.text() != nullptr ? repeated.text()->bytes.size()
                                                       : repeated.list()->items.size() * sizeof(Value);
      TANDEM_TRY(budget_.grow(unit != 0 && times > kMaxBytes / unit ? UINT64_MAX : unit * times));
      Text text;
      std::vector<Value> items;
      for (uint64_t i = 0; unit != 0 && i < times; ++i) {
        if (repeated.text() != nullptr) {
          text.append(*repeated.text());
        } else {
          items.insert(items.end(), repeated.list()->items.begin(), repeated.list()->items.end());
        }
      }
      if (repeated.text() != nullptr) return Value(std::move(text));
      return Value::list(std::move(items), repeated.list()->tuple);
    }
  }
  if (!left.is_number() || !right.is_number()) {
    const std::string_view name = left.is_undefined() || right.is_undefined()
                                      ? (left.is_undefined() ? left : right).undefined_name()
                                      : std::string_view();
    return type_error(fmt::format("the operands are of the types {} and {}{}", left.type_name(),
                                  right.type_name(),
                                  name.empty() ? "" : fmt::format(" (\"{}\" is undefined)", name)));
  }
  if (left.is_float() || right.is_float() || node.kind == NodeKind::divide ||
      (node.kind == NodeKind::power && right.number() < 0)) {
    const double a = left.number();
    const double b = right.number();
    const bool divides =
        node.kind == NodeKind::divide || node.kind == NodeKind::floor_divide || node.kind == NodeKind::modulo;
    if (b == 0 && divides) return type_error("a division by zero");
    switch (node.kind) {
      case NodeKind::add:
        return Value(a + b);
      case NodeKind::subtract:
        return Value(a - b);
      case NodeKind::multiply:
        return Value(a * b);
      case NodeKind::divide:
        return Value(a / b);
      case NodeKind::floor_divide:
        return Value(std::floor(a / b));
      case NodeKind::modulo:
        return Value(a - b * std::floor(a / b));
      default:
        return Value(std::pow(a, b));
    }
  }
  const int64_t a = left.integer();
  const int64_t b = right.integer();
  int64_t out = 0;
  bool overflow = false;
  switch (node.kind) {
    case NodeKind::add:
      overflow = __builtin_add_overflow(a, b, &out);
      break;
    case NodeKind::subtract:
      overflow = __builtin_sub_overflow(a, b, &out);
      break;
    case NodeKind::multiply:
      overflow = __builtin_mul_overflow(a, b, &out);
      break;
    case NodeKind::floor_divide:
    case NodeKind::modulo: {
      if (b == 0) return type_error("a division by zero");
      if (a == INT64_MIN && b == -1) {
        overflow = node.kind == NodeKind::floor_divide;
        break;
      }
      // Towards minus infinity, and the rest has the divisor's sign.
      const int64_t rest = a % b;
      const bool adjust = rest != 0 && (rest < 0) != (b < 0);
      out = node.kind == NodeKind::modulo ? rest + (adjust ? b : 0) : a / b - (adjust ? 1 : 0);
      break;
    }
    default: {  // power, exponent not negative
      out = 1;
      if (b > 64 && a != 0 && a != 1 && a != -1) overflow = true;
      const int64_t count = b > 64 ? b % 2 + (a == 0 ? 2 : 0) : b;
      for (int64_t i = 0; i < count && !overflow; ++i) overflow = __builtin_mul_overflow(out, a, &out);
      break;
    }
  }
  if (overflow) return type_error("an integer out of range");
  return Value(out);
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
