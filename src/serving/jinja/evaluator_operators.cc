#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "serving/jinja/evaluator.h"

namespace tandem::jinja {

Result<Value> Evaluator::eval_unary(const Node& node) {
  TANDEM_ASSIGN(const Value value, eval(node.children[0]));
  if (node.kind == NodeKind::not_) return Value(!value.truthy());
  if (!value.is_number())
    return type_error(fmt::format("a sign before a value of type {}", value.type_name()));
  if (value.is_float()) return Value(node.kind == NodeKind::negate ? -value.number() : value.number());
  if (value.integer() == INT64_MIN) return type_error("an integer out of range");
  return Value(node.kind == NodeKind::negate ? -value.integer() : value.integer());
}

Result<Value> Evaluator::eval_branch(const Node& node) {
  TANDEM_ASSIGN(Value first, eval(node.children[0]));
  if (node.kind == NodeKind::conditional) {
    if (first.truthy()) return eval(node.children[1]);
    if (node.children.size() == 3) return eval(node.children[2]);
    return Value(Undefined{"the missing else"});
  }
  if (first.truthy() == (node.kind == NodeKind::or_)) return first;
  return eval(node.children[1]);
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

}  // namespace tandem::jinja
