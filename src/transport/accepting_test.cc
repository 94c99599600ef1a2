// AcceptingListener: what it does when descriptors run out, and what wakes it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <thread>

#include "transport/accepting.h"
#include "transport/endpoint_test_util.h"
#include "transport/socket.h"
#include "transport/unix_socket.h"

namespace tandem {
namespace {

EndpointOptions impatient_options() {
  EndpointOptions options;
  options.slots_per_channel = 2;
  options.slot_bytes = 256;
  options.silence_limit = std::chrono::seconds(20);
  options.connect_limit = std::chrono::milliseconds(500);
  return options;
}

// While it lives, this process gets no descriptor but those that it closes meanwhile.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    // The lowest free number is the first one that is not allowed any more.
    const UniqueFd lowest(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const rlimit none{.rlim_cur = static_cast<rlim_t>(lowest.get()), .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

class AcceptingTest : public testing::TestWithParam<const char*> {
 protected:
  static Result<UniqueFd> stranger(const std::string& address) {
    const auto parsed = parse_address(address);
    return parsed->scheme == "shm" ? connect_unix(parsed->rest) : connect_patiently(*parsed);
  }
};

TEST_P(AcceptingTest, WithoutDescriptorsStrangersReachTheirLimitAndMakeRoom) {
  auto listener = listen(unique_address(GetParam()), impatient_options());
  ASSERT_TRUE(listener) << listener.error().message;
  const std::string address = (*listener)->address();
  std::vector<UniqueFd> mute;
  for (int i = 0; i < 6; ++i) {
    auto connected = stranger(address);
    ASSERT_TRUE(connected) << connected.error().message;
    mute.push_back(std::move(*connected));
    ASSERT_EQ(accept_one(**listener, std::chrono::milliseconds(1)), nullptr);
  }
  auto late = stranger(address);
  ASSERT_TRUE(late);
  const NoDescriptors none;
  bool refused = false, taken = false;
  for (const Instant end = now() + kPatience; now() < end && !(refused && taken);) {
    // Six strangers hold six descriptors until their limit; then the one that waits is taken.
    const auto accepted = (*listener)->accept();
    refused = refused || !accepted;
    if (!accepted) {
      EXPECT_EQ(accepted.error().code, ErrorCode::resource_exhausted);
      EXPECT_NE(accepted.error().message.find("cannot accept"), std::string::npos);
    }
    char byte = 0;
    // It is taken, and left at its limit as the others.
    taken = recv(late->get(), &byte, 1, MSG_DONTWAIT) == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(refused);
  EXPECT_TRUE(taken);
}

TEST_P(AcceptingTest, WithoutDescriptorsAListenerComplainsNowAndThen) {
  auto listener = listen(unique_address(GetParam()), impatient_options());
  ASSERT_TRUE(listener) << listener.error().message;
  const auto waits = stranger((*listener)->address());
  ASSERT_TRUE(waits);
  wait_for_socket((*listener)->fd(), false, now() + kPatience);
  const NoDescriptors none;
  int complaints = 0;
  for (int i = 0; i < 10'000; ++i) complaints += (*listener)->accept() ? 0 : 1;
  EXPECT_GE(complaints, 1);
  EXPECT_LE(complaints, 100);
}

// A machine that has done with its socket and waits for another descriptor.
class WaitsElsewhere final : public Accepting {
 public:
  explicit WaitsElsewhere(UniqueFd socket) : socket_(std::move(socket)), other_(eventfd(0, EFD_NONBLOCK)) {}
  Result<std::unique_ptr<Endpoint>> advance() override { return nullptr; }
  int socket() const override { return socket_.get(); }
  int second_descriptor() const override { return other_.get(); }
  const std::string& peer() const override { return peer_; }
  void wake() const { eventfd_write(other_.get(), 1); }

 private:
  const UniqueFd socket_, other_;
  const std::string peer_ = "somebody";
};

class WaitingListener final : public AcceptingListener {
 public:
  explicit WaitingListener(int socket)
      : AcceptingListener(*Acceptor::create(socket, tcp_name_of_local_end(socket)), impatient_options()) {}
  const WaitsElsewhere* machine = nullptr;

 private:
  Result<std::unique_ptr<Accepting>> begin(Accepted taken) override {
    auto made = std::make_unique<WaitsElsewhere>(std::move(taken.socket));
    machine = made.get();
    return made;
  }
};

TEST(AcceptingListener, IsNotWokenByWhatIsForTheEndpoint) {
  const auto socket = listen_tcp({"tcp", "127.0.0.1:0"});
  ASSERT_TRUE(socket);
  WaitingListener listener(socket->get());
  auto peer = connect_patiently(*parse_address(listener.address()));
  ASSERT_TRUE(peer);
  ASSERT_TRUE(serve_until(listener, [&] { return listener.machine != nullptr; }));
  const auto wakes = [&](Duration within) { return wait_for_socket(listener.fd(), false, now() + within); };
  ASSERT_TRUE(write_fully(peer->get(), std::as_bytes(std::span("for the endpoint"))));
  ASSERT_TRUE(wait_for_socket(listener.machine->socket(), false, now() + kPatience));
  EXPECT_FALSE(wakes(std::chrono::milliseconds(20)));
  listener.machine->wake();
  EXPECT_TRUE(wakes(kPatience));
  eventfd_t count = 0;
  eventfd_read(listener.machine->second_descriptor(), &count);
  EXPECT_FALSE(wakes(std::chrono::milliseconds(20)));
  peer->reset();
  EXPECT_TRUE(wakes(kPatience)) << "an end matters";
}

INSTANTIATE_TEST_SUITE_P(Transports, AcceptingTest, testing::Values("shm", "tcp"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace tandem
