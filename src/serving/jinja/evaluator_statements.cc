#include <fmt/format.h>

#include "serving/jinja/evaluator.h"

namespace tandem::jinja {

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
    case NodeKind::output:
      return run_output(node, out);
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
    case NodeKind::set_member:
      return run_set_member(node);
    case NodeKind::set_block:
      return run_set_block(node);
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

Result<Evaluator::Flow> Evaluator::run_output(const Node& node, Text& out) {
  TANDEM_ASSIGN(const Value value, eval(node.children[0]));
  TANDEM_TRY(budget_.spend(value.weight()));
  TANDEM_TRY(write(out, to_text(value)));
  return Flow::next;
}

Result<Evaluator::Flow> Evaluator::run_set_member(const Node& node) {
  TANDEM_ASSIGN(Value value, eval(node.children[0]));
  Value target = lookup(node.names[0]);
  if (target.space() == nullptr) {
    return type_error(fmt::format("chat template line {}: \"{}\" is no namespace", node.line, node.names[0]));
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

Result<Evaluator::Flow> Evaluator::run_set_block(const Node& node) {
  Text text;
  scopes_.emplace_back();  // what the block sets stays inside
  const auto flow = run(node.body, text);
  scopes_.pop_back();
  TANDEM_TRY(flow);
  set(node.names[0], Value(std::move(text)));
  return *flow;
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

}  // namespace tandem::jinja
