// What only shm has: memory that the peer can write, a path that can be left over, and the death of a
// process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>

#include "transport/endpoint_test_util.h"
#include "transport/hello.h"
#include "transport/shm_memory.h"
#include "transport/socket.h"
#include "transport/unix_socket.h"

namespace tandem {
namespace {

EndpointOptions small_options() {
  EndpointOptions options;
  options.slots_per_channel = 4;
  options.slot_bytes = 256;
  options.heartbeat_interval = std::chrono::milliseconds(10);
  options.silence_limit = std::chrono::seconds(20);
  return options;
}

class ShmTest : public testing::Test {
 protected:
  const std::string address_ = unique_address("shm");
  const std::string path_ = address_.substr(6);
  void TearDown() override { unlink(path_.c_str()); }

  // A child that serves one connection: echoes every message until it is told to end or the peer is gone.
  pid_t fork_echo() {
    const pid_t child = fork();
    EXPECT_GE(child, 0);
    if (child != 0) return child;
    auto listener = listen(address_, small_options());
    if (!listener) _exit(1);
    auto endpoint = accept_one(**listener);
    if (!endpoint) _exit(2);
    while (endpoint->peer() == PeerState::alive) {
      Incoming incoming;
      if (endpoint->poll({&incoming, 1}) == 0) {
        wait_ready(*endpoint, std::chrono::milliseconds(10));
      } else if (!send_text(*endpoint, incoming.channel, text_of(incoming.lease))) {
        _exit(3);
      }
    }
    _exit(0);
  }

  std::unique_ptr<Endpoint> connect_patiently() {
    for (const Instant end = now() + kPatience; now() < end;) {
      auto connected = connect(address_, small_options());
      if (connected) return std::move(*connected);
      EXPECT_EQ(connected.error().code, ErrorCode::unavailable) << connected.error().message;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return nullptr;
  }
};

TEST_F(ShmTest, AKilledProcessIsClosedAndTheNextRunTakesThePathOver) {
  for (int run = 0; run < 3; ++run) {  // the second and third find a leftover
    EXPECT_EQ(access(path_.c_str(), F_OK) == 0, run > 0);
    const pid_t child = fork_echo();
    auto endpoint = connect_patiently();
    ASSERT_TRUE(endpoint);
    EXPECT_NE(endpoint->peer_name().find("(pid " + std::to_string(child) + ")"), std::string::npos);
    ASSERT_TRUE(send_text(*endpoint, Channel::request, "echo"));
    const Incoming kept = receive_one(*endpoint);
    EXPECT_EQ(text_of(kept.lease), "echo");
    while (!endpoint->arm()) endpoint->poll({});
    kill(child, SIGKILL);
    EXPECT_TRUE(wait_ready(*endpoint));
    EXPECT_EQ(wait_for_loss(*endpoint), PeerState::closed);
    EXPECT_EQ(text_of(kept.lease), "echo");
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    const auto nobody = connect(address_, small_options());
    ASSERT_FALSE(nobody);
    EXPECT_NE(nobody.error().message.find("left over"), std::string::npos) << nobody.error().message;
  }
}

TEST_F(ShmTest, AStoppedProcessIsSilent) {
  EndpointOptions options = small_options();
  options.silence_limit = kSilence;
  auto listener = std::move(*listen(address_, options));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto endpoint = connect(address_, options);
    while (endpoint && (*endpoint)->peer() == PeerState::alive) {
      (*endpoint)->poll({});
      usleep(2000);
    }
    _exit(0);
  }
  auto endpoint = accept_one(*listener);
  ASSERT_TRUE(endpoint);
  for (int i = 0; i < 20; ++i) {
    endpoint->poll({});
    wait_ready(*endpoint, std::chrono::milliseconds(10));
  }
  EXPECT_EQ(endpoint->peer(), PeerState::alive);
  kill(child, SIGSTOP);
  EXPECT_EQ(wait_for_loss(*endpoint), PeerState::silent);
  kill(child, SIGCONT);  // it comes back and finds itself dropped
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(endpoint->peer(), PeerState::silent);
}

TEST_F(ShmTest, OnlyThisUserMayConnectAndThePathGoesWithTheListener) {
  auto listener = std::move(*listen(address_, small_options()));
  struct stat info{};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_TRUE(S_ISSOCK(info.st_mode));
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  listener.reset();
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
}

TEST_F(ShmTest, AProcessOfAnotherUserIsRefusedByNameWhereFilesLetItIn) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  testing::internal::CaptureStderr();
  auto listener = std::move(*listen(address_, small_options()));
  chmod(path_.c_str(), 0666);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(2);
    // It refuses us as well: who listens is no process of its user.
    const auto connected = connect(address_, small_options());
    const bool named = !connected && connected.error().message.find(
                                         "is a process of user 0, this one is of "
                                         "user 65534") != std::string::npos;
    const auto raw = connect_unix(path_);  // whatever it says
    if (raw) (void)send_packet(raw->get(), HelloLayout::encode(small_options()), {});
    char byte = 0;
    if (raw && wait_for_socket(raw->get(), false, now() + kPatience)) (void)recv(raw->get(), &byte, 1, 0);
    _exit(named && raw ? 0 : 1);
  }
  int status = 0;
  for (const Instant end = now() + kPatience; now() < end && waitpid(child, &status, WNOHANG) == 0;)
    EXPECT_EQ(accept_one(*listener, std::chrono::milliseconds(10)), nullptr);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(accept_one(*listener, std::chrono::milliseconds(10)), nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("is a process of user 65534, this one is of user 0; shm is for one user"),
            std::string::npos)
      << said;
}

