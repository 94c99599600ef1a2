// Connections inside TLS: whom each side believes, what it says of others, and what somebody on the way sees.
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "transport/connecting.h"
#include "transport/endpoint_test_util.h"
#include "transport/test_certificates.h"
#include "transport/tls_session.h"
#include "transport/unique_fd.h"

namespace tandem {
namespace {

using Security = std::shared_ptr<const PeerSecurity>;

Security tls_of(const TlsFiles& files) {
  auto security = PeerSecurity::with_tls(files);
  EXPECT_TRUE(security) << security.error().message;
  return security ? *security : nullptr;
}

Security key_of(char letter) {
  const std::string key(40, letter);
  return *PeerSecurity::with_key(std::as_bytes(std::span(key)), "test");
}

EndpointOptions with(Security security) {
  EndpointOptions options;
  options.slots_per_channel = 2;
  options.slot_bytes = size_t{3} << 20;
  options.silence_limit = std::chrono::seconds(20);
  options.security = std::move(security);
  return options;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

class TlsTest : public testing::Test {
 protected:
  const TestCertificates ours_;
  const TestCertificates theirs_;  // of another CA

  // The listener lets nobody in. `connecting_says`: parts of the connecting side's error; `listening_says`:
  // of the listener's log.
  using Parts = std::vector<std::string>;
  static void expect_refusal(const Security& listening, const Security& connecting,
                             const Parts& connecting_says, const Parts& listening_says) {
    const CapturedLog log;
    auto listener = listen("tcp://127.0.0.1:0", with(listening));
    ASSERT_TRUE(listener);
    Result<std::unique_ptr<Endpoint>> connected = nullptr;
    std::atomic<bool> done = false;
    std::thread thread([&] {
      connected = connect((*listener)->address(), with(connecting));
      done = true;
    });
    EXPECT_TRUE(serve_until(**listener, [&] { return done.load(); }));
    thread.join();
    ASSERT_FALSE(connected);
    expect_part(connected.error().message, (*listener)->address());
    for (const std::string& part : connecting_says) expect_part(connected.error().message, part);
    expect_lines(**listener, log, listening_says);
  }
  static void expect_lines(Listener& listener, const CapturedLog& log, const Parts& parts) {
    const auto all_said = [&] {
      return std::ranges::all_of(
          parts, [&, said = log.text()](const auto& part) { return said.find(part) != std::string::npos; });
    };
    EXPECT_TRUE(serve_until(listener, all_said)) << testing::PrintToString(parts) << " in " << log.text();
  }
};

TEST_F(TlsTest, BothSidesSpeakAndSayThatTheyAreEncrypted) {
  auto [a, b] = make_pair("tcp", with(tls_of(ours_.files())));
  ASSERT_TRUE(a && b);
  EXPECT_TRUE(a->caps().encrypted);
  EXPECT_TRUE(b->caps().encrypted);
  // Larger than the socket takes at once, and many records.
  const std::string large(size_t{3} << 20, 'x');
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(send_text(*a, Channel::request, large));
    ASSERT_TRUE(send_text(*b, Channel::exchange, "small"));
    EXPECT_EQ(text_of(receive_one(*b, {a.get()}).lease), large);
    EXPECT_EQ(text_of(receive_one(*a, {b.get()}).lease), "small");
  }
}

TEST_F(TlsTest, CertificatesOfAnotherCaAreRefusedByNameOnBothSides) {
  // Nobody trusts anybody: the connecting side sees the listener's certificate first.
  expect_refusal(tls_of(ours_.files()), tls_of(theirs_.files()),
                 {"its certificate is refused (", "have it signed by a CA of this side's --peer-tls-ca"},
                 {"it refuses our certificate ("});
  // The connecting side believes the listener, and not the other way round.
  TlsFiles mixed = theirs_.files();
  mixed.ca = ours_.path("ca.pem");
  expect_refusal(tls_of(ours_.files()), tls_of(mixed),
                 {"it refuses our certificate (", "have it signed by a CA of that side's --peer-tls-ca"},
                 {"its certificate is refused (", "have it signed by a CA of this side's --peer-tls-ca"});
}

TEST_F(TlsTest, AnExpiredCertificateIsRefusedByName) {
  const TestCertificates expired(-60);
  expect_refusal(tls_of(expired.files()), tls_of(expired.files()),
                 {"its certificate is refused (certificate has expired)"}, {});
}

TEST_F(TlsTest, SidesThatDoNotBothSpeakTlsAreToldSo) {
  for (const Security& other : {Security(), key_of('k')}) {
    expect_refusal(tls_of(ours_.files()), other,
                   {"the other side speaks TLS; give this side --peer-tls-certificate"},
                   {"it does not speak TLS 1.3 ("});
    expect_refusal(other, tls_of(ours_.files()), {"the other side closed the connection"},
                   {"it speaks TLS; give this side --peer-tls-certificate"});
  }
}

// A client of OpenSSL alone: what it gets of us when it shows no certificate, or an older TLS.
TEST_F(TlsTest, WhoShowsNoCertificateGetsNoByte) {
  for (const bool old : {false, true}) {
    auto listener = listen("tcp://127.0.0.1:0", with(tls_of(ours_.files())));
    ASSERT_TRUE(listener);
    const CapturedLog log;
    auto socket = connect_patiently(*parse_address((*listener)->address()));
    ASSERT_TRUE(socket);
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    if (old) SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
    SSL* ssl = SSL_new(context);
    SSL_set_fd(ssl, socket->get());
    std::array<char, 64> heard{};
    size_t got = 0;
    bool ended = false;
    for (const Instant end = now() + kPatience; now() < end && !ended;) {
      EXPECT_EQ(accept_one(**listener, std::chrono::milliseconds(5)), nullptr);
      int result = SSL_is_init_finished(ssl) != 0 ? 1 : SSL_connect(ssl);
      if (result == 1) result = SSL_read_ex(ssl, heard.data(), heard.size(), &got);
      ended = result == 1 || SSL_get_error(ssl, result) != SSL_ERROR_WANT_READ;
    }
    EXPECT_TRUE(ended);
    EXPECT_EQ(got, 0u);
    SSL_free(ssl);
    SSL_CTX_free(context);
    expect_lines(
        **listener, log,
        {old ? "it does not speak TLS 1.3 (" : "it shows no certificate; give it --peer-tls-certificate"});
  }
}

// Passes on what two sides say, and keeps it.
class Listening {
 public:
  explicit Listening(const std::string& to) : socket_(std::move(*listen_tcp({"tcp", "127.0.0.1:0"}))) {
    thread_ = std::thread([this, to] {
      if (!wait_for_socket(socket_.get(), false, now() + kPatience)) return;
      const UniqueFd here(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK));
      const auto there = connect_patiently(*parse_address(to));
      if (!here || !there) return;
      const std::array<int, 2> ends = {here.get(), there->get()};
      for (std::vector<std::byte> bytes(1 << 16); !stop_;) {
        for (const size_t from : {size_t{0}, size_t{1}}) {
          const ssize_t got = recv(ends[from], bytes.data(), bytes.size(), MSG_DONTWAIT);
          if (got <= 0) continue;
          const auto part = std::span(bytes).first(static_cast<size_t>(got));
          heard_.append(reinterpret_cast<const char*>(part.data()), part.size());
          (void)write_fully(ends[1 - from], part);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  ~Listening() { (void)heard(); }
  std::string address() const { return tcp_name_of_local_end(socket_.get()); }
  const std::string& heard() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return heard_;
  }

 private:
  UniqueFd socket_;
  std::atomic<bool> stop_ = false;
  std::string heard_;
  std::thread thread_;
};

TEST_F(TlsTest, WhoListensOnTheWayHearsNothingOfAMessage) {
  const std::string secret = "the weather of tomorrow, in full";
  for (const bool encrypted : {true, false}) {
    const EndpointOptions options = with(encrypted ? tls_of(ours_.files()) : key_of('k'));
    auto listener = listen("tcp://127.0.0.1:0", options);
    ASSERT_TRUE(listener);
    Listening between((*listener)->address());
    Result<std::unique_ptr<Endpoint>> a = nullptr;
    std::thread thread([&] { a = connect(between.address(), options); });
    const auto b = accept_one(**listener);
    thread.join();
    ASSERT_TRUE(a && b);
    ASSERT_TRUE(send_text(**a, Channel::request, secret));
    EXPECT_EQ(text_of(receive_one(*b, {a->get()}).lease), secret);
    EXPECT_EQ(between.heard().find(secret) == std::string::npos, encrypted);
  }
}

// Whatever parts a write has, and however little the socket takes of it, the bytes arrive in their order.
TEST_F(TlsTest, WritesOfManyPartsArriveInTheirOrder) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
  const UniqueFd a(sockets[0]), b(sockets[1]);
  const int little = 4096;
  setsockopt(a.get(), SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
  const Security security = tls_of(ours_.files());
  const auto writer = *TlsSession::create(*security->tls(), a.get(), true);
  const auto reader = *TlsSession::create(*security->tls(), b.get(), false);
  for (bool done = false; !done;) {
    const auto there = writer->handshake(), back = reader->handshake();
    ASSERT_TRUE(there) << there.error().message;
    ASSERT_TRUE(back) << back.error().message;
    done = *there && *back;
  }
  std::mt19937 random(7);
  std::vector<std::byte> source(size_t{3} << 20);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());
  std::vector<std::byte> target(source.size());
  size_t written = 0, read = 0, most = 0, waited = 0;
  while (read < target.size()) {
    std::vector<iovec> parts;
    for (size_t at = written; at < source.size() && parts.size() < 6;) {
      const size_t length =
          std::min<size_t>(source.size() - at, random() % 3 == 0 ? 16 : 1 + random() % 70000);
      parts.push_back({source.data() + at, length});
      at += length;
    }
    const ssize_t took = parts.empty() ? 0 : writer->write(parts);
    if (took < 0) {
      ASSERT_EQ(errno, EAGAIN);
      EXPECT_TRUE(writer->has_unsent());
      ++waited;
    } else {
      written += static_cast<size_t>(took);
      most = std::max(most, static_cast<size_t>(took));
    }
    if (writer->has_unsent() && random() % 2 == 0) writer->flush();
    const iovec into{target.data() + read, std::min<size_t>(target.size() - read, 1 + random() % 100000)};
    const ssize_t got = reader->read({&into, 1});
    if (got > 0) read += static_cast<size_t>(got);
  }
  EXPECT_EQ(target, source);
  EXPECT_FALSE(writer->has_unsent());
  EXPECT_GT(waited, 0u) << "the socket took all at once";
  EXPECT_GT(most, size_t{64} << 10) << "several records in one write";
  EXPECT_LE(most, size_t{128} << 10) << "and a bound";
}

TEST_F(TlsTest, FilesThatDoNotServeAreRefusedByName) {
  const auto expect = [](const TlsFiles& files, const std::string& part) {
    const auto refused = PeerSecurity::with_tls(files);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    expect_part(refused.error().message, part);
  };
  const TlsFiles good = ours_.files();
  TlsFiles files = good;
  files.certificate = ours_.path("none.pem");
  expect(files, "none.pem: is no certificate in PEM form that can be read");
  files = good;
  files.key = theirs_.path("peer.key");
  expect(files, "peer.key: is not the key of the certificate " + good.certificate);
  files.key = ours_.path("ca.pem");
  expect(files, "ca.pem: is no private key in PEM form without a password");
  files = good;
  files.ca = ours_.path("none.pem");
  expect(files, "none.pem: has no certificate of a CA in PEM form");
  ::chmod(good.key.c_str(), 0644);
  expect(good, "peer.key: others than its owner may use it; chmod 600 " + good.key);
}

TEST_F(TlsTest, UcxCannotEncrypt) {
  const EndpointOptions options = with(tls_of(ours_.files()));
  const auto listening = listen("ucx://127.0.0.1:0", options);
  ASSERT_FALSE(listening);
  EXPECT_EQ(listening.error().code, ErrorCode::unsupported);
  EXPECT_EQ(listening.error().message,
            "address ucx://127.0.0.1:0: messages over ucx cannot be encrypted; use tcp:// with TLS, or "
            "--peer-key-file");
  const auto connecting = connect("ucx://127.0.0.1:7", options);
  ASSERT_FALSE(connecting);
  EXPECT_EQ(connecting.error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace tandem
