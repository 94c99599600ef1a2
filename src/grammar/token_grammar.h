// TokenGrammar: a grammar over the tokens of a vocabulary: which tokens may follow, and where one leads.
//
// What a rule's state allows by itself is found once by walking the vocabulary's tree below it, whatever
// called the rule; tokens that leave the rule are finished in each of its callers. So the mask of a place
// that nobody has been at costs microseconds, and of a known one a copy. (The division into tokens that
// depend on the stack and those that do not is that of XGrammar, Dong et al. 2024.)
//
// Any thread: calls take a lock. States are valid as long as their grammar lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "grammar/grammar_expression.h"
#include "grammar/grammar_stacks.h"
#include "grammar/token_trie.h"

namespace tandem {

class TokenGrammar {
 public:
  // Where a text stands; equal states allow the same continuations.
  using State = uint32_t;
  // No text of the grammar begins with what was read.
  static constexpr State kDead = GrammarStacks::kDead;

  // Errors: those of GrammarNetwork::build; `invalid_argument` for a grammar that no text matches.
  static Result<std::shared_ptr<TokenGrammar>> compile(const GrammarRules& rules,
                                                       std::shared_ptr<const TokenTrie> trie);

  State start() const;
  // kDead for a token that is not allowed.
  State advance(State state, int32_t token);
  // Bit t of mask[t / 64] is set where token t may follow, else cleared. mask: [mask_words].
  void allowed(State state, std::span<uint64_t> mask);
  size_t mask_words() const { return trie_->mask_words(); }
  // Whether a token is line breaks and nothing else.
  bool is_line_breaks(int32_t token) const;
  // The text is complete; and: nothing may follow it.
  bool can_end(State state) const;
  bool must_end(State state) const;

  // About what is remembered of places; grows as texts go new ways. A cache drops a grammar that is too
  // large.
  size_t memory_bytes() const;

 private:
  using Mask = std::vector<uint64_t>;
  // What may follow a state whose caller is not known.
  struct Local {
    Mask mask;
    std::vector<uint32_t> open_nodes;  // of the tree: the rule may have ended here, and tokens go on
  };
  // All of the tree, as a parent of what is walked.
  static constexpr uint32_t kRoot = UINT32_MAX;

  TokenGrammar(GrammarNetwork network, std::shared_ptr<const TokenTrie> trie);
  // Sets the bits of the tokens below the node `parent` that can follow `position`; adds to `open_nodes`
  // unless it is null.
  void walk(GrammarStacks::Position position, uint32_t parent, Mask& mask, std::vector<uint32_t>* open_nodes);
  const Local& local(uint32_t state);
  const Mask& mask_of(State state);

  const std::shared_ptr<const TokenTrie> trie_;
  mutable std::mutex mutex_;  // of all below
  GrammarStacks stacks_;
  std::unordered_map<uint32_t, Local> locals_;  // by state
  std::unordered_map<State, Mask> masks_;
  std::vector<GrammarStacks::Position> path_;  // of walk: the position behind each byte
  size_t local_bytes_ = 0;
};

}  // namespace tandem