TEST_F(ShmTest, AFolderThatEverybodyMayChangeIsRefusedByName) {
  const std::string folder = path_ + ".d";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  const std::string address = "shm://" + folder + "/x.sock";
  chmod(folder.c_str(), 0777);
  const auto refused = listen(address, small_options());
  ASSERT_FALSE(refused);
  EXPECT_NE(
      refused.error().message.find("every user may replace files in " + folder + "; chmod o-w or +t it"),
      std::string::npos)
      << refused.error().message;
  for (const mode_t mode : {01777, 0755}) {
    chmod(folder.c_str(), mode);
    EXPECT_TRUE(listen(address, small_options()));
  }
  rmdir(folder.c_str());
}

TEST_F(ShmTest, AFolderThatSomebodyKeepsLockedEndsTheStartByName) {
  const std::string folder = path_ + ".d";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  const std::string address = "shm://" + folder + "/x.sock";
  {
    const UniqueFd held(open(folder.c_str(), O_RDONLY | O_DIRECTORY));
    ASSERT_EQ(flock(held.get(), LOCK_EX), 0);
    const auto refused = listen(address, small_options());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
    EXPECT_NE(refused.error().message.find("another process keeps folder " + folder + " locked"),
              std::string::npos)
        << refused.error().message;
  }
  EXPECT_TRUE(listen(address, small_options()));
  rmdir(folder.c_str());
}

TEST_F(ShmTest, AListenerDoesNotRemoveThePathOfItsSuccessor) {
  auto first = std::move(*listen(address_, small_options()));
  unlink(path_.c_str());
  auto second = std::move(*listen(address_, small_options()));
  first.reset();
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
  EXPECT_TRUE(make_pair(*second, small_options()).connected);
}

TEST_F(ShmTest, PathsThatCannotWorkAreRefusedByName) {
  const auto expect = [](const std::string& address, const std::string& part) {
    const auto listening = listen(address, small_options());
    ASSERT_FALSE(listening);
    EXPECT_EQ(listening.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(listening.error().message.find(part), std::string::npos) << listening.error().message;
  };
  expect("shm://relative.sock", "not absolute");
  expect("shm:///tmp/" + std::string(200, 'x'), "at most 107");
  expect("shm:///tmp/no_such_folder_of_tandem/x.sock", "folder /tmp/no_such_folder_of_tandem");
  std::ofstream(path_) << "a file of somebody";
  expect(address_, "is not a socket");
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);  // not ours to remove
  EXPECT_FALSE(connect("shm:///tmp/no_such_socket_of_tandem", small_options()));
}

