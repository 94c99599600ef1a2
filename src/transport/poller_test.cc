#include "transport/poller.h"
#include "transport/free_slots.h"
#include "transport/idle_spin.h"

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

// Spins until it gives up; how often it looked.
int looks(IdleSpin& spin) {
  int count = 0;
  while (spin.again()) ++count;
  return count;
}

TEST(IdleSpin, SpinsBehindAMessageOnlyAndOnlyWhereItMay) {
  IdleSpin forbidden;
  forbidden.found();
  EXPECT_EQ(looks(forbidden), 0);
  IdleSpin spin(true);
  EXPECT_EQ(looks(spin), 0);  // nothing has come yet
  spin.found();
  EXPECT_GT(looks(spin), 0);
  EXPECT_FALSE(spin.again());  // asleep until the next message
}

TEST(IdleSpin, SpinningInVainIsDoneLessAndLess) {
  IdleSpin spin(true);
  int spun = 0;
  for (int message = 0; message < 640; ++message) {
    spin.found();
    spun += looks(spin) > 0;
  }
  EXPECT_GE(spun, 10);
  EXPECT_LE(spun, 16);  // after 1, 2, 4 ... and then every 64 messages
}

TEST(IdleSpin, WhatItFindsMakesItSpinAgain) {
  IdleSpin spin(true);
  spin.found();
  EXPECT_GT(looks(spin), 0);  // in vain: the next message is slept for
  spin.found();
  EXPECT_EQ(looks(spin), 0);
  for (int message = 0; message < 20; ++message) {
    spin.found();
    EXPECT_TRUE(spin.again()) << message;  // and the next message comes meanwhile
  }
}

TEST(FreeSlots, TheLowestIsTakenFirst) {
  FreeSlots free(4);
  EXPECT_EQ(free.take(), 0u);
  EXPECT_EQ(free.take(), 1u);
  free.give(0);
  EXPECT_EQ(free.take(), 0u);
  free.give(1);
  free.give(0);
  EXPECT_EQ(free.size(), 4u);
  for (uint32_t slot = 0; slot < 4; ++slot) EXPECT_EQ(free.take(), slot);
  EXPECT_TRUE(free.empty());
}

}  // namespace
}  // namespace tandem
