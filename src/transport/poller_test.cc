#include "transport/poller.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <thread>

namespace tandem {
namespace {

TEST(Poller, ReportsReadableDescriptorsByKeyUntilRemoved) {
  auto poller = Poller::create();
  ASSERT_TRUE(poller);
  const UniqueFd one(eventfd(1, EFD_NONBLOCK)), two(eventfd(0, EFD_NONBLOCK));
  ASSERT_TRUE(poller->add(one.get(), 11));
  ASSERT_TRUE(poller->add(two.get(), 22));
  uint64_t ready[4] = {};
  ASSERT_EQ(poller->wait(std::chrono::seconds(30), ready), 1u);
  EXPECT_EQ(ready[0], 11u);
  ASSERT_EQ(poller->wait(Duration::zero(), ready), 1u);  // level-triggered
  poller->remove(one.get());
  EXPECT_EQ(poller->wait(Duration::zero(), ready), 0u);
  EXPECT_FALSE(poller->add(-1, 3));
}

TEST(Poller, AWakeBeforeOrDuringTheWaitEndsItOnce) {
  auto poller = Poller::create();
  ASSERT_TRUE(poller);
  uint64_t ready[1] = {};
  poller->wake();
  poller->wake();
  EXPECT_EQ(poller->wait(std::chrono::hours(1), ready), 0u);
  std::thread waking([&] { poller->wake(); });
  EXPECT_EQ(poller->wait(std::chrono::hours(1), ready), 0u);
  waking.join();
  EXPECT_EQ(poller->wait(std::chrono::milliseconds(1), ready), 0u);
}

}  // namespace
}  // namespace tandem
