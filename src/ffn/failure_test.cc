// What happens when the other side dies, is slow, lies, or does not fit.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "afd/handshake.h"
#include "ffn/split_testing.h"

extern char** environ;

namespace tandem {
namespace {

using namespace split_testing;
using std::chrono::milliseconds;

void pause() {
  std::this_thread::sleep_for(milliseconds(1));
}

// Holds the compute thread before each group while closed.
class Gate {
 public:
  void close() { open_.store(false); }
  void open() { open_.store(true); }
  int waiting() const { return waiting_.load(); }
  MoeRun around(MoeBlock& block) {
    return [this, &block](const MoeRequest& request) {
      ++waiting_;
      while (!open_.load()) pause();
      --waiting_;
      return block.run(request);
    };
  }

 private:
  std::atomic<bool> open_{true};
  std::atomic<int> waiting_{0};
};

struct Held {
  explicit Held(const std::string& scheme = "inproc", const Placement& placement = {})
      : ffn(placement), reference(placement) {
    options = ffn.worker_options(fresh_address(scheme));
  }
  ~Held() { gate.open(); }
  void start() {
    auto created = FfnWorker::create(options, gate.around(ffn.block()));
    ASSERT_TRUE(created.has_value()) << created.error().message;
    worker = std::move(*created);
    auto remote = RemoteFfn::create(reference.remote_options(worker->address()));
    ASSERT_TRUE(remote.has_value()) << remote.error().message;
    port = std::move(*remote);
  }

