// TimeProfile: scopes nest, time inside an inner one is not the outer's, names are counted by their place.
#include "base/time_profile.h"

#include <gtest/gtest.h>

#include <thread>

namespace tandem {
namespace {

TEST(TimeProfileTest, InnerTimeIsNotTheOuters) {
  TimeProfile profile;
  const Instant start = now();
  for (int i = 0; i < 2; ++i) {
    const TimeProfile::Scope outer(&profile, "outer");
    const TimeProfile::Scope inner(&profile, "inner");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  { const TimeProfile::Scope alone(&profile, "inner"); }
  const Duration elapsed = now() - start;
  const auto nodes = profile.nodes();
  ASSERT_EQ(nodes.size(), 4u);
  EXPECT_EQ(nodes[1].name, "outer");
  EXPECT_EQ(nodes[1].parent, 0u);
  EXPECT_EQ(nodes[1].count, 2u);
  EXPECT_EQ(nodes[2].name, "inner");
  EXPECT_EQ(nodes[2].parent, 1u);
  EXPECT_EQ(nodes[2].count, 2u);
  EXPECT_GE(nodes[2].self, std::chrono::milliseconds(4));  // a sleep is never shorter
  // Counted twice, it would be more than there was.
  EXPECT_LE(nodes[1].self + nodes[2].self + nodes[3].self, elapsed);
  EXPECT_EQ(nodes[3].name, "inner");
  EXPECT_EQ(nodes[3].parent, 0u);
  EXPECT_EQ(nodes[3].count, 1u);
}

TEST(TimeProfileTest, NullIsOff) {
  const TimeProfile::Scope scope(nullptr, "nothing");
}

}  // namespace
}  // namespace tandem