TEST_F(ShmTest, MoreMemoryThanThereIsIsRefusedByNameBeforeAnyIsTaken) {
  EndpointOptions options;
  options.slots_per_channel = 1024;
  options.slot_bytes = size_t{1} << 30;  // 6 TiB
  // Should the check ever fail, this keeps the test from taking all memory of the machine.
  rlimit unlimited{};
  getrlimit(RLIMIT_FSIZE, &unlimited);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = unlimited.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const auto before = signal(SIGXFSZ, SIG_IGN);
  options.silence_limit = std::chrono::seconds(20);
  auto listener = std::move(*listen(address_, options));
  Result<std::unique_ptr<Endpoint>> connected = nullptr;
  std::atomic<bool> done = false;
  std::thread connecting([&] {
    connected = connect(address_, options);
    done = true;
  });
  while (!done) EXPECT_EQ(accept_one(*listener, std::chrono::milliseconds(10)), nullptr);
  connecting.join();
  setrlimit(RLIMIT_FSIZE, &unlimited);
  signal(SIGXFSZ, before);
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, ErrorCode::resource_exhausted);
  EXPECT_NE(connected.error().message.find("needs 6.0 TiB"), std::string::npos) << connected.error().message;
  EXPECT_NE(connected.error().message.find("iB are available"), std::string::npos)
      << connected.error().message;
}

