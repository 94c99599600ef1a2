#include "serving/text_generation.h"

#include <algorithm>
#include <utility>

#include "serving/stop_checker.h"

namespace tandem {

namespace {
size_t characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}
}  // namespace

// Delivery thread only.
struct TextGeneration::Answer {
  Answer(const Tokenizer& tokenizer, const TextRequest& request) : decoder(tokenizer), stops(request.stops) {}

  IncrementalDecoder decoder;
  StopChecker stops;
  size_t decoded_bytes = 0, decoded_characters = 0;  // what the decoder has given
  size_t released_bytes = 0;                         // what the listener has got
  struct Waiting {
    AnswerToken token;
    size_t start;  // decoded_bytes before it
  };
  std::vector<Waiting> waiting;  // described, and their text is still held back
  uint32_t tokens = 0;           // counted up to the one that completed a stop string
  bool stopped = false;          // by a stop string
  bool ended = false;
  Instant last_token;
};

// What the engine's thread calls: stamps and hands on.
class TextGeneration::Sink : public GenerationSink {
 public:
  Sink(std::shared_ptr<TextGeneration> generation, uint32_t answer)
      : generation_(std::move(generation)), answer_(answer) {}

  void on_token(const TokenEvent& event) override {
    generation_->use_.delivery->post([generation = generation_, answer = answer_, event, at = now()] {
      generation->deliver_token(answer, event, at);
    });
  }

  void on_prompt_token(const TokenEvent& event) override {
    generation_->use_.delivery->post([generation = generation_, answer = answer_, event] {
      generation->deliver_prompt_token(answer, event);
    });
  }

  void on_finish(const Finish& finish) override {
    {
      const std::lock_guard lock(generation_->mutex_);
      generation_->engine_side_[answer_].ended = true;
    }
    generation_->use_.delivery->post([generation = generation_, answer = answer_, finish, at = now()] {
      generation->deliver_finish(answer, finish, at);
    });
  }

 private:
  std::shared_ptr<TextGeneration> generation_;
  uint32_t answer_;
};

TextGeneration::TextGeneration(Surroundings surroundings, TextRequest request,
                               std::shared_ptr<AnswerListener> listener)
    : use_(std::move(surroundings)), request_(std::move(request)), listener_(std::move(listener)) {
  const size_t count = request_.prompts.size() * request_.n;
  for (size_t i = 0; i < count; ++i) answers_.push_back(std::make_unique<Answer>(*use_.tokenizer, request_));
  engine_side_.resize(count);
  prompts_.resize(request_.prompts.size());
  for (size_t i = 0; i < request_.echo.size(); ++i) prompts_[i].characters = characters(request_.echo[i]);
}

TextGeneration::~TextGeneration() = default;

std::shared_ptr<TextGeneration> TextGeneration::create(Surroundings surroundings, TextRequest request,
                                                       std::shared_ptr<AnswerListener> listener) {
  return std::shared_ptr<TextGeneration>(
      new TextGeneration(std::move(surroundings), std::move(request), std::move(listener)));
}

void TextGeneration::submit() {
  const bool one_by_one = request_.sampling.prompt_logprobs >= 0;
  for (uint32_t index = 0; index < answers_.size(); index += one_by_one ? request_.n : 1) {
    if (!submit_answer(index)) return;
  }
}

bool TextGeneration::submit_answer(uint32_t index) {
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_) return false;
  }
  GenerationRequest request;
  request.id = answers_.size() == 1 ? request_.id : request_.id + "/" + std::to_string(index);
  request.prompt = request_.prompts[index / request_.n];
  request.sampling = request_.sampling;
  request.sampling.stream = index % request_.n;
  if (!scores_prompt(index)) request.sampling.prompt_logprobs = -1;
  request.priority = request_.priority;
  request.cache_salt = request_.cache_salt;
  request.deadline = request_.deadline;
  request.queue_deadline = request_.queue_deadline;
  // What the context has room for; a prompt that leaves none is the engine's to refuse.
  const uint32_t context = use_.engine->limits().max_context_tokens;
  const auto room =
      context > request.prompt.size() ? context - static_cast<uint32_t>(request.prompt.size()) : 1;
  request.sampling.max_tokens = std::min(request.sampling.max_tokens, room);
  request.sampling.min_tokens = std::min(request.sampling.min_tokens, room);
  const auto id = use_.engine->submit(std::move(request), std::make_shared<Sink>(shared_from_this(), index));
  if (!id) {
    use_.delivery->post([self = shared_from_this(), error = id.error()] { self->fail(error); });
    return false;
  }
  bool cancel_now;
  {
    const std::lock_guard lock(mutex_);
    EngineSide& side = engine_side_[index];
    side.id = *id;
    side.submitted = true;
    cancel_now = (cancelled_ || side.cancel_wanted) && !side.ended;
  }
  if (cancel_now) use_.engine->cancel(*id);
  return true;
}

