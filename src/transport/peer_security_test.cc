// Peers that must show a key: files of keys, the proofs, and strangers that are nothing but a socket.
#include "transport/peer_security.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "transport/connecting.h"
#include "transport/endpoint_test_util.h"
#include "transport/hello.h"
#include "transport/peer_proof.h"
#include "transport/tcp_frame.h"
#include "transport/tcp_greeting.h"

namespace tandem {
namespace {

using Security = std::shared_ptr<const PeerSecurity>;
using Bytes = std::vector<std::byte>;

Security key_of(char letter) {
  const std::string key(40, letter);
  auto security = PeerSecurity::with_key(std::as_bytes(std::span(key)), "test");
  EXPECT_TRUE(security) << security.error().message;
  return *security;
}

EndpointOptions with(Security security) {
  EndpointOptions options;
  options.slots_per_channel = 2;
  options.slot_bytes = 256;
  options.silence_limit = std::chrono::seconds(20);
  options.security = std::move(security);
  return options;
}

void append(Bytes& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

Bytes begin_of(Bytes bytes, size_t size) {
  bytes.resize(size);
  return bytes;
}

// ---- keys ----

class KeyFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tandem_key_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& text, mode_t mode = 0600) {
    const std::string path = (folder_ / "peer.key").string();
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  static void expect_refused(const Result<Security>& security, const std::string& part) {
    ASSERT_FALSE(security);
    EXPECT_NE(security.error().message.find(part), std::string::npos) << security.error().message;
  }
  std::filesystem::path folder_;
};

TEST_F(KeyFile, IsTheKeyWithoutItsLastNewline) {
  const std::string key(32, 'k');
  const std::string text = "text";
  const auto digest = [&](const Result<Security>& security) {
    EXPECT_TRUE(security) << security.error().message;
    return *(*security)->authenticate(std::as_bytes(std::span(text)));
  };
  const auto wanted = digest(PeerSecurity::with_key(std::as_bytes(std::span(key)), "memory"));
  EXPECT_EQ(digest(PeerSecurity::with_key_file(write(key))), wanted);
  EXPECT_EQ(digest(PeerSecurity::with_key_file(write(key + "\n"))), wanted);
  EXPECT_NE(digest(PeerSecurity::with_key_file(write(key + "\n\n"))), wanted);
  EXPECT_NE(digest(PeerSecurity::with_key_file(write(" " + key))), wanted);
}

TEST_F(KeyFile, IsRefusedByNameWhenItIsNoSecret) {
  const std::string key(32, 'k');
  for (const mode_t mode : {0640, 0604, 0620, 0610, 0777}) {
    const std::string path = write(key, mode);
    expect_refused(PeerSecurity::with_key_file(path), "chmod 600 " + path);
  }
  expect_refused(PeerSecurity::with_key_file(write(key.substr(1) + "\n")),
                 "has 31 bytes, not from 32 to 4096; make one with: openssl rand -hex 32");
  expect_refused(PeerSecurity::with_key_file(write("")), "has 0 bytes");
  expect_refused(PeerSecurity::with_key_file(write(std::string(5000, 'k'))),
                 "has 5000 bytes, more than 4096");
  expect_refused(PeerSecurity::with_key_file((folder_ / "none").string()), "none: cannot be read");
  expect_refused(PeerSecurity::with_key_file(folder_.string()), "is not a file");
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(PeerSecurity::with_key_file(pipe), "pipe: is not a file");  // and nobody waits for a writer
}

// RFC 4231, test case 6.
TEST(PeerSecurity, DigestsAreHmacSha256) {
  const Bytes key(131, std::byte{0xaa});
  const std::string text = "Test Using Larger Than Block-Size Key - Hash Key First";
  const auto digest = (*PeerSecurity::with_key(key, "test"))->authenticate(std::as_bytes(std::span(text)));
  ASSERT_TRUE(digest);
  std::string hex;
  for (const std::byte byte : *digest) {
    constexpr const char* kDigits = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned>(byte) >> 4];
    hex += kDigits[static_cast<unsigned>(byte) & 15];
  }
  EXPECT_EQ(hex, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

// ---- both sides ours ----

class SecuredPair : public testing::TestWithParam<std::string> {};

TEST_P(SecuredPair, WithOneKeySpeaks) {
  auto [a, b] = tandem::make_pair(GetParam(), with(key_of('k')));
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(send_text(*a, Channel::request, "there"));
  EXPECT_EQ(text_of(receive_one(*b, {a.get()}).lease), "there");
  ASSERT_TRUE(send_text(*b, Channel::exchange, "back"));
  EXPECT_EQ(text_of(receive_one(*a, {b.get()}).lease), "back");
}

// What the connecting side says; the listener gets nobody and goes on.
std::string refusal(const std::string& transport, Security listening, Security connecting) {
  auto listener = listen(unique_address(transport), with(std::move(listening)));
  EXPECT_TRUE(listener) << listener.error().message;
  Result<std::unique_ptr<Endpoint>> connected = nullptr;
  std::atomic<bool> done = false;
  std::thread thread([&] {
    connected = connect((*listener)->address(), with(std::move(connecting)));
    done = true;
  });
  while (!done) EXPECT_EQ(accept_one(**listener, std::chrono::milliseconds(20)), nullptr);
  thread.join();
  if (connected) return "connected";
  EXPECT_EQ(connected.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(connected.error().message.find((*listener)->address()), std::string::npos);
  return connected.error().message;
}

TEST_P(SecuredPair, WithoutOneKeyIsRefusedByNameOnTheConnectingSide) {
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(refusal(GetParam(), key_of('a'), key_of('b')),
         "it refuses our key: it has another one; give both sides the same --peer-key-file");
  expect(refusal(GetParam(), key_of('a'), nullptr), "security differs: none at ");
  expect(refusal(GetParam(), key_of('a'), nullptr), "give this side --peer-key-file as well");
  expect(refusal(GetParam(), nullptr, key_of('a')), "security differs: a key at ");
  expect(refusal(GetParam(), nullptr, key_of('a')), "give that side --peer-key-file as well");
}

INSTANTIATE_TEST_SUITE_P(Transports, SecuredPair, testing::Values("tcp", "ucx"),
                         [](const auto& instance) { return instance.param; });

TEST(PeerSecurity, IsLeftAsideWhereTheSystemKnowsThePeer) {
  for (const std::string transport : {"shm", "inproc"}) {
    auto listener = listen(unique_address(transport), with(key_of('a')));
    ASSERT_TRUE(listener);
    auto [a, b] = make_pair(**listener, with(nullptr));
    ASSERT_TRUE(a && b);
    ASSERT_TRUE(send_text(*a, Channel::request, transport));
    EXPECT_EQ(text_of(receive_one(*b, {a.get()}).lease), transport);
  }
}

// ---- strangers ----

constexpr size_t kHeader = TcpFrameLayout::kHeaderBytes;

// A client written from docs/protocol.md, which can be made to lie.
class Stranger {
 public:
  Stranger(const std::string& address, const EndpointOptions& options) {
    auto connected = connect_patiently(*parse_address(address));
    EXPECT_TRUE(connected);
    socket_ = std::move(*connected);
    own_ = make_greeting(options);
  }
  void send(std::span<const std::byte> bytes) { (void)write_fully(socket_.get(), bytes); }
  void say_hello() { send(own_); }
  void take_hello_and_nonce(Listener& listener) {
    const Bytes bytes = read_while_serving(listener, socket_.get(), kGreetingBytes + kHeader + 32);
    ASSERT_EQ(bytes.size(), kGreetingBytes + kHeader + 32);
    peer_hello_.assign(bytes.begin() + kHeader, bytes.begin() + kGreetingBytes);
    peer_nonce_.assign(bytes.end() - 32, bytes.end());
  }
  static Bytes frame(TcpFrameKind kind, std::span<const std::byte> value) {
    Bytes bytes;
    append(bytes, TcpFrameLayout::encode({kind, Channel::control, static_cast<uint32_t>(value.size())}));
    append(bytes, value);
    return bytes;
  }
  Bytes nonce() const { return frame(TcpFrameKind::nonce, nonce_); }
  Bytes proof(const Security& key, uint8_t side = 1) const {
    Bytes text;
    const std::string purpose = "tandem peer 1";
    append(text, std::as_bytes(std::span(purpose)));
    text.push_back(static_cast<std::byte>(side));
    append(text, nonce_);
    append(text, peer_nonce_);
    append(text, std::span(own_).subspan(kHeader));
    append(text, peer_hello_);
    return frame(TcpFrameKind::proof, *key->authenticate(text));
  }
  // All that still comes until the other side ends the connection.
  Bytes rest(Listener& listener) {
    shutdown(socket_.get(), SHUT_WR);
    return read_while_serving(listener, socket_.get(), 4096);
  }
  int socket() const { return socket_.get(); }
  Bytes nonce_ = Bytes(32, std::byte{7});

 private:
  UniqueFd socket_;
  std::array<std::byte, kGreetingBytes> own_;
  Bytes peer_hello_, peer_nonce_;
};

class Strangers : public testing::Test {
 protected:
  const Security key_ = key_of('k');
  const EndpointOptions options_ = with(key_);
  std::unique_ptr<Listener> listener_ = std::move(*listen("tcp://127.0.0.1:0", options_));

  // One that has said hello and nonce, and has heard ours.
  Stranger greeted() {
    Stranger stranger(listener_->address(), options_);
    stranger.say_hello();
    stranger.send(stranger.nonce());
    stranger.take_hello_and_nonce(*listener_);
    return stranger;
  }
  // What a stranger hears behind hello and nonce when it sends this; nobody may be let in.
  Bytes answer_to(Stranger& stranger, std::span<const std::byte> bytes) {
    stranger.send(bytes);
    return stranger.rest(*listener_);
  }
  static Bytes bye() {
    Bytes bytes;
    append(bytes, TcpFrameLayout::encode({TcpFrameKind::bye, Channel::control, 0}));
    return bytes;
  }
};

TEST_F(Strangers, TheProofOfTheProtocolPageIsTheOneThatIsTaken) {
  Stranger stranger = greeted();
  const Bytes proof = stranger.proof(key_);
  stranger.send(proof);
  auto endpoint = accept_one(*listener_);
  ASSERT_TRUE(endpoint);
  Bytes answer(PeerProof::kFrameBytes);
  ASSERT_TRUE(read_fully(stranger.socket(), answer));
  EXPECT_EQ(answer, stranger.proof(key_, 2));
  EXPECT_NE(answer, proof);
  stranger.send(proof);  // behind the handshake it is no frame
  EXPECT_EQ(wait_for_loss(*endpoint), PeerState::broken);
}

TEST_F(Strangers, AWrongProofGetsAGoodbyeAndNothingElse) {
  Stranger other_key = greeted();
  EXPECT_EQ(answer_to(other_key, other_key.proof(key_of('x'))), bye());
  Stranger other_side = greeted();  // as if it were the listener's
  EXPECT_EQ(answer_to(other_side, other_side.proof(key_, 2)), bye());
  Stranger zeros = greeted();
  EXPECT_EQ(answer_to(zeros, Stranger::frame(TcpFrameKind::proof, Bytes(32))), bye());
  for (const size_t at : {size_t{0}, size_t{31}}) {  // first and last byte count alike
    Stranger nearly = greeted();
    Bytes proof = nearly.proof(key_);
    proof[kHeader + at] ^= std::byte{1};
    EXPECT_EQ(answer_to(nearly, proof), bye());
  }
}

TEST_F(Strangers, AProofOfAnotherConnectionIsNone) {
  Stranger first = greeted();
  const Bytes recorded = first.proof(key_);
  first.send(recorded);
  ASSERT_TRUE(accept_one(*listener_));
  Stranger second = greeted();  // the same nonce and the same hello
  EXPECT_EQ(second.nonce(), first.nonce());
  EXPECT_EQ(answer_to(second, recorded), bye());
}

TEST_F(Strangers, AProofOfOtherOptionsIsNone) {
  // Somebody between two sides that changes a hello on the way: the proof is of what was sent.
  EndpointOptions claimed = options_;
  claimed.heartbeat_interval += std::chrono::nanoseconds(1);  // the hello says the same
  Stranger stranger(listener_->address(), claimed);
  Bytes hello;
  append(hello, make_greeting(options_));
  hello[kHeader + 12] = std::byte{1};  // a word that nothing reads
  stranger.send(hello);
  stranger.send(stranger.nonce());
  stranger.take_hello_and_nonce(*listener_);
  EXPECT_EQ(answer_to(stranger, stranger.proof(key_)), bye());
}

TEST_F(Strangers, NothingButItsTurnIsTaken) {
  const auto data = [] {
    Bytes bytes;
    append(bytes, TcpFrameLayout::encode({TcpFrameKind::data, Channel::request, 16}));
    bytes.resize(bytes.size() + 16);
    return bytes;
  }();
  const auto refused_after_hello = [&](std::span<const std::byte> bytes) {
    Stranger stranger(listener_->address(), options_);
    stranger.say_hello();
    const Bytes heard = answer_to(stranger, bytes);
    // Hello and nonce: no byte more.
    ASSERT_EQ(heard.size(), kGreetingBytes + PeerProof::kFrameBytes);
    const auto frame =
        TcpFrameLayout::decode(std::span<const std::byte>(heard).subspan<kGreetingBytes, kHeader>());
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->kind, TcpFrameKind::nonce);
  };
  refused_after_hello({});    // no proof at all
  refused_after_hello(data);  // a message instead
  Stranger blind(listener_->address(), options_);
  refused_after_hello(blind.proof(key_));  // a proof before any nonce
  refused_after_hello(make_greeting(options_));
  refused_after_hello(bye());
  refused_after_hello(Stranger::frame(TcpFrameKind::nonce, Bytes(31)));
  refused_after_hello(begin_of(blind.nonce(), 40));

  Stranger twice = greeted();  // a second nonce instead of the proof
  EXPECT_EQ(answer_to(twice, twice.nonce()), Bytes());
  Stranger hasty = greeted();
  EXPECT_EQ(answer_to(hasty, data), Bytes());
  Stranger cut = greeted();
  EXPECT_EQ(answer_to(cut, begin_of(cut.proof(key_), 47)), Bytes());
}

TEST_F(Strangers, WhoSaysNothingOrTooLittleIsLeftAtTheLimit) {
  EndpointOptions hasty = options_;
  hasty.connect_limit = std::chrono::milliseconds(50);
  listener_ = std::move(*listen("tcp://127.0.0.1:0", hasty));
  Stranger mute(listener_->address(), options_);
  Stranger slow(listener_->address(), options_);
  const auto hello = make_greeting(options_);
  size_t said = 0;
  char byte = 0;
  const auto left = [&](const Stranger& stranger) {
    return recv(stranger.socket(), &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
  };
  const Instant end = now() + kPatience;
  while (now() < end && !(left(mute) && left(slow))) {
    if (said < hello.size()) slow.send(std::span(hello).subspan(said++, 1));
    EXPECT_EQ(accept_one(*listener_, std::chrono::milliseconds(5)), nullptr);
  }
  EXPECT_LT(said, hello.size());
  EXPECT_LT(now(), end);
}

TEST_F(Strangers, OptionsOfAStrangerConcernNobody) {
  EndpointOptions other = options_;
  other.slots_per_channel = 5;
  Stranger stranger(listener_->address(), other);
  stranger.say_hello();
  EXPECT_EQ(stranger.rest(*listener_).size(), kGreetingBytes);
  EXPECT_FALSE(listener_->take_mismatch());
  // Without a key whoever comes belongs here, and a difference is the operator's.
  listener_ = std::move(*listen("tcp://127.0.0.1:0", with(nullptr)));
  other.security = nullptr;
  Stranger colleague(listener_->address(), other);
  colleague.say_hello();
  EXPECT_EQ(colleague.rest(*listener_).size(), kGreetingBytes);
  EXPECT_TRUE(listener_->take_mismatch());
}

TEST_F(Strangers, AFloodOfThemKeepsNobodyOut) {
  std::vector<Stranger> strangers;
  std::atomic<bool> connected = false;
  std::thread client([&] {
    auto endpoint = connect(listener_->address(), options_);
    for (int i = 0; !endpoint && i < 20; ++i) endpoint = connect(listener_->address(), options_);
    EXPECT_TRUE(endpoint) << endpoint.error().message;
    connected = true;
  });
  bool accepted = false;
  for (const Instant end = now() + kPatience; now() < end && !(connected && accepted);) {
    if (strangers.size() < 300) strangers.emplace_back(listener_->address(), options_).say_hello();
    if (accept_one(*listener_, std::chrono::milliseconds(2))) accepted = true;
  }
  client.join();
  EXPECT_TRUE(accepted);
}

TEST(HalfOpen, TheOldestOfTheHostWithMostMakesRoom) {
  const std::vector<uint64_t> hosts = {1, 2, 3, 2, 1, 2};
  EXPECT_EQ(whom_to_drop(hosts), 1u);
  const std::vector<uint64_t> alone = {4, 5, 6};
  EXPECT_EQ(whom_to_drop(alone), 0u);
  const auto number = [](const std::string& host) {
    return host_number(resolve({.host = host, .port = 1}, host)->front());
  };
  EXPECT_NE(number("10.0.0.1"), number("10.0.0.2"));
  EXPECT_EQ(number("2001:db8::1"), number("2001:db8::2"));
  EXPECT_NE(number("2001:db8::1"), number("2001:db9::1"));
  EXPECT_EQ(number("::ffff:10.0.0.1"), number("10.0.0.1"));
}

// Listens, and gives back to whoever connects what came from it.
TEST(PeerSecurity, WhoMirrorsOurNonceAndOurProofIsRefused) {
  const EndpointOptions options = with(key_of('k'));
  const auto listening = listen_tcp({"tcp", "127.0.0.1:0"});
  ASSERT_TRUE(listening);
  std::thread mirror([&] {
    ASSERT_TRUE(wait_for_socket(listening->get(), false, now() + kPatience));
    const UniqueFd socket(::accept(listening->get(), nullptr, nullptr));
    Bytes bytes(kGreetingBytes + 2 * PeerProof::kFrameBytes);
    const auto pass = [&](size_t begin, size_t size) {
      const auto part = std::span(bytes).subspan(begin, size);
      return read_fully(socket.get(), part) && write_fully(socket.get(), part);
    };
    EXPECT_TRUE(pass(0, kGreetingBytes));
    EXPECT_TRUE(pass(kGreetingBytes, PeerProof::kFrameBytes));
    EXPECT_TRUE(pass(kGreetingBytes + PeerProof::kFrameBytes, PeerProof::kFrameBytes));
    std::byte end{};
    (void)read_fully(socket.get(), {&end, 1});
  });
  const auto connected = connect(tcp_name_of_local_end(listening->get()), options);
  mirror.join();
  ASSERT_FALSE(connected);
  EXPECT_NE(connected.error().message.find("cannot prove that it has it"), std::string::npos)
      << connected.error().message;
}

}  // namespace
}  // namespace tandem
