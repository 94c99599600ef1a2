// AnswerForm: the grammar of one answer, how much it may reason before, and where it stands in both. A value:
// a copy can try tokens that are not sure yet (drafts). One thread at a time.
//
// GrammarCache: grammars that requests have asked for, compiled. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "grammar/grammar_spec.h"
#include "grammar/token_grammar.h"

namespace tandem {

class AnswerForm {
 public:
  AnswerForm() = default;  // everything is allowed
  // `grammar`: null for none.
  AnswerForm(std::shared_ptr<TokenGrammar> grammar, const GrammarSpec& spec);

  // Whether any token may come next: there is no grammar, or reasoning comes before it and has budget left.
  bool is_free() const {
    return stage_ == Stage::reasoning ? budget_ > 0 || reasoning_end_ < 0 : grammar_ == nullptr;
  }
  // The tokens that may come next, as TokenBans::allowed; `ends` are among them where the text may end. Only
  // when not free.
  void allowed(std::span<const int32_t> ends, std::vector<uint64_t>& mask) const;
  // A token has been chosen that does not end the answer.
  void advance(int32_t token);
  // The text is complete and nothing can follow it.
  bool must_end() const {
    return stage_ != Stage::reasoning && grammar_ != nullptr && grammar_->must_end(state_);
  }

 private:
  enum class Stage : uint8_t { start, reasoning, text };

  std::shared_ptr<TokenGrammar> grammar_;
  TokenGrammar::State state_ = TokenGrammar::kDead;
  int32_t reasoning_begin_ = -1, reasoning_end_ = -1;
  uint32_t budget_ = UINT32_MAX;  // tokens of reasoning that are left
  Stage stage_ = Stage::start;
};

class GrammarCache {
 public:
  using LoadVocabulary = std::function<Result<std::shared_ptr<const TokenTrie>>()>;

  // `load` is called once, by the first request with a grammar; null: such requests are refused by name.
  explicit GrammarCache(LoadVocabulary load) : load_(std::move(load)) {}

  // Errors: those of the grammar, and of the vocabulary.
  Result<AnswerForm> form(const GrammarSpec& spec);

 private:
  struct Entry {
    GrammarSpec spec;
    std::shared_ptr<TokenGrammar> grammar;
  };

  const LoadVocabulary load_;
  std::mutex mutex_;
  std::shared_ptr<const TokenTrie> vocabulary_;
  std::list<Entry> entries_;  // the latest used first
};

}  // namespace tandem
