// The handshake and the protocol state of a session, with clients that fit, do not fit, or do not keep to the
// protocol.
#include <thread>

#include "ffn/raw_client_testing.h"

namespace tandem {
namespace {

using namespace split_testing;
using std::chrono::milliseconds;

TEST(Session, SettingsThatDifferFailTheStartAtOnceByName) {
  Served served;
  auto options = served.reference.remote_options(served.worker->address());
  options.settings.model_fingerprint = 43;
  const auto port = RemoteFfn::create(options);
  ASSERT_FALSE(port.has_value());
  EXPECT_EQ(port.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(port.error().message.find("model_fingerprint is"), std::string::npos) << port.error().message;
  EXPECT_NE(port.error().message.find("000000000000002a"), std::string::npos);
  EXPECT_NE(port.error().message.find("000000000000002b"), std::string::npos);
  options.settings.model_fingerprint = 42;
  EXPECT_TRUE(RemoteFfn::create(options).has_value());  // the worker serves on
}

TEST(Session, MissingExpertsStopTheStartAndAreNamed) {
  SplitModel ffn({}), reference({});
  auto options = ffn.worker_options(fresh_address("inproc"));
  std::erase_if(options.pieces, [](const Piece& piece) { return piece.layer == 2 && piece.expert > 5; });
  auto worker = FfnWorker::create(options, ffn.block());
  const auto port = RemoteFfn::create(reference.remote_options((*worker)->address()));
  ASSERT_FALSE(port.has_value());
  EXPECT_NE(port.error().message.find("layer 2: experts 6-7"), std::string::npos) << port.error().message;
}

TEST(Session, EitherSideMayStartFirst) {
  SplitModel ffn({}), reference({});
  const std::string address = fresh_address("inproc");
  std::unique_ptr<FfnWorker> worker;
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(150));
    worker = std::move(*FfnWorker::create(ffn.worker_options(address), ffn.block()));
  });
  const auto port = RemoteFfn::create(reference.remote_options(address));
  later.join();
  EXPECT_TRUE(port.has_value()) << port.error().message;
}

TEST(Session, WaitingForAnFfnRankEndsAndSaysForWhom) {
  SplitModel reference({});
  const std::string address = "tcp://127.0.0.1:1";
  const Error error = start_refusal<RemoteFfn>(reference.remote_options(address), address);
  EXPECT_EQ(error.code, ErrorCode::deadline_exceeded);
  EXPECT_NE(error.message.find(address), std::string::npos) << error.message;
}

// Something accepts the connection and then says nothing: each try ends in time and says what did not come.
TEST(Session, APeerThatAcceptsButNeverAnswersIsNamed) {
  SplitModel reference({});
  const std::string address = fresh_address("inproc");
  auto listener = listen(address, reference.settings().endpoint_options(8));
  ASSERT_TRUE(listener.has_value());
  auto options = reference.remote_options(address);
  options.handshake_limit = milliseconds(50);
  const Error error = start_refusal<RemoteFfn>(options, "hello_ack");
  EXPECT_EQ(error.code, ErrorCode::deadline_exceeded);
  EXPECT_NE(error.message.find("hello_ack"), std::string::npos) << error.message;
}

TEST(Session, WaitingForAnFfnRankCanBeGivenUp) {
  SplitModel reference({});
  std::atomic<bool> give_up{false};
  auto options = reference.remote_options(fresh_address("inproc"));
  options.give_up = &give_up;
  std::thread signal([&] {
    std::this_thread::sleep_for(milliseconds(50));
    give_up.store(true);
  });
  EXPECT_EQ(RemoteFfn::create(options).error().code, ErrorCode::cancelled);
  signal.join();
}

TEST(Session, AWorkerWhoseBlockDoesSomethingElseIsNotCreated) {
  SplitModel ffn({});
  auto options = ffn.worker_options(fresh_address("inproc"));
  options.settings.gate_on_attention = true;
  EXPECT_NE(FfnWorker::create(options, ffn.block()).error().message.find("route"), std::string::npos);
  options = ffn.worker_options(fresh_address("inproc"));
  options.settings.set_dtypes(DType::bf16, SumMode::deterministic);
  EXPECT_FALSE(FfnWorker::create(options, ffn.block()).has_value());
  options = ffn.worker_options("tcp://256.1.1.1:70000");
  EXPECT_FALSE(FfnWorker::create(options, ffn.block()).has_value());
}

