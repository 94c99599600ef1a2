#include "serving/text_generation.h"

#include <gtest/gtest.h>

#include <future>

#include "serving/scripted_engine.h"
#include "serving/test_tokenizer.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

// Collects what a client would get. Calls come on one thread; the test reads after `done`.
struct Collector : AnswerListener {
  struct One {
    std::string text;
    std::vector<std::string> pieces;
    std::vector<AnswerToken> tokens;
    std::optional<AnswerEnd> end;
    AnswerUsage usage;
  };
  explicit Collector(size_t count) : answers(count) {}

  void on_piece(uint32_t answer, AnswerPiece piece) override {
    EXPECT_FALSE(answers[answer].end) << "a piece after the end";
    answers[answer].text += piece.text;
    answers[answer].pieces.push_back(piece.text);
    for (auto& token : piece.tokens) answers[answer].tokens.push_back(std::move(token));
  }
  void on_end(uint32_t answer, AnswerEnd end, const AnswerUsage& usage) override {
    EXPECT_FALSE(answers[answer].end) << "two ends";
    answers[answer].end = end;
    answers[answer].usage = usage;
  }
  void on_complete() override { done.set_value(std::nullopt); }
  void on_error(const Error& error) override { done.set_value(error); }

  std::vector<One> answers;
  std::promise<std::optional<Error>> done;
};

class TextGenerationTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(tokenizer_); }
  void TearDown() override {
    engine_.reset();
    delivery_->stop();
  }

  void make_engine(const std::string& output, ScriptedEngineOptions options = {}) {
    options.eos_token_ids = {kEosId};
    if (!options.script) options.script = [output](const GenerationRequest&) { return byte_ids(output); };
    engine_ = std::make_unique<ScriptedEngine>(std::move(options));
  }

  std::shared_ptr<TextGeneration> create(TextRequest request, std::shared_ptr<Collector> collector) {
    if (request.prompts.empty()) request.prompts = {{1, 2, 3}};
    request.eos_token_ids = {kEosId};
    request.received = now();
    return TextGeneration::create({engine_.get(), tokenizer_, delivery_, metrics_}, std::move(request),
                                  std::move(collector));
  }

  std::shared_ptr<Collector> run(TextRequest request, std::optional<Error>* error = nullptr) {
    const size_t count = std::max<size_t>(1, request.prompts.size()) * request.n;
    auto collector = std::make_shared<Collector>(count);
    create(std::move(request), collector)->submit();
    auto future = collector->done.get_future();
    if (future.wait_for(30s) != std::future_status::ready) {
      ADD_FAILURE() << "the generation did not end";
      return collector;
    }
    const auto result = future.get();
    if (error != nullptr) *error = result;
    EXPECT_TRUE(error != nullptr || !result) << result->message;
    return collector;
  }

  static TextRequest with(std::vector<std::string> stops, uint32_t max_tokens = 100) {
    TextRequest request;
    request.stops = std::move(stops);
    request.sampling.max_tokens = max_tokens;
    return request;
  }

  std::shared_ptr<const Tokenizer> tokenizer_ = load_test_tokenizer();
  std::shared_ptr<WorkerPool> delivery_ = std::make_shared<WorkerPool>(1, SIZE_MAX, "deliver");
  std::shared_ptr<ServingMetrics> metrics_ = std::make_shared<ServingMetrics>();
  std::unique_ptr<ScriptedEngine> engine_;
};

TEST_F(TextGenerationTest, EndsByStopAndByLength) {
  make_engine("hello");
  auto got = run(with({}));
  EXPECT_EQ(got->answers[0].text, "hello");
  EXPECT_EQ(got->answers[0].end, AnswerEnd::stop);
  EXPECT_EQ(got->answers[0].usage.prompt_tokens, 3u);
  EXPECT_EQ(got->answers[0].usage.completion_tokens, 6u);  // with the end token
  got = run(with({}, 3));
  EXPECT_EQ(got->answers[0].text, "hel");
  EXPECT_EQ(got->answers[0].end, AnswerEnd::length);
  EXPECT_EQ(engine_->cancels() + engine_->late_cancels(), 0);  // a normal end is no abort
}

TEST_F(TextGenerationTest, StopStringsCutWhereverTokensEnd) {
  for (const auto& script :
       {byte_ids("ABCDEFGHIJ"), std::vector<int32_t>{256, 257, 'E', 'F', 'G', 'H', 'I', 'J'}}) {
    make_engine("", {.script = [script](const GenerationRequest&) { return script; }});
    auto got = run(with({"DEFGHIJ"}));
    EXPECT_EQ(got->answers[0].text, "ABC");
    EXPECT_EQ(got->answers[0].end, AnswerEnd::stop);
    EXPECT_EQ(got->answers[0].usage.completion_tokens, script.size());
    EXPECT_EQ(run(with({"CDX", "EF"}))->answers[0].text, "ABCD");
    EXPECT_EQ(run(with({"JK"}))->answers[0].text, "ABCDEFGHIJ");
    EXPECT_TRUE(engine_->wait_idle());
  }
}

