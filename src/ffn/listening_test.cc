// An FFN rank whose process has no file descriptors left, and one that takes over a block that was used
// before.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <charconv>
#include <thread>

#include "ffn/raw_client_testing.h"
#include "transport/unique_fd.h"

namespace tandem {
namespace {

using namespace split_testing;
using std::chrono::milliseconds;

// What this process logs, while it lives.
class CapturedLog {
 public:
  CapturedLog() : memory_(::memfd_create("log", MFD_CLOEXEC)), stderr_(::dup(STDERR_FILENO)) {
    ::dup2(memory_.get(), STDERR_FILENO);
  }
  ~CapturedLog() { ::dup2(stderr_.get(), STDERR_FILENO); }
  size_t count(std::string_view words) const {
    std::string text(1 << 20, '\0');
    const ssize_t bytes = ::pread(memory_.get(), text.data(), text.size(), 0);
    text.resize(bytes < 0 ? 0 : static_cast<size_t>(bytes));
    size_t found = 0;
    for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++found;
    return found;
  }

 private:
  UniqueFd memory_, stderr_;
};

// No descriptor is left to this process while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 256;
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (int fd = ::dup(STDERR_FILENO); fd >= 0; fd = ::dup(STDERR_FILENO)) taken_.emplace_back(fd);
  }
  ~NoDescriptors() {
    taken_.clear();
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<UniqueFd> taken_;
};

// A connection that cannot be accepted stays in the system's queue: it must not keep the rank's thread busy,
// nor fill its log.
TEST(Listening, WithoutDescriptorsARankTriesNowAndThen) {
  Served served({}, "tcp");
  auto port = RemoteFfn::create(served.reference.remote_options(served.worker->address()));
  ASSERT_TRUE(port.has_value()) << port.error().message;
  const CapturedLog log;
  UniqueFd stranger(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(static_cast<bool>(stranger));
  {
    const NoDescriptors none;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string& address = served.worker->address();
    uint16_t number = 0;
    std::from_chars(address.data() + address.rfind(':') + 1, address.data() + address.size(), number);
    to.sin_port = htons(number);
    ::connect(stranger.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
    ASSERT_TRUE(eventually([&] { return log.count("cannot accept") > 0; }));
    std::this_thread::sleep_for(milliseconds(500));  // some tries; without a pause they are thousands
    EXPECT_LE(log.count("cannot accept"), 20u);
    Work work(served.reference, 1, 9, 1);  // who is connected is served
    ASSERT_TRUE(run_one(**port, work).has_value());
    EXPECT_TRUE(work.output_is_exact());
  }
  EXPECT_TRUE(RemoteFfn::create(served.reference.remote_options(served.worker->address())).has_value());
}

// Whoever may connect may cause a line of the log, but not as many as he likes.
TEST(Listening, AFloodOfWrongPeersDoesNotFillTheLog) {
  Served served;
  const CapturedLog log;
  const Instant start = now();
  constexpr uint64_t kPeers = 300;
  const std::vector<std::byte> garbage(100, std::byte{0x47});
  for (uint64_t i = 0; i < kPeers; ++i) {
    RawClient peer(served, false);
    peer.send(Channel::control, garbage);
    ASSERT_TRUE(eventually([&] { return served.worker->stats().sessions_refused == i + 1; }));
  }
  const auto seconds = static_cast<size_t>(seconds_since(start));
  EXPECT_GE(log.count(": refused: "), 16u);
  EXPECT_LE(log.count(": refused: "), 16 * (seconds + 2));
}

// A block counts for as long as it lives; a rank says what it computed itself.
TEST(Listening, ARankCountsFromItsOwnStart) {
  SplitModel ffn({}), reference({});
  for (int rank = 0; rank < 2; ++rank) {
    auto worker = FfnWorker::create(ffn.worker_options(fresh_address("inproc")), ffn.block());
    ASSERT_TRUE(worker.has_value()) << worker.error().message;
    auto port = RemoteFfn::create(reference.remote_options((*worker)->address()));
    ASSERT_TRUE(port.has_value()) << port.error().message;
    Work work(reference, 1, 10, 1);
    ASSERT_TRUE(run_one(**port, work).has_value());
    EXPECT_TRUE(eventually([&] { return (*worker)->stats().expert_rows != 0; }));
    EXPECT_EQ((*worker)->stats().expert_rows, 10 * kTopK);
    EXPECT_EQ((*worker)->stats().router_calls, 1u);
  }
}

}  // namespace
}  // namespace tandem
