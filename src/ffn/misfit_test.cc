// A client that does not fit an FFN rank: whether the rank learns that its start was wrong.
#include <thread>

#include "ffn/split_testing.h"

namespace tandem {
namespace {

using namespace split_testing;
using std::chrono::milliseconds;

constexpr auto kLongerThanARefusal = milliseconds(300);  // a refused connection lingers for 200 ms

TEST(Misfit, AFirstClientWithOtherSettingsIsOne) {
  for (const std::string transport : {"inproc", "tcp", "shm"}) {
    SplitModel ffn({}), reference({});
    auto worker = FfnWorker::create(ffn.worker_options(fresh_address(transport)), ffn.block());
    ASSERT_TRUE(worker.has_value()) << worker.error().message;
    EXPECT_FALSE((*worker)->misfit().has_value());
    auto options = reference.remote_options((*worker)->address());
    options.settings.top_k = 2;
    ASSERT_FALSE(RemoteFfn::create(options).has_value());
    ASSERT_TRUE(eventually([&] { return (*worker)->misfit().has_value(); })) << transport;
    EXPECT_NE((*worker)->misfit()->message.find("top_k is 3 on FFN rank 0"), std::string::npos)
        << (*worker)->misfit()->message;
  }
}

// A model of another size needs slots of another size: the carriers refuse before any setting is said.
TEST(Misfit, AModelOfAnotherSizeIsOne) {
  for (const std::string transport : {"tcp", "shm", "ucx"}) {
    SplitModel ffn({}), reference({});
    auto worker = FfnWorker::create(ffn.worker_options(fresh_address(transport)), ffn.block());
    auto options = reference.remote_options((*worker)->address());
    options.settings.hidden_size = 4096;
    const auto port = RemoteFfn::create(options);
    ASSERT_FALSE(port.has_value());
    ASSERT_TRUE(eventually([&] { return (*worker)->misfit().has_value(); })) << transport;
    for (const Error& error : {port.error(), *(*worker)->misfit()}) {
      EXPECT_EQ(error.code, ErrorCode::invalid_argument);
      EXPECT_NE(error.message.find("slot_bytes differs: "), std::string::npos) << error.message;
      EXPECT_NE(error.message.find("load the same model folder on both sides"), std::string::npos)
          << error.message;
    }
  }
}

TEST(Misfit, AWorkerThatHasServedHasNone) {
  SplitModel ffn({}), reference({});
  auto worker = FfnWorker::create(ffn.worker_options(fresh_address("inproc")), ffn.block());
  auto options = reference.remote_options((*worker)->address());
  EXPECT_TRUE(RemoteFfn::create(options).has_value());
  options.settings.top_k = 2;
  EXPECT_FALSE(RemoteFfn::create(options).has_value());
  ASSERT_TRUE(eventually([&] { return (*worker)->stats().sessions_refused == 1; }));
  std::this_thread::sleep_for(kLongerThanARefusal);
  EXPECT_FALSE((*worker)->misfit().has_value());
}

TEST(Misfit, AStrangerIsNone) {
  SplitModel ffn({}), reference({});
  auto worker = FfnWorker::create(ffn.worker_options(fresh_address("inproc")), ffn.block());
  {
    auto stranger = connect((*worker)->address(), reference.settings().endpoint_options(8));
    ASSERT_TRUE(stranger.has_value()) << stranger.error().message;
    const auto slot = (*stranger)->acquire(Channel::control, 80);
    ASSERT_TRUE(slot.has_value());
    std::ranges::fill(slot->bytes.first(80), std::byte{1});
    ASSERT_TRUE((*stranger)->commit(*slot, 80).has_value());
    ASSERT_TRUE(eventually([&] { return (*worker)->stats().sessions_refused == 1; }));
  }
  std::this_thread::sleep_for(kLongerThanARefusal);
  EXPECT_FALSE((*worker)->misfit().has_value());
  EXPECT_TRUE(RemoteFfn::create(reference.remote_options((*worker)->address())).has_value());
}

}  // namespace
}  // namespace tandem
