// TextGeneration: one request's way through the engine: token ids go in, pieces of text come out, cut at stop
// strings and never inside a character. It knows no HTTP and no JSON. `submit` and `cancel` may be called by
// any thread; the listener is called on the delivery pool, which has one thread, so its calls never overlap.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "attention/engine.h"
#include "serving/serving_metrics.h"
#include "serving/worker_pool.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

struct TextRequest {
  std::string id;
  std::vector<std::vector<int32_t>> prompts;
  // [prompts], or empty: the texts that answers begin with, where offsets into answers count from.
  std::vector<std::string> echo;
  uint32_t n = 1;           // answers of each prompt: answer p·n + j is the j-th of prompt p
  SamplingParams sampling;  // `stream` is set here: j
  int32_t priority = 0;
  std::string cache_salt;                                              // GenerationRequest::cache_salt
  Instant deadline = Instant::max(), queue_deadline = Instant::max();  // of each answer
  std::vector<std::string> stops;
  std::vector<int32_t> eos_token_ids;  // their text is not part of an answer
  bool skip_special_tokens = true;
  std::vector<int32_t> kept_tokens;  // that are text even if special: what the answer's parser reads
  Instant received;                  // the latencies count from here
};

struct AnswerToken {
  int32_t id = 0;
  std::string bytes;      // what the token stands for, not always whole characters
  bool is_first = false;  // of a prompt: nothing is said of it
  float logprob = 0;
  uint32_t rank = 0;       // 1: the best
  size_t text_offset = 0;  // in characters from the start of the answer, or of what is echoed before it
  struct Choice {
    int32_t id = 0;
    std::string bytes;
    float logprob = 0;
  };
  std::vector<Choice> top;  // best first
};

struct AnswerPiece {
  std::string text;  // whole characters
  std::vector<AnswerToken>
      tokens;              // whose text begins in what has been released; only if logprobs were asked for
  uint32_t generated = 0;  // tokens of the answer so far
};

enum class AnswerEnd : uint8_t { stop, length };

// What is known of an answer when it has ended.
struct AnswerUsage {
  uint32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::string stop_string = {};  // that ended it; "" for none
};

// For each answer: pieces, then one end. With SamplingParams::prompt_logprobs all tokens of each prompt come
// before the pieces of its answers. on_complete or on_error is the last call of all.
class AnswerListener {
 public:
  virtual ~AnswerListener() = default;
  virtual void on_prompt(uint32_t /*prompt*/, std::vector<AnswerToken> /*tokens*/) {}
  virtual void on_piece(uint32_t answer, AnswerPiece piece) = 0;
  virtual void on_end(uint32_t answer, AnswerEnd end, const AnswerUsage& usage) = 0;
  virtual void on_complete() = 0;
  virtual void on_error(const Error& error) = 0;
};

class TextGeneration : public std::enable_shared_from_this<TextGeneration> {
 public:
  // What every generation of a server uses. `delivery` has one thread; the engine outlives the pool's stop().
  struct Surroundings {
    Engine* engine = nullptr;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::shared_ptr<WorkerPool> delivery;
    std::shared_ptr<ServingMetrics> metrics;
  };
  static std::shared_ptr<TextGeneration> create(Surroundings surroundings, TextRequest request,
                                                std::shared_ptr<AnswerListener> listener);
  ~TextGeneration();

  // Once. An answer that the engine refuses ends the whole request: on_error, and nothing stays in the
  // engine. With prompt_logprobs a prompt's first answer computes it for all, and the others are submitted
  // when it has.
  void submit();
  // The client has left: everything stops, and the listener is not called any more (but for what is under
  // way).
  void cancel();

 private:
  struct Answer;
  class Sink;

  TextGeneration(Surroundings surroundings, TextRequest request, std::shared_ptr<AnswerListener> listener);

  // False: the request has ended with an error, or the client has left.
  bool submit_answer(uint32_t index);
  bool scores_prompt(uint32_t answer) const {
    return request_.sampling.prompt_logprobs >= 0 && answer % request_.n == 0;
  }
  void deliver_prompt_token(uint32_t answer, TokenEvent event);
  // Once, when the first answer of a prompt goes on: its tokens are known, the other answers begin.
  void end_prompt(uint32_t prompt);
  std::vector<AnswerToken> describe_prompt(uint32_t prompt);
  void deliver_token(uint32_t answer, const TokenEvent& event, Instant at);
  void deliver_finish(uint32_t answer, const Finish& finish, Instant at);
  void release(uint32_t index, std::string text, bool at_end);
  AnswerToken describe(const TokenEvent& event, size_t text_offset) const;
  bool ends_text(int32_t token) const;
  bool has_text(int32_t token) const;
  void fail(const Error& error);
  void cancel_engine_request(uint32_t answer);
  void cancel_all();

  const Surroundings use_;
  TextRequest request_;
  std::shared_ptr<AnswerListener> listener_;  // delivery thread; null once it has had its last call
  std::vector<std::unique_ptr<Answer>> answers_;
  // Delivery thread.
  struct Prompt {
    std::vector<TokenEvent> scores;
    bool ended = false;
    size_t characters = 0;  // of what is echoed
  };
  std::vector<Prompt> prompts_;
  uint32_t ended_answers_ = 0;  // delivery thread

  std::mutex mutex_;  // for what follows
  struct EngineSide {
    RequestId id = 0;
    bool submitted = false, ended = false, cancel_wanted = false;
  };
  std::vector<EngineSide> engine_side_;
  bool cancelled_ = false;
};

}  // namespace tandem