  SplitModel ffn, reference;
  FfnWorkerOptions options;
  Gate gate;
  std::unique_ptr<FfnWorker> worker;
  std::unique_ptr<RemoteFfn> port;
};

// ---- an FFN rank in a process of its own ----

constexpr uint32_t kHangRows = 13;  // the child computes for ever on a request of so many rows

constexpr const char* kServeAt = "TANDEM_TEST_FFN_ADDRESS";
constexpr const char* kReportTo = "TANDEM_TEST_FFN_REPORT";

// This very test, started anew: UCX does not outlive a fork.
class Child {
 public:
  explicit Child(const std::string& address) {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    const std::string serve_at = std::string(kServeAt) + "=" + address;
    const std::string report_to = std::string(kReportTo) + "=" + std::to_string(fds[1]);
    std::vector<char*> environment = {const_cast<char*>(serve_at.c_str()),
                                      const_cast<char*>(report_to.c_str())};
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.push_back(nullptr);
    std::string program = "/proc/self/exe", filter = "--gtest_filter=ChildProcess.*",
                brief = "--gtest_brief=1";
    char* arguments[] = {program.data(), filter.data(), brief.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environment.data()), 0);
    close(fds[1]);
    char text[256] = {};
    EXPECT_GT(read(fds[0], text, sizeof text - 1), 0);
    close(fds[0]);
    address_ = text;
  }
  ~Child() { end(SIGKILL); }
  void signal(int number) const {
    kill(pid_, number);
    if (number == SIGSTOP) waitpid(pid_, nullptr, WUNTRACED);  // until then it may still answer
  }
  void end(int number) {
    if (pid_ <= 0) return;
    kill(pid_, number);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = 0;
  std::string address_;
};

TEST(ChildProcess, ServesUntilItIsKilled) {
  const char* address = std::getenv(kServeAt);
  const char* report = std::getenv(kReportTo);
  if (address == nullptr || report == nullptr) GTEST_SKIP() << "only as the process of other tests";
  SplitModel model({});
  auto worker = FfnWorker::create(model.worker_options(address), [&](const MoeRequest& request) {
    while (request.rows == kHangRows) pause();
    return model.block().run(request);
  });
  const std::string text = worker ? (*worker)->address() : "error: " + worker.error().message;
  const int fd = std::atoi(report);
  [[maybe_unused]] const ssize_t put = write(fd, text.data(), text.size());
  close(fd);
  alarm(60);  // if the test dies, so do we
  while (true) ::pause();
}

class FfnProcess : public testing::TestWithParam<std::string> {};

TEST_P(FfnProcess, KilledUnderLoadIsNamedAndTakenBack) {
  auto child = std::make_unique<Child>(fresh_address(GetParam()));
  const std::string address = child->address();
  SplitModel reference({});
  auto port = RemoteFfn::create(reference.remote_options(address));
  ASSERT_TRUE(port.has_value()) << port.error().message;
  const uint32_t first_incarnation = (*port)->peer().incarnation;
  Work before(reference, 1, 4, 1), hanging(reference, 1, kHangRows, 2), queued(reference, 2, 100, 3);
  ASSERT_TRUE(run_one(**port, before).has_value());
  EXPECT_TRUE(before.output_is_exact());
  ASSERT_TRUE((*port)->submit(hanging.request).has_value());
  ASSERT_TRUE((*port)->submit(queued.request).has_value());

  child->end(SIGKILL);
  for (const Completion& completion : wait_for(**port, 2)) {
    ASSERT_FALSE(completion.status.has_value());
    EXPECT_EQ(completion.status.error().code, ErrorCode::unavailable);
    EXPECT_NE(completion.status.error().message.find("FFN rank 0 at " + address + ": connection closed"),
              std::string::npos)
        << completion.status.error().message;
  }
  EXPECT_TRUE(hanging.output_is_untouched());
  EXPECT_FALSE((*port)->health().has_value());
  Work during(reference, 1, 4, 4);
  EXPECT_EQ(run_one(**port, during).error().code, ErrorCode::unavailable);

  child = std::make_unique<Child>(address);  // the same address, a new incarnation
  ASSERT_EQ(child->address(), address);
  ASSERT_TRUE(eventually([&] { return (*port)->health().has_value(); }));
  EXPECT_NE((*port)->peer().incarnation, first_incarnation);
  Work after(reference, 2, 70, 5);
  const Status status = run_one(**port, after);
  ASSERT_TRUE(status.has_value()) << status.error().message;
  EXPECT_TRUE(after.output_is_exact());
}

TEST_P(FfnProcess, StoppedWithoutAWordIsSilentAndTakenBackByANewHello) {
  Child child(fresh_address(GetParam()));
  SplitModel reference({});
  auto port = RemoteFfn::create(reference.remote_options(child.address()));
  ASSERT_TRUE(port.has_value()) << port.error().message;
  child.signal(SIGSTOP);
  Work work(reference, 1, 4, 1);
  const Status status = run_one(**port, work);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::unavailable);
  EXPECT_NE(status.error().message.find("silent"), std::string::npos) << status.error().message;
  EXPECT_TRUE(work.output_is_untouched());
  child.signal(SIGCONT);
  ASSERT_TRUE(eventually([&] { return (*port)->health().has_value(); }));
  ASSERT_TRUE(run_one(**port, work).has_value());
  EXPECT_TRUE(work.output_is_exact());
  EXPECT_GE((*port)->stats().connections, 2u);
}

std::vector<std::string> process_schemes() {
  std::vector<std::string> schemes = all_schemes();
  std::erase(schemes, "inproc");
  return schemes;
}
INSTANTIATE_TEST_SUITE_P(Transports, FfnProcess, testing::ValuesIn(process_schemes()),
                         [](const auto& param_info) { return param_info.param; });

// ---- slow, late, cancelled, stopped ----

TEST(Failure, ASlowFfnIsNotDead) {
  Held held("tcp");
  held.options.silence_limit = milliseconds(200);
  held.options.heartbeat_interval = milliseconds(40);
  auto worker = FfnWorker::create(held.options, held.gate.around(held.ffn.block()));
  ASSERT_TRUE(worker.has_value()) << worker.error().message;
  auto options = held.reference.remote_options((*worker)->address());
  options.silence_limit = milliseconds(200);
  options.heartbeat_interval = milliseconds(40);
  auto port = RemoteFfn::create(options);
  ASSERT_TRUE(port.has_value()) << port.error().message;
  held.gate.close();
  Work work(held.reference, 1, 4, 1);
  ASSERT_TRUE((*port)->submit(work.request).has_value());
  std::this_thread::sleep_for(milliseconds(700));  // well beyond the silence limit
  EXPECT_TRUE((*port)->health().has_value());
  held.gate.open();
  EXPECT_TRUE(wait_for(**port, 1).front().status.has_value());
  EXPECT_TRUE(work.output_is_exact());
  EXPECT_EQ((*port)->stats().connections, 1u);
}

TEST(Failure, ADeadlineEndsARequestAndItsLateReplyIsDropped) {
  Held held;
  held.start();
  held.gate.close();
  Work work(held.reference, 1, 4, 7);
  work.request.deadline = now() + milliseconds(30);
  const Status status = run_one(*held.port, work);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::deadline_exceeded);
  EXPECT_NE(status.error().message.find("layer 1, step 7"), std::string::npos) << status.error().message;
  held.gate.open();
  ASSERT_TRUE(eventually([&] { return held.port->stats().replies_dropped == 1; }));
  EXPECT_TRUE(work.output_is_untouched());
  work.request.deadline = Instant::max();
  ASSERT_TRUE(run_one(*held.port, work).has_value());  // the same step, layer and lane again
  EXPECT_TRUE(work.output_is_exact());
}

