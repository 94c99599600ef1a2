// The tree of a parsed template. Owned by ChatTemplate; immutable after parsing, so any number of threads may
// render it.
#pragma once

#include <string>
#include <vector>

#include "serving/jinja/value.h"

namespace tandem::jinja {

enum class NodeKind : uint8_t {
  // Statements. `body` and `otherwise` hold statements.
  data,        // text
  output,      // children[0]
  block,       // body: a sequence of statements without a scope of its own
  if_,         // children[0] condition, body, otherwise
  for_,        // names: targets, children[0] iterable, children[1] filter when present, body, otherwise
  set,         // names: targets, children[0] value
  set_member,  // names: namespace, member; children[0] value
  set_block,   // names[0], body
  macro,       // text: name; names: parameters; children: defaults of the last ones; body
  break_,
  continue_,
  // Expressions.
  constant,   // value
  name,       // text
  list,       // children
  tuple,      // children
  dict,       // children: key, value, key, value, ...
  attribute,  // children[0], text
  subscript,  // children[0], children[1]
  slice,      // children[0] and begin, end, step; each of the three may be a constant None
  call,    // children[0] callee, positional arguments; names: names of the keyword arguments, which come last
  method,  // text: name; children[0] the object, then as in call
  filter,  // text: name; children[0] the value, then as in call
  test,    // text: name; children as in filter
  negate,
  plus,
  not_,
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  concatenate,
  and_,
  or_,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  in,
  not_in,
  compare,      // a chain: children are operands, names the operators
  conditional,  // children: condition, then, else when present
};

struct Node {
  NodeKind kind = NodeKind::block;
  int line = 0;
  int depth = 1;           // of the tree below; bounded by the parser
  bool uses_loop = false;  // for_: the body reads `loop`
  std::string text;
  Value value;
  std::vector<std::string> names;
  std::vector<Node> children;
  std::vector<Node> body;
  std::vector<Node> otherwise;
};

// The deepest tree that is accepted. The evaluator recurses along it, some hundred bytes to a few kilobytes a
// level.
inline constexpr int kMaxTreeDepth = 120;

}  // namespace tandem::jinja