void TextGeneration::deliver_prompt_token(uint32_t index, TokenEvent event) {
  if (listener_) prompts_[index / request_.n].scores.push_back(std::move(event));
}

void TextGeneration::end_prompt(uint32_t prompt) {
  if (std::exchange(prompts_[prompt].ended, true)) return;
  if (listener_) listener_->on_prompt(prompt, describe_prompt(prompt));
  for (uint32_t i = 1; i < request_.n; ++i) {
    if (!submit_answer(prompt * request_.n + i)) return;
  }
}

std::vector<AnswerToken> TextGeneration::describe_prompt(uint32_t prompt) {
  const std::vector<int32_t>& ids = request_.prompts[prompt];
  std::vector<AnswerToken> tokens(ids.size());
  for (const TokenEvent& score : std::exchange(prompts_[prompt].scores, {}))
    tokens[score.index] = describe(score, 0);
  tokens[0] = describe({.token = ids[0], .top_logprobs = {}}, 0);
  tokens[0].is_first = true;

  IncrementalDecoder decoder(*use_.tokenizer);
  std::vector<size_t> widths;
  size_t total = 0;
  for (const int32_t id : ids) {
    widths.push_back(characters(decoder.push(id).value_or("")));
    total += widths.back();
  }
  // Control tokens that the tokenizer put around the text are not in it.
  const size_t echoed = request_.echo.empty() ? total : prompts_[prompt].characters;
  const auto drop = [&](size_t i) {
    if (total <= echoed || !use_.tokenizer->is_special(ids[i])) return false;
    total -= std::exchange(widths[i], 0);
    return true;
  };
  for (size_t i = 0; i < ids.size() && drop(i); ++i) continue;
  for (size_t i = ids.size(); i > 0 && drop(i - 1); --i) continue;
  size_t offset = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    tokens[i].text_offset = std::min(offset, echoed);
    offset += widths[i];
  }
  return tokens;
}

void TextGeneration::cancel_all() {
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_) return;
    cancelled_ = true;
    for (const EngineSide& side : engine_side_) {
      if (side.submitted && !side.ended && !side.cancel_wanted) ids.push_back(side.id);
    }
  }
  for (const RequestId id : ids) use_.engine->cancel(id);
}

void TextGeneration::cancel() {
  cancel_all();
  use_.delivery->post([self = shared_from_this()] { self->listener_.reset(); });
}

void TextGeneration::cancel_engine_request(uint32_t answer) {
  RequestId id;
  {
    const std::lock_guard lock(mutex_);
    EngineSide& side = engine_side_[answer];
    if (side.cancel_wanted || side.ended || cancelled_) return;
    side.cancel_wanted = true;
    if (!side.submitted) return;  // submit() sees the wish when it knows the id
    id = side.id;
  }
  use_.engine->cancel(id);
}

bool TextGeneration::ends_text(int32_t token) const {
  const auto has = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return (!request_.sampling.ignore_eos && has(request_.eos_token_ids)) ||
         has(request_.sampling.stop_token_ids);
}

bool TextGeneration::has_text(int32_t token) const {
  if (!request_.skip_special_tokens || !use_.tokenizer->is_special(token)) return true;
  const auto& kept = request_.kept_tokens;
  return std::find(kept.begin(), kept.end(), token) != kept.end();
}