TEST(Failure, APeerThatLivesButNeverAnswersIsReported) {
  Held held;
  auto worker = FfnWorker::create(held.options, held.gate.around(held.ffn.block()));
  ASSERT_TRUE(worker.has_value()) << worker.error().message;
  auto options = held.reference.remote_options((*worker)->address());
  options.reply_limit = milliseconds(100);
  auto port = RemoteFfn::create(options);
  held.gate.close();
  Work work(held.reference, 1, 4, 7);
  EXPECT_EQ(run_one(**port, work).error().code, ErrorCode::deadline_exceeded);
  held.gate.open();
}

TEST(Failure, AfterCancelNothingIsWrittenAndNothingCompletes) {
  Held held;
  held.start();
  held.gate.close();
  Work computing(held.reference, 1, 4, 1), waiting(held.reference, 2, 200, 2), kept(held.reference, 2, 3, 3);
  const Ticket first = held.port->submit(computing.request).value();
  ASSERT_TRUE(eventually([&] { return held.gate.waiting() == 1; }));
  const Ticket second = held.port->submit(waiting.request).value();
  ASSERT_TRUE(held.port->submit(kept.request).has_value());
  ASSERT_TRUE(eventually([&] { return held.worker->clients().front().waiting_tiles == 5; }));
  held.port->cancel(first);
  held.port->cancel(second);
  held.port->cancel(second);     // twice is harmless
  held.port->cancel(123456789);  // so is a ticket that never was
  ASSERT_TRUE(eventually([&] { return held.worker->stats().tiles_cancelled == 4; }));
  held.gate.open();
  const auto finished = wait_for(*held.port, 1);
  EXPECT_TRUE(finished.front().status.has_value());
  EXPECT_TRUE(kept.output_is_exact());
  EXPECT_TRUE(computing.output_is_untouched());
  EXPECT_TRUE(waiting.output_is_untouched());
  EXPECT_EQ(held.port->stats().replies_dropped, 1u);
  Completion none[1];
  EXPECT_EQ(held.port->poll(none), 0u);
}