TEST_F(TextGenerationTest, LogprobsAreCutWhereTheTextIs) {
  make_engine("ABCDEFGHIJ");
  TextRequest request = with({"DEFGHIJ"});
  request.sampling.top_logprobs = 2;
  auto got = run(request);
  ASSERT_EQ(got->answers[0].tokens.size(), 3u);
  EXPECT_EQ(got->answers[0].tokens[2].bytes, "C");
  EXPECT_EQ(got->answers[0].tokens[2].text_offset, 2u);
  EXPECT_EQ(got->answers[0].tokens[2].top.size(), 2u);
  // A token across the cut begins in the answer, so it is there: its text is not.
  make_engine("", {.script = [](const GenerationRequest&) { return std::vector<int32_t>{256, 257, 'E'}; }});
  got = run([&] {
    TextRequest r = with({"DE"});
    r.sampling.top_logprobs = 0;
    return r;
  }());
  EXPECT_EQ(got->answers[0].text, "ABC");
  ASSERT_EQ(got->answers[0].tokens.size(), 2u);
  EXPECT_EQ(got->answers[0].tokens[1].bytes, "CD");
  // Without a stop, all but the end token.
  make_engine("AB");
  request.stops.clear();
  EXPECT_EQ(run(request)->answers[0].tokens.size(), 2u);
}

TEST_F(TextGenerationTest, CharactersComeWhole) {
  const std::string text = "삼겹살 👨‍👩‍👧‍👦 é";
  make_engine(text);
  auto got = run(with({}));
  EXPECT_EQ(got->answers[0].text, text);
  for (const std::string& piece : got->answers[0].pieces) EXPECT_EQ(piece.find("\ufffd"), std::string::npos);
  // max_tokens inside a character: what never became one is replaced, once, at the end.
  got = run(with({}, 4));
  EXPECT_EQ(got->answers[0].text, "삼\ufffd");
  EXPECT_EQ(got->answers[0].end, AnswerEnd::length);
  // A stop string of several bytes, cut by tokens inside a character.
  EXPECT_EQ(run(with({"겹"}))->answers[0].text, "삼");
  // Bytes that can never become a character: E2 82 then A.
  make_engine("", {.script = [](const GenerationRequest&) { return std::vector<int32_t>{0xe2, 0x82, 'A'}; }});
  const std::vector<int32_t> ids{0xe2, 0x82, 'A'};
  EXPECT_EQ(run(with({}))->answers[0].text, *tokenizer_->decode(ids));
}

TEST_F(TextGenerationTest, EachAnswerHasItsStreamOfTheSeed) {
  make_engine(
      "", {.script = [](const GenerationRequest& request) {
        return byte_ids(std::to_string(request.prompt[0]) + ":" + std::to_string(request.sampling.stream));
      }});
  TextRequest request = with({});
  request.prompts = {{7}, {8}};
  request.n = 3;
  request.sampling.seed = 5;
  const auto got = run(request);
  ASSERT_EQ(got->answers.size(), 6u);
  const char* want[] = {"7:0", "7:1", "7:2", "8:0", "8:1", "8:2"};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(got->answers[i].text, want[i]);
  for (const GenerationRequest& each : engine_->requests()) EXPECT_EQ(each.sampling.seed, 5u);
}

TEST_F(TextGenerationTest, MaxTokensIsCutToTheContext) {
  make_engine(std::string(500, 'x'));
  TextRequest request = with({}, 2147483647);
  request.prompts = {std::vector<int32_t>(100, 'p')};
  const auto got = run(request);
  EXPECT_EQ(got->answers[0].text.size(), 28u);  // of 128
  EXPECT_EQ(got->answers[0].end, AnswerEnd::length);
  EXPECT_EQ(engine_->requests()[0].sampling.max_tokens, 28u);
}

TEST_F(TextGenerationTest, StopTokensEndWithoutTheirText) {
  make_engine("abc;def");
  TextRequest request = with({});
  request.sampling.stop_token_ids = {';'};
  EXPECT_EQ(run(request)->answers[0].text, "abc");
  request.sampling.stop_token_ids.clear();
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = 10;
  request.skip_special_tokens = false;
  EXPECT_EQ(run(request)->answers[0].text, "abc;def</s></s></s>");
  request.skip_special_tokens = true;
  EXPECT_EQ(run(request)->answers[0].text, "abc;def");
}