TEST_F(ShmTest, MemoryThatThePeerCouldTakeAwayIsRefused) {
  const RingLayout layout(4, 256);
  const auto doorbell = [] { return UniqueFd(eventfd(0, EFD_NONBLOCK)); };
  const auto map = [&](const UniqueFd& fd) { return map_shared_memory(fd, layout, doorbell(), doorbell()); };
  const UniqueFd unsealed(memfd_create("test", MFD_ALLOW_SEALING));
  ASSERT_EQ(fallocate(unsealed.get(), 0, 0, static_cast<off_t>(layout.total_bytes())), 0);
  ASSERT_FALSE(map(unsealed));
  EXPECT_NE(map(unsealed).error().message.find("not sealed"), std::string::npos);
  const UniqueFd hollow(memfd_create("test", MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(hollow.get(), static_cast<off_t>(layout.total_bytes())), 0);
  ASSERT_EQ(fcntl(hollow.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_FALSE(map(hollow));
  const UniqueFd small = std::move(*create_shared_memory(4096));
  EXPECT_FALSE(map(small));
  const UniqueFd file(open("/dev/null", O_RDWR));
  EXPECT_FALSE(map(file));
  const UniqueFd good = std::move(*create_shared_memory(layout.total_bytes()));
  EXPECT_TRUE(map(good));
  EXPECT_NE(ftruncate(good.get(), 0), 0);
}

// A peer that did a proper handshake and has the memory in its hands.
struct Liar {
  UniqueFd socket;
  std::shared_ptr<RingMemory> memory;
  std::unique_ptr<Endpoint> victim;  // side 1: receives direction 0, sends direction 1

  explicit Liar(Listener& listener) {
    const auto options = small_options();
    socket = std::move(*connect_unix(listener.address().substr(6)));
    EXPECT_TRUE(send_packet(socket.get(), HelloLayout::encode(options), {}));
    victim = accept_one(listener);
    std::array<std::byte, 600> packet;
    std::vector<UniqueFd> fds;
    EXPECT_EQ(*receive_packet(socket.get(), packet, fds), HelloLayout::kBytes);
    EXPECT_EQ(fds.size(), 3u);
    memory = *map_shared_memory(fds[0], RingLayout(options.slots_per_channel, options.slot_bytes),
                                std::move(fds[1]), std::move(fds[2]));
  }
  void post(uint64_t count, uint64_t slot, uint64_t bytes) {
    memory->sent_entry(0, Channel::request, count).store(slot << 32 | bytes);
    memory->control(0, Channel::request).sent.store(count + 1);
  }
  PeerState state() {
    Incoming out[8];
    victim->poll(out);
    return victim->peer();
  }
};

TEST_F(ShmTest, APeerThatLiesAboutItsMessagesIsBroken) {
  auto listener = std::move(*listen(address_, small_options()));
  {
    Liar honest(*listener);
    honest.post(0, 3, 256);
    EXPECT_EQ(honest.state(), PeerState::alive);
  }
  for (const auto& [slot, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
           {4, 10}, {0xffffffff, 10}, {0, 0}, {0, 257}, {0, 0xffffffff}}) {
    Liar liar(*listener);
    liar.post(0, slot, bytes);
    EXPECT_EQ(liar.state(), PeerState::broken) << slot << " " << bytes;
    EXPECT_EQ(liar.victim->acquire(Channel::request, 1).error().code, ErrorCode::unavailable);
  }
  for (const uint64_t count : {uint64_t{5}, uint64_t{1} << 40, UINT64_MAX}) {
    Liar liar(*listener);
    liar.memory->control(0, Channel::exchange).sent.store(count);
    EXPECT_EQ(liar.state(), PeerState::broken) << count;
  }
  Liar liar(*listener);  // the same slot twice, the first still held
  liar.post(0, 1, 10);
  Incoming held;
  EXPECT_EQ(liar.victim->poll({&held, 1}), 1u);
  liar.post(1, 1, 20);
  EXPECT_EQ(liar.state(), PeerState::broken);
  EXPECT_EQ(held.lease.bytes().size(), 10u);
}

TEST_F(ShmTest, APeerThatLiesAboutCreditsIsBroken) {
  auto listener = std::move(*listen(address_, small_options()));
  const auto use_all = [](Endpoint& victim) {
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(send_text(victim, Channel::exchange, "x"));
    return victim.acquire(Channel::exchange, 1);  // slot 3 is acquired, not sent
  };
  for (const uint32_t slot : {3u, 4u, 0xffffffffu}) {
    Liar liar(*listener);
    const auto kept = use_all(*liar.victim);
    liar.memory->freed_entry(1, Channel::exchange, 0).store(slot);
    liar.memory->control(1, Channel::exchange).freed.store(1);
    EXPECT_EQ(liar.victim->acquire(Channel::exchange, 1).error().code, ErrorCode::unavailable) << slot;
    EXPECT_EQ(liar.state(), PeerState::broken);
  }
  for (const uint64_t count : {uint64_t{4}, UINT64_MAX}) {
    Liar liar(*listener);
    const auto kept = use_all(*liar.victim);
    liar.memory->control(1, Channel::exchange).freed.store(count);
    EXPECT_EQ(liar.victim->acquire(Channel::exchange, 1).error().code, ErrorCode::unavailable) << count;
    EXPECT_EQ(liar.state(), PeerState::broken);
  }
  Liar twice(*listener);  // one slot given back two times
  const auto kept = use_all(*twice.victim);
  for (uint64_t i : {0, 1}) twice.memory->freed_entry(1, Channel::exchange, i).store(0);
  twice.memory->control(1, Channel::exchange).freed.store(2);
  EXPECT_EQ(twice.victim->acquire(Channel::exchange, 1).error().code, ErrorCode::unavailable);
}

TEST_F(ShmTest, NoiseOnTheSocketIsBrokenAndStrangersAreDropped) {
  auto listener = std::move(*listen(address_, small_options()));
  Liar liar(*listener);
  const std::string noise = "noise";
  ASSERT_TRUE(send_packet(liar.socket.get(), std::as_bytes(std::span(noise)), {}));
  EXPECT_EQ(wait_for_loss(*liar.victim), PeerState::broken);

  const UniqueFd stranger = std::move(*connect_unix(path_));
  ASSERT_TRUE(send_packet(stranger.get(), std::as_bytes(std::span(noise)), {}));
  const UniqueFd mute = std::move(*connect_unix(path_));
  EXPECT_EQ(accept_one(*listener, std::chrono::milliseconds(20)), nullptr);
  EXPECT_TRUE(make_pair(*listener, small_options()).connected);
}

TEST_F(ShmTest, ATenthOfTheMemoryStaysFree) {
  EXPECT_TRUE(leaves_room(900, 1000));
  EXPECT_FALSE(leaves_room(901, 1000));
  EXPECT_FALSE(leaves_room(1, 0));
}

}  // namespace
}  // namespace tandem