TEST(Failure, AFinishedRequestCanStillBeCancelled) {
  Held held;
  held.start();
  Work work(held.reference, 1, 4, 1);
  const Ticket ticket = held.port->submit(work.request).value();
  ASSERT_TRUE(eventually([&] { return held.port->stats().replies == 1; }));
  held.port->cancel(ticket);
  Completion none[1];
  EXPECT_EQ(held.port->poll(none), 0u);
  // A request without rows completes at once, and can be cancelled as well.
  work.request.rows = 0;
  const Ticket empty = held.port->submit(work.request).value();
  held.port->cancel(empty);
  EXPECT_EQ(held.port->poll(none), 0u);
}

TEST(Failure, TheQuotaOfAClientIsItsOwn) {
  Held held;
  held.options.quota.tiles = 2;
  held.start();
  auto other = RemoteFfn::create(held.reference.remote_options(held.worker->address()));
  held.gate.close();
  Work first(held.reference, 1, 4, 1), many(held.reference, 1, 64 * 5, 2), others(held.reference, 1, 4, 3);
  ASSERT_TRUE(held.port->submit(first.request).has_value());
  ASSERT_TRUE(eventually([&] { return held.gate.waiting() == 1; }));
  ASSERT_TRUE(held.port->submit(many.request).has_value());
  const auto refused = wait_for(*held.port, 1);
  ASSERT_FALSE(refused.front().status.has_value());
  EXPECT_EQ(refused.front().status.error().code, ErrorCode::resource_exhausted);
  EXPECT_NE(refused.front().status.error().message.find("2 tiles of this client"), std::string::npos);
  ASSERT_TRUE((*other)->submit(others.request).has_value());
  held.gate.open();
  EXPECT_TRUE(wait_for(**other, 1).front().status.has_value());
  EXPECT_TRUE(wait_for(*held.port, 1).front().status.has_value());
  EXPECT_TRUE(first.output_is_exact());
  EXPECT_TRUE(others.output_is_exact());
}

TEST(Failure, ConnectionsOfOneHostMayShareAQuota) {
  for (const ClientUnit unit : {ClientUnit::connection, ClientUnit::host}) {
    Held held("tcp");
    held.options.quota.rows = 100;
    held.options.client_unit = unit;
    held.start();
    auto other = RemoteFfn::create(held.reference.remote_options(held.worker->address()));
    ASSERT_TRUE(other.has_value()) << other.error().message;
    ASSERT_TRUE(eventually([&] { return held.worker->clients().size() == 2; }));
    held.gate.close();
    Work first(held.reference, 1, 4, 1), waits(held.reference, 1, 60, 2), more(held.reference, 2, 60, 3);
    ASSERT_TRUE(held.port->submit(first.request).has_value());
    ASSERT_TRUE(eventually([&] { return held.gate.waiting() == 1; }));
    ASSERT_TRUE(held.port->submit(waits.request).has_value());
    const auto waiting = [&] {
      uint32_t tiles = 0;
      for (const FfnClientReport& client : held.worker->clients()) tiles += client.waiting_tiles;
      return tiles;
    };
    ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
    ASSERT_TRUE((*other)->submit(more.request).has_value());
    ASSERT_TRUE(eventually([&] { return waiting() == 2 || held.worker->stats().tiles_over_quota == 1; }));
    held.gate.open();
    const Status answered = wait_for(**other, 1).front().status;
    EXPECT_EQ(answered.has_value(), unit == ClientUnit::connection);
    if (!answered) {
      EXPECT_EQ(answered.error().code, ErrorCode::resource_exhausted);
    }
    for (const Completion& completion : wait_for(*held.port, 2)) EXPECT_TRUE(completion.status.has_value());
  }
}