TEST_F(TextGenerationTest, AStopStringBeforeMinTokensDoesNotCount) {
  make_engine("a.b.c");
  TextRequest request = with({"."});
  request.sampling.min_tokens = 3;
  EXPECT_EQ(run(request)->answers[0].text, "a.b");
}

TEST_F(TextGenerationTest, ARefusedAnswerEndsTheRequestAndLeavesNothing) {
  make_engine("x", {.limits = {.max_context_tokens = 128,
                               .kv_pool_tokens = 1024,
                               .vocab_size = 300,
                               .max_num_seqs = 1,
                               .max_queue = 2},
                    .free_running = false});
  TextRequest request = with({});
  request.n = 4;
  auto collector = std::make_shared<Collector>(4);
  create(request, collector)->submit();
  auto future = collector->done.get_future();
  ASSERT_EQ(future.wait_for(30s), std::future_status::ready);
  const auto error = future.get();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::resource_exhausted);
  engine_->step(2);
  EXPECT_TRUE(engine_->wait_idle());
  EXPECT_EQ(engine_->stats().cancelled, 2u);
}

TEST_F(TextGenerationTest, CancelFreesInEveryState) {
  make_engine("abcdef", {.limits = {.max_context_tokens = 128,
                                    .kv_pool_tokens = 1024,
                                    .vocab_size = 300,
                                    .max_num_seqs = 1,
                                    .max_queue = 8},
                         .free_running = false});
  auto never = std::make_shared<Collector>(1);
  create(with({}), never)->cancel();  // before submit
  {
    auto generation = create(with({}), std::make_shared<Collector>(1));
    generation->cancel();
    generation->submit();
    EXPECT_TRUE(engine_->requests().empty());
  }
  auto first = create(with({}), std::make_shared<Collector>(1)),
       second = create(with({}), std::make_shared<Collector>(1));
  first->submit();
  second->submit();
  engine_->step(2);
  EXPECT_EQ(engine_->stats().running, 1u);
  EXPECT_EQ(engine_->stats().waiting, 1u);
  second->cancel();  // in the queue
  second->cancel();  // twice is once
  first->cancel();   // in the batch
  engine_->step(1);
  EXPECT_TRUE(engine_->wait_idle());
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0u);
  EXPECT_EQ(engine_->stats().cancelled, 2u);
  EXPECT_EQ(engine_->cancels(), 2);
  // After the end: nobody's business.
  auto collector = std::make_shared<Collector>(1);
  auto third = create(with({}), collector);
  third->submit();
  engine_->step(7);
  EXPECT_FALSE(collector->done.get_future().get());
  third->cancel();
  EXPECT_EQ(engine_->cancels(), 2);
  EXPECT_EQ(engine_->late_cancels(), 0);
}

TEST_F(TextGenerationTest, ALostPeerEndsEveryAnswerOnce) {
  make_engine("abcdef", {.free_running = false});
  TextRequest request = with({});
  request.n = 3;
  auto collector = std::make_shared<Collector>(3);
  create(request, collector)->submit();
  engine_->step(2);
  engine_->lose_peer({ErrorCode::unavailable, "ffn0 at 10.0.0.2:7000 is gone"});
  auto future = collector->done.get_future();
  ASSERT_EQ(future.wait_for(30s), std::future_status::ready);
  EXPECT_EQ(future.get()->message, "ffn0 at 10.0.0.2:7000 is gone");
  EXPECT_EQ(collector->answers[0].text, "ab");
  std::optional<Error> error;
  run(with({}), &error);  // refused at once while it is gone
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::unavailable);
}

TEST_F(TextGenerationTest, AnEngineThatStopsIsAnError) {
  make_engine("abcdef", {.free_running = false});
  auto collector = std::make_shared<Collector>(1);
  create(with({}), collector)->submit();
  engine_->step(1);
  engine_.reset();
  const auto error = collector->done.get_future().get();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::unavailable);
}

TEST_F(TextGenerationTest, LatenciesAreCounted) {
  make_engine("abcd");
  run(with({}));
  const std::string text = metrics_->text(engine_.get());
  EXPECT_NE(text.find("tandem_time_to_first_token_seconds_count 1\n"), std::string::npos);
  EXPECT_NE(text.find("tandem_inter_token_seconds_count 4\n"), std::string::npos);
  EXPECT_NE(text.find("tandem_answer_seconds_count 1\n"), std::string::npos);
  EXPECT_NE(text.find("tandem_completion_tokens_total 5\n"), std::string::npos);
  EXPECT_NE(text.find("tandem_kv_blocks_used 0\n"), std::string::npos);
}

}  // namespace
}  // namespace tandem
