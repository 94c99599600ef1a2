// What the tests of grammars share: whether a text is one of a grammar's.
#pragma once

#include <gtest/gtest.h>

#include <string_view>
#include <utility>

#include "grammar/grammar_network.h"
#include "grammar/grammar_stacks.h"

namespace tandem {

enum class Read : uint8_t { no, begun, whole };

// Whether the grammar has the text, has one that begins with it, or neither.
inline Read read_text(const GrammarRules& rules, std::string_view text) {
  auto network = GrammarNetwork::build(rules);
  EXPECT_TRUE(network.has_value()) << network.error().message;
  if (!network) return Read::no;
  GrammarStacks stacks(std::move(*network));
  GrammarStacks::Position position = stacks.start();
  for (const char byte : text) position = stacks.step(position, static_cast<uint8_t>(byte));
  if (position == GrammarStacks::kDead) return Read::no;
  return stacks.has_ended(position) ? Read::whole : Read::begun;
}

}  // namespace tandem