TEST(Failure, AClientThatLeavesFreesItsSession) {
  Held held;
  held.start();
  auto leaving = RemoteFfn::create(held.reference.remote_options(held.worker->address()));
  held.gate.close();
  Work first(held.reference, 1, 4, 1), waiting(held.reference, 1, 200, 2);
  ASSERT_TRUE((*leaving)->submit(first.request).has_value());
  ASSERT_TRUE(eventually([&] { return held.gate.waiting() == 1; }));
  ASSERT_TRUE((*leaving)->submit(waiting.request).has_value());
  ASSERT_TRUE(eventually([&] { return held.worker->stats().sessions_opened == 2; }));
  leaving->reset();
  ASSERT_TRUE(eventually([&] { return held.worker->clients().size() == 1; }));
  EXPECT_TRUE(first.output_is_untouched());
  held.gate.open();
  Work mine(held.reference, 2, 9, 3);
  ASSERT_TRUE(run_one(*held.port, mine).has_value());
  EXPECT_TRUE(mine.output_is_exact());
}

TEST(Failure, AStoppingWorkerAnswersWhatItHasAndTakesNothingNew) {
  Held held;
  held.start();
  held.gate.close();
  Work work(held.reference, 1, 64 * 12, 1);  // more tiles than credits: some are still to be sent
  ASSERT_TRUE(held.port->submit(work.request).has_value());
  ASSERT_TRUE(eventually([&] { return held.gate.waiting() == 1; }));
  std::thread stopping([&] { held.worker->stop(std::chrono::seconds(20)); });
  ASSERT_TRUE(eventually([&] { return !held.port->health().has_value(); }));
  Work late(held.reference, 1, 4, 2);
  const Status refused = run_one(*held.port, late);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("stopping"), std::string::npos) << refused.error().message;
  held.gate.open();
  const auto finished = wait_for(*held.port, 1);
  EXPECT_TRUE(finished.front().status.has_value()) << finished.front().status.error().message;
  EXPECT_TRUE(work.output_is_exact());
  stopping.join();
  // A new worker at the same address is taken without restarting this side.
  held.worker.reset();
  auto again = FfnWorker::create(held.options, held.ffn.block());
  ASSERT_TRUE(again.has_value()) << again.error().message;
  ASSERT_TRUE(eventually([&] { return held.port->health().has_value(); }));
  ASSERT_TRUE(run_one(*held.port, late).has_value());
  EXPECT_TRUE(late.output_is_exact());
}

TEST(Failure, AnErrorOfTheBlockReachesOnlyItsTile) {
  SplitModel ffn({}), reference({});
  Gate gate;
  auto worker = FfnWorker::create(ffn.worker_options(fresh_address("inproc")),
                                  [&](const MoeRequest& request) -> Status {
                                    const auto run = gate.around(ffn.block());
                                    if (request.rows == 5 || request.rows > 8)
                                      return make_error(ErrorCode::internal, "no such luck");
                                    return run(request);
                                  });
  auto port = RemoteFfn::create(reference.remote_options((*worker)->address()));
  gate.close();
  Work first(reference, 1, 1, 1), good(reference, 1, 6, 2), bad(reference, 1, 5, 3);
  ASSERT_TRUE((*port)->submit(first.request).has_value());
  ASSERT_TRUE(eventually([&] { return gate.waiting() == 1; }));
  const Ticket good_ticket = (*port)->submit(good.request).value();
  const Ticket bad_ticket = (*port)->submit(bad.request).value();
  ASSERT_TRUE(eventually([&] { return (*worker)->clients().front().waiting_tiles == 2; }));
  gate.open();  // the two are merged (11 rows), fail together, and are then run one by one
  for (const Completion& completion : wait_for(**port, 3)) {
    if (completion.ticket == good_ticket) {
      EXPECT_TRUE(completion.status.has_value());
    }
    if (completion.ticket == bad_ticket) {
      ASSERT_FALSE(completion.status.has_value());
      EXPECT_NE(completion.status.error().message.find("layer 1: no such luck"), std::string::npos);
    }
  }
  EXPECT_TRUE(good.output_is_exact());
  EXPECT_TRUE(bad.output_is_untouched());
  EXPECT_EQ((*worker)->stats().tiles_failed, 1u);
}

}  // namespace
}  // namespace tandem
