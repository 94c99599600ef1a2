#include "cli/node_list.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

std::string joined(const char* text) {
  const auto nodes = expand_node_list(text, "SLURM_JOB_NODELIST");
  if (!nodes) return "refused: " + nodes.error().message;
  std::string all;
  for (const std::string& node : *nodes) all += (all.empty() ? "" : " ") + node;
  return all;
}

TEST(NodeList, EveryForm) {
  EXPECT_EQ(joined("node1"), "node1");
  EXPECT_EQ(joined("node[01-03,07],other5"), "node01 node02 node03 node07 other5");
  EXPECT_EQ(joined("a,b,c"), "a b c");
  EXPECT_EQ(joined("n[8-11]"), "n8 n9 n10 n11");
  EXPECT_EQ(joined("n[08-11]"), "n08 n09 n10 n11");
  EXPECT_EQ(joined("n[098-101]"), "n098 n099 n100 n101");
  EXPECT_EQ(joined("n[9]"), "n9");
  EXPECT_EQ(joined("n[3,1]"), "n3 n1");  // in the list's order, as tasks are
  EXPECT_EQ(joined("n[1-2]-ib"), "n1-ib n2-ib");
  EXPECT_EQ(joined("rack[0-1]node[08-09]"), "rack0node08 rack0node09 rack1node08 rack1node09");
  EXPECT_EQ(joined("[1-2]"), "1 2");
  EXPECT_EQ(joined("a-1.b_c[0-1],x"), "a-1.b_c0 a-1.b_c1 x");
  EXPECT_EQ(joined("n[1-2][1-2]"), "n11 n12 n21 n22");
}

TEST(NodeList, WhatIsNoListIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "a node has no name"},
      {",a", "a node has no name"},
      {"a,", "a node has no name"},
      {"a,,b", "a node has no name"},
      {"n[1-2", "'[' is not closed"},
      {"n[1,2", "'[' is not closed"},
      {"n1-2]", "']' closes nothing"},
      {"n[1,[2-3]]", "a bracket stands in another"},
      {"n[]", "'' is no number and no range"},
      {"n[1,]", "'' is no number and no range"},
      {"n[1-]", "'1-' is no number and no range"},
      {"n[-1]", "'-1' is no number and no range"},
      {"n[1-2-3]", "'1-2-3' is no number and no range"},
      {"n[a-c]", "'a-c' is no number and no range"},
      {"n[0x1]", "'0x1' is no number and no range"},
      {"n[3-1]", "the range '3-1' goes down"},
      {"n[0-999999999]", "leads to more than 65536 nodes"},
      {"n[0-9223372036854775807]", "is no number and no range"},
      {"n[0-999]x[0-999]", "is more than 65536 nodes"},
      {"n[0-40000],m[0-40000]", "more than 65536 nodes"},
      {"n1,n[1-2]", "node 'n1' is named twice"},
      {"n 1", "' ' does not belong in a node's name"},
      {"n1;n2", "';' does not belong"},
      {"tcp://n1", "':' does not belong"},
  };
  for (const auto& [text, part] : cases) {
    const std::string said = joined(text);
    EXPECT_TRUE(said.starts_with("refused: SLURM_JOB_NODELIST: '" + std::string(text) + "': ")) << said;
    EXPECT_NE(said.find(part), std::string::npos) << said;
    EXPECT_NE(said.find("list the addresses in afd.ffn"), std::string::npos) << said;
  }
}

TEST(TaskCounts, EveryForm) {
  using Counts = std::vector<int64_t>;
  const auto counts = [](const char* text, size_t nodes) {
    const auto found = expand_task_counts(text, nodes, "SLURM_TASKS_PER_NODE");
    EXPECT_TRUE(found) << found.error().message;
    return found.value_or(Counts{});
  };
  EXPECT_EQ(counts("4", 1), Counts{4});
  EXPECT_EQ(counts("2(x3),1", 4), (Counts{2, 2, 2, 1}));
  EXPECT_EQ(counts("1,2(x2)", 3), (Counts{1, 2, 2}));
}

TEST(TaskCounts, WhatIsNoListIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "'' is not a number of tasks"},
      {"2(x", "is not a number of tasks"},
      {"2(x)", "is not a number of tasks"},
      {"2(x3", "is not a number of tasks"},
      {"(x3)", "is not a number of tasks"},
      {"2(y3)", "is not a number of tasks"},
      {"-1,1,1", "is not a number of tasks"},
      {"1,1", "counts tasks of 2 nodes, and the list has 3"},
      {"1(x4)", "more nodes than the 3"},
      {"1,1,1,1", "more nodes than the 3"},
      {"1(x999999999999)", "more nodes than the 3"},
  };
  for (const auto& [text, part] : cases) {
    const auto found = expand_task_counts(text, 3, "SLURM_TASKS_PER_NODE");
    ASSERT_FALSE(found) << text;
    EXPECT_TRUE(found.error().message.starts_with("SLURM_TASKS_PER_NODE: '")) << found.error().message;
    EXPECT_NE(found.error().message.find(part), std::string::npos) << found.error().message;
  }
}

}  // namespace
}  // namespace tandem
