// Renders a tree. One Evaluator a rendering; one thread. Statements and operators have files of their own.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "serving/jinja/ast.h"
#include "serving/jinja/builtins.h"

namespace tandem::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

class Evaluator {
 public:
  Evaluator(Variables globals, std::chrono::system_clock::time_point now);
  // Errors: `invalid_argument` with the line, for raise_exception and for wrong types; `resource_exhausted`
  // for the budget.
  Result<Text> render(const Node& root);

 private:
  // A long conversation with tools takes some 10^5 steps and a few MB of strings; these stop what is hostile
  // within seconds.
  static constexpr uint64_t kMaxSteps = 20'000'000;
  static constexpr uint64_t kMaxBytes = uint64_t{512} << 20;

  enum class Flow : uint8_t { next, break_loop, continue_loop };
  // One scope of variables; a loop's body and a macro have their own.
  using Scope = Variables;

  Result<Flow> run(const std::vector<Node>& statements, Text& out);
  Result<Flow> run_statement(const Node& node, Text& out);
  Result<Flow> run_output(const Node& node, Text& out);
  Result<Flow> run_set_member(const Node& node);
  Result<Flow> run_set_block(const Node& node);
  Result<Flow> run_for(const Node& node, Text& out);
  Status assign(const Node& node, const std::vector<std::string>& names, const Value& value);
  Result<Value> eval(const Node& node);
  Result<Value> eval_inner(const Node& node);
  // The kinds of expression have functions of their own, which keeps the stack frames of a recursion small.
  Result<Value> eval_list(const Node& node);
  Result<Value> eval_dict(const Node& node);
  Result<Value> eval_part(const Node& node);
  Result<Value> eval_builtin(const Node& node);
  Result<Value> eval_unary(const Node& node);
  Result<Value> eval_branch(const Node& node);
  Result<Value> eval_binary(const Node& node);
  Result<Value> eval_compare(const Node& node);
  Result<Value> call(const Node& node);
  Result<Value> call_macro(const Node& macro, const Arguments& arguments);
  Result<Arguments> eval_arguments(const Node& node);
  Value lookup(const std::string& name) const;
  void set(const std::string& name, Value value);
  Status write(Text& out, const Text& text);

  Variables globals_;
  std::vector<Scope> scopes_;
  size_t first_scope_ = 0;  // scopes below, but for the outermost, are hidden: those of a macro's caller
  Budget budget_;
  BuiltinContext context_;
  int depth_ = 0;
};

}  // namespace tandem::jinja
