#include "attention/answer_form.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "grammar/grammar_expression.h"

namespace tandem {
namespace {

// A server sees few schemas at a time: those of its applications' tools and replies.
constexpr size_t kMaxGrammars = 64;
// What one may grow to before it is compiled afresh for the next request: a text in a schema adds kilobytes.
constexpr size_t kMaxGrammarBytes = size_t{64} << 20;

void allow(int32_t token, std::vector<uint64_t>& mask) {
  if (token < 0) return;
  const size_t word = static_cast<size_t>(token) / 64;
  if (word >= mask.size()) mask.resize(word + 1);
  mask[word] |= uint64_t{1} << (token % 64);
}

}  // namespace

AnswerForm::AnswerForm(std::shared_ptr<TokenGrammar> grammar, const GrammarSpec& spec)
    : grammar_(std::move(grammar)),
      state_(grammar_ == nullptr ? TokenGrammar::kDead : grammar_->start()),
      reasoning_begin_(spec.reasoning_begin),
      reasoning_end_(spec.reasoning_end),
      budget_(spec.reasoning_budget),
      stage_(spec.in_reasoning ? Stage::reasoning : Stage::start) {}

void AnswerForm::allowed(std::span<const int32_t> ends, std::vector<uint64_t>& mask) const {
  if (stage_ == Stage::reasoning) {  // its budget is used
    mask.clear();
    return allow(reasoning_end_, mask);
  }
  if (state_ == TokenGrammar::kDead) return mask.assign(grammar_->mask_words(), 0);
  mask.resize(grammar_->mask_words());
  grammar_->allowed(state_, mask);
  if (stage_ == Stage::start) allow(reasoning_begin_, mask);
  if (!grammar_->can_end(state_)) return;
  for (const int32_t token : ends) allow(token, mask);
}

void AnswerForm::advance(int32_t token) {
  if (stage_ == Stage::reasoning) {
    if (token == reasoning_end_) {
      stage_ = Stage::text;
    } else if (budget_ > 0 && budget_ != UINT32_MAX) {
      --budget_;
    }
    return;
  }
  if (stage_ == Stage::start && token == reasoning_begin_ && token >= 0) {
    stage_ = Stage::reasoning;
    if (grammar_ != nullptr) state_ = grammar_->start();  // breaks before it were none of the form's
    return;
  }
  // Without a form reasoning has its budget wherever it begins.
  if (grammar_ == nullptr) return;
  // GLM-4.5 breaks the line before it begins to reason.
  if (stage_ != Stage::start || reasoning_begin_ < 0 || !grammar_->is_line_breaks(token))
    stage_ = Stage::text;
  state_ = grammar_->advance(state_, token);
}

Result<AnswerForm> GrammarCache::form(const GrammarSpec& spec) {
  if (spec.empty()) return spec.has_budget() ? AnswerForm(nullptr, spec) : AnswerForm();
  std::unique_lock lock(mutex_);
  if (vocabulary_ == nullptr) {
    if (!load_) {
      return make_error(ErrorCode::unsupported,
                        "an answer in a given form needs the model's tokenizer.json, and there is none here");
    }
    TANDEM_ASSIGN(vocabulary_, load_());
  }
  const auto known = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.spec.kind == spec.kind && entry.spec.text == spec.text;
  });
  if (known != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, known);
    if (known->grammar->memory_bytes() <= kMaxGrammarBytes) return AnswerForm(known->grammar, spec);
    entries_.pop_front();  // answers that are under way keep theirs
  }
  // A large one takes seconds, in which others need not wait. Two that ask for it at once both compile it.
  const auto vocabulary = vocabulary_;
  lock.unlock();
  TANDEM_ASSIGN(const GrammarRules rules, grammar_rules(spec));
  TANDEM_ASSIGN(std::shared_ptr<TokenGrammar> grammar, TokenGrammar::compile(rules, vocabulary));
  lock.lock();
  entries_.push_front({spec, grammar});
  if (entries_.size() > kMaxGrammars) entries_.pop_back();
  return AnswerForm(std::move(grammar), spec);
}

}  // namespace tandem