TEST(Session, BreakingTheProtocolEndsTheSessionWithAReasonAndHurtsNobodyElse) {
  Served served;
  auto port = RemoteFfn::create(served.reference.remote_options(served.worker->address()));
  ASSERT_TRUE(port.has_value()) << port.error().message;
  const std::vector<std::byte> garbage(100, std::byte{0x47});
  {
    RawClient client(served, false);
    client.send(Channel::control, garbage);
    EXPECT_NE(client.refusal().find("magic"), std::string::npos);
  }
  {
    RawClient client(served, false);
    client.send(Channel::request, client.request(client.header(2)));
    EXPECT_NE(client.refusal().find("ffn_request before hello"), std::string::npos);
  }
  {
    RawClient client(served, true);
    client.send(Channel::request, garbage);
    EXPECT_NE(client.refusal().find("magic"), std::string::npos);
  }
  {
    RawClient client(served, true);
    auto frame = client.request(client.header(2));
    frame.pop_back();
    client.send(Channel::request, frame);
    EXPECT_NE(client.refusal().find("arrived"), std::string::npos);
  }
  {
    RawClient client(served, true);
    FrameHeader header = client.header(2);
    header.session ^= 1;
    client.send(Channel::request, client.request(header));
    EXPECT_NE(client.refusal().find("say hello again"), std::string::npos);
  }
  {
    RawClient client(served, true);
    FrameHeader header = client.header(2);
    header.incarnation ^= 1;  // an earlier life of the rank
    client.send(Channel::request, client.request(header));
    EXPECT_NE(client.refusal().find("say hello again"), std::string::npos);
  }
  {
    RawClient client(served, true);
    client.send(Channel::control, client.request(client.header(2)));
    EXPECT_NE(client.refusal().find("wrong channel"), std::string::npos);
  }
  {
    RawClient client(served, true);
    client.send(
        Channel::request,
        make_canary(served.reference.settings(), client.facts.session, client.facts.incarnation, 0).value());
    EXPECT_NE(client.refusal().find("canary in an open session"), std::string::npos);
  }
  Work work(served.reference, 1, 9, 1);
  ASSERT_TRUE(run_one(**port, work).has_value());
  EXPECT_TRUE(work.output_is_exact());
  EXPECT_EQ((*port)->stats().connections, 1u);
  const FfnStats stats = served.worker->stats();
  EXPECT_EQ(stats.sessions_refused, 8u);
  EXPECT_EQ(stats.sessions_opened, 7u);
  EXPECT_EQ(stats.sessions_closed, 6u);  // all of them but the port's
}

TEST(Session, AWrongValueIsRefusedByNameAndTheSessionGoesOn) {
  Placement placement;
  placement.gate_on_attention = true;
  Served served(placement);
  RawClient client(served, true);
  const auto answer = [&](const FrameHeader& header, int32_t id) {
    client.send(Channel::request, client.request(header, id));
    const auto bytes = client.receive();
    const auto frame = parse_frame(bytes).value();
    const auto reply = read_reply(frame, served.reference.settings()).value();
    return reply.status ? std::string("served") : reply.status.error().message;
  };
  EXPECT_EQ(answer(client.header(2), 7), "served");
  EXPECT_NE(answer(client.header(2), 8).find("expert id 8"), std::string::npos);
  EXPECT_NE(answer(client.header(2), -999999).find("expert id -999999"), std::string::npos);
  FrameHeader dense = client.header(2);
  dense.layer = 0;
  EXPECT_NE(answer(dense, 0).find("layer 0 has no experts"), std::string::npos);
  EXPECT_EQ(answer(client.header(0), 0), "served");  // no rows: answered without computing
  EXPECT_EQ(answer(client.header(2), 0), "served");
  const FfnStats stats = served.worker->stats();
  EXPECT_EQ(stats.groups, 2u);
  EXPECT_EQ(stats.zero_row_tiles, 1u);
  EXPECT_EQ(stats.tiles_refused, 3u);
}