AnswerToken TextGeneration::describe(const TokenEvent& event, size_t text_offset) const {
  AnswerToken token{.id = event.token,
                    .bytes = use_.tokenizer->token_bytes(event.token).value_or(""),
                    .logprob = event.logprob,
                    .rank = event.rank,
                    .text_offset = text_offset,
                    .top = {}};
  for (const TokenLogprob& other : event.top_logprobs) {
    token.top.push_back({other.token, use_.tokenizer->token_bytes(other.token).value_or(""), other.logprob});
  }
  return token;
}

void TextGeneration::deliver_token(uint32_t index, const TokenEvent& event, Instant at) {
  Answer& answer = *answers_[index];
  if (scores_prompt(index)) end_prompt(index / request_.n);
  if (answer.tokens == 0) {
    use_.metrics->observe_first_token(seconds_since(request_.received, at));
  } else {
    use_.metrics->observe_inter_token(seconds_since(answer.last_token, at));
  }
  answer.last_token = at;
  if (answer.stopped || answer.ended) return;  // the engine had begun it before the cancel arrived
  ++answer.tokens;
  if (!listener_ || ends_text(event.token)) return;

  if (request_.sampling.top_logprobs >= 0) {
    const size_t offset = prompts_[index / request_.n].characters + answer.decoded_characters;
    answer.waiting.push_back({describe(event, offset), answer.decoded_bytes});
  }
  auto text = has_text(event.token) ? answer.decoder.push(event.token) : Result<std::string>();
  if (!text) {
    // An id of the padded vocabulary: the model chose what has no text.
    cancel_engine_request(index);
    return fail(text.error());
  }
  answer.decoded_bytes += text->size();
  answer.decoded_characters += characters(*text);
  std::string out;
  if (event.index + 1 < request_.sampling.min_tokens) {
    out = std::move(*text);  // a stop string counts only if all of it comes after min_tokens
  } else if (answer.stops.push(*text, out)) {
    answer.stopped = true;
    cancel_engine_request(index);
  }
  release(index, std::move(out), false);
}

// Sends text and the tokens that begin in what has been sent; at the end of an answer that no stop string has
// cut, all.
void TextGeneration::release(uint32_t index, std::string text, bool at_end) {
  Answer& answer = *answers_[index];
  answer.released_bytes += text.size();
  AnswerPiece piece{.text = std::move(text), .tokens = {}, .generated = answer.tokens};
  size_t count = 0;
  while (count < answer.waiting.size() && (at_end || answer.waiting[count].start < answer.released_bytes)) {
    piece.tokens.push_back(std::move(answer.waiting[count].token));
    ++count;
  }
  answer.waiting.erase(answer.waiting.begin(), answer.waiting.begin() + static_cast<std::ptrdiff_t>(count));
  if (piece.text.empty() && piece.tokens.empty()) return;
  listener_->on_piece(index, std::move(piece));
}

void TextGeneration::deliver_finish(uint32_t index, const Finish& finish, Instant at) {
  Answer& answer = *answers_[index];
  if (answer.ended) return;
  answer.ended = true;
  use_.metrics->observe_answer(seconds_since(request_.received, at), finish.prompt_tokens, answer.tokens);
  if (!listener_) return;
  if (!answer.stopped) {
    if (finish.reason == FinishReason::error) return fail(finish.error);
    if (finish.reason == FinishReason::cancelled) {
      return fail({ErrorCode::unavailable, "the request was cancelled: the server is stopping"});
    }
    if (scores_prompt(index)) end_prompt(index / request_.n);
    if (!listener_) return;
    std::string tail = answer.decoder.flush(), out;
    answer.decoded_bytes += tail.size();
    answer.stopped = answer.stops.push(tail, out);
    answer.stops.finish(out);
    release(index, std::move(out), !answer.stopped);
  }
  const bool by_length = !answer.stopped && finish.reason == FinishReason::length;
  listener_->on_end(index, by_length ? AnswerEnd::length : AnswerEnd::stop,
                    {finish.prompt_tokens, finish.cached_tokens, answer.tokens, answer.stops.found()});
  if (++ended_answers_ == answers_.size()) std::exchange(listener_, nullptr)->on_complete();
}

void TextGeneration::fail(const Error& error) {
  cancel_all();
  if (const auto listener = std::exchange(listener_, nullptr)) listener->on_error(error);
}

}  // namespace tandem