// Mutated requests to a living worker: each is served, answered with an error, or ends its session with a
// reason; then the worker serves on.
TEST(Session, MutatedRequestsNeverStopTheWorker) {
  Placement placement;
  placement.gate_on_attention = true;
  Served served(placement);
  std::mt19937 random(5);
  std::unique_ptr<RawClient> client;
  int refused = 0, answered = 0;
  for (int round = 0; round < 400; ++round) {
    if (client == nullptr) client = std::make_unique<RawClient>(served, true);
    auto frame = client->request(client->header(1 + random() % 8));
    for (int change = 0; change < 2; ++change) {
      const size_t area = random() % 3 != 0 ? kHeaderBytes + 3 * kDescriptorBytes : frame.size();
      frame[random() % area] = static_cast<std::byte>(random());
    }
    if (random() % 8 != 0) {  // usually repaired, so that what stands behind the checksum is reached
      const size_t table =
          kHeaderBytes + kDescriptorBytes * std::min<size_t>(static_cast<size_t>(frame[55]), 3);
      const uint32_t crc = header_checksum(std::span(frame).first(table));
      std::memcpy(frame.data() + 60, &crc, sizeof crc);
    }
    client->send(Channel::request, frame);
    // A valid request behind it: its reply, or the refusal, must come, whatever came of the first.
    FrameHeader valid = client->header(0);
    valid.attempt = 4242;
    client->send(Channel::request, client->request(valid));
    while (client != nullptr) {
      const auto bytes = client->receive();
      const auto reply = parse_frame(bytes);
      ASSERT_TRUE(reply.has_value()) << round;
      if (reply->header.kind == FrameKind::refuse) {
        ++refused;
        client.reset();
      } else if (reply->header.attempt == 4242) {
        ++answered;
        break;
      }
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(answered, 50);
  EXPECT_TRUE(RemoteFfn::create(served.reference.remote_options(served.worker->address())).has_value());
}

TEST(Session, AConnectionThatNeverSaysHelloIsDropped) {
  SplitModel ffn({});
  auto options = ffn.worker_options(fresh_address("inproc"));
  options.hello_limit = milliseconds(50);
  auto worker = FfnWorker::create(options, ffn.block());
  auto endpoint = connect((*worker)->address(), options.settings.endpoint_options(8));
  ASSERT_TRUE(endpoint.has_value());
  const Instant limit = now() + std::chrono::seconds(20);
  Incoming incoming;
  while ((*endpoint)->peer() == PeerState::alive && now() < limit) {
    (*endpoint)->poll({&incoming, 1});
    if ((*endpoint)->arm()) std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_NE((*endpoint)->peer(), PeerState::alive);
}

TEST(Session, TooManyClientsAreRefusedByNumber) {
  SplitModel ffn({}), reference({});
  auto options = ffn.worker_options(fresh_address("inproc"));
  options.max_sessions = 1;
  auto worker = FfnWorker::create(options, ffn.block());
  auto first = RemoteFfn::create(reference.remote_options((*worker)->address()));
  ASSERT_TRUE(first.has_value());
  const std::string words = "1 clients are connected, max_sessions is 1";
  const Error error = start_refusal<RemoteFfn>(reference.remote_options((*worker)->address()), words);
  EXPECT_NE(error.message.find(words), std::string::npos) << error.message;
}

// A path that changes one byte of what it carries is found before any request is served.
TEST(Session, ADamagedCanaryIsFound) {
  SplitModel reference({});
  const SplitSettings settings = reference.settings();
  const std::string address = fresh_address("inproc");
  auto listener = listen(address, settings.endpoint_options(8));
  ASSERT_TRUE(listener.has_value());
  std::atomic<bool> finished{false};
  std::thread server([&] {
    const PeerIdentity self = make_identity("ffn", 0);
    const auto map = ExpertMap::whole(settings.map_shape(), {});
    const FfnAdmission admission;
    FfnHandshake handshake(settings, self, map.pieces(), 1, admission);
    std::unique_ptr<Endpoint> endpoint;
    while (!finished.load()) {
      std::this_thread::sleep_for(milliseconds(1));
      if (endpoint == nullptr) {
        endpoint = std::move(*(*listener)->accept());
        continue;
      }
      Incoming incoming;
      if (endpoint->poll({&incoming, 1}) == 0) continue;
      const auto frame = parse_frame(incoming.lease.bytes());
      if (!frame) continue;
      if (frame->header.kind != FrameKind::canary) {
        (void)handshake.on_frame(*frame, *endpoint);
        continue;
      }
      auto echo = echo_canary(frame->bytes);
      echo[5000] ^= std::byte{4};
      const auto slot = endpoint->acquire(Channel::request, echo.size());
      std::memcpy(slot->bytes.data(), echo.data(), echo.size());
      (void)endpoint->commit(*slot, echo.size());
    }
  });
  const auto port = RemoteFfn::create(reference.remote_options(address));
  finished.store(true);
  server.join();
  ASSERT_FALSE(port.has_value());
  EXPECT_EQ(port.error().code, ErrorCode::data_loss);
  EXPECT_NE(port.error().message.find("changed at byte 5000"), std::string::npos) << port.error().message;
}

}  // namespace
}  // namespace tandem
