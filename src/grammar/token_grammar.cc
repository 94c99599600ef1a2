#include "grammar/token_grammar.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

// Masks kept at once: 16 KiB each at 128 Ki tokens. A text in a schema is at some dozens of places in turn.
constexpr size_t kMaxMasks = 512;

}  // namespace

Result<std::shared_ptr<TokenGrammar>> TokenGrammar::compile(const GrammarRules& rules,
                                                            std::shared_ptr<const TokenTrie> trie) {
  TANDEM_ASSIGN(GrammarNetwork network, GrammarNetwork::build(rules));
  std::shared_ptr<TokenGrammar> grammar(new TokenGrammar(std::move(network), std::move(trie)));
  const State start = grammar->start();
  if (start == kDead) return make_error(ErrorCode::invalid_argument, "the grammar matches no text");
  return grammar;
}

TokenGrammar::TokenGrammar(GrammarNetwork network, std::shared_ptr<const TokenTrie> trie)
    : trie_(std::move(trie)), stacks_(std::move(network)) {}

TokenGrammar::State TokenGrammar::start() const {
  const std::lock_guard lock(mutex_);
  return stacks_.start();
}

TokenGrammar::State TokenGrammar::advance(State state, int32_t token) {
  const std::string_view bytes = trie_->bytes(token);
  if (bytes.empty()) return kDead;
  const std::lock_guard lock(mutex_);
  for (const char byte : bytes) state = stacks_.step(state, static_cast<uint8_t>(byte));
  return state;
}

void TokenGrammar::allowed(State state, std::span<uint64_t> mask) {
  const std::lock_guard lock(mutex_);
  std::ranges::copy(mask_of(state), mask.begin());
}

bool TokenGrammar::is_line_breaks(int32_t token) const {
  const std::string_view bytes = trie_->bytes(token);
  return !bytes.empty() && bytes.find_first_not_of('\n') == std::string_view::npos;
}

bool TokenGrammar::can_end(State state) const {
  const std::lock_guard lock(mutex_);
  return stacks_.has_ended(state);
}

bool TokenGrammar::must_end(State state) const {
  const std::lock_guard lock(mutex_);
  return stacks_.has_ended(state) && stacks_.frames(state).empty();
}

size_t TokenGrammar::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  return stacks_.memory_bytes() + local_bytes_ + masks_.size() * trie_->mask_words() * sizeof(uint64_t);
}

void TokenGrammar::walk(GrammarStacks::Position position, uint32_t parent, Mask& mask,
                        std::vector<uint32_t>* open_nodes) {
  const auto nodes = trie_->nodes();
  const uint32_t begin = parent == kRoot ? 0 : parent + 1;
  const uint32_t end = parent == kRoot ? static_cast<uint32_t>(nodes.size()) : nodes[parent].end;
  const uint32_t base = parent == kRoot ? 0 : nodes[parent].depth;
  path_.assign(1, position);
  for (uint32_t i = begin; i < end;) {
    const TokenTrie::Node& node = nodes[i];
    const uint32_t depth = node.depth - base;
    const GrammarStacks::Position next = stacks_.step(path_[depth - 1], node.byte);
    if (next == GrammarStacks::kDead) {
      i = node.end;
      continue;
    }
    for (const int32_t token : trie_->tokens(i))
      mask[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
    const bool has_children = node.end > i + 1;
    if (open_nodes != nullptr && has_children && stacks_.has_ended(next)) open_nodes->push_back(i);
    if (path_.size() <= depth) path_.resize(depth + 1);
    path_[depth] = next;
    ++i;
  }
}

const TokenGrammar::Local& TokenGrammar::local(uint32_t state) {
  const auto [at, is_new] = locals_.try_emplace(state);
  Local& local = at->second;
  if (is_new) {
    local.mask.resize(trie_->mask_words());
    walk(stacks_.position_of({state, GrammarStacks::kOpen}), kRoot, local.mask, &local.open_nodes);
    local_bytes_ += local.mask.size() * sizeof(uint64_t) + local.open_nodes.size() * sizeof(uint32_t);
  }
  return local;
}

const TokenGrammar::Mask& TokenGrammar::mask_of(State state) {
  if (const auto at = masks_.find(state); at != masks_.end()) return at->second;
  Mask mask(trie_->mask_words());
  const auto of_position = stacks_.frames(state);
  const std::vector<uint32_t> frames(of_position.begin(), of_position.end());  // walking adds positions
  for (const uint32_t number : frames) {
    const GrammarStacks::Frame frame = stacks_.frame(number);
    const Local& inside = local(frame.state);
    for (size_t i = 0; i < mask.size(); ++i) mask[i] |= inside.mask[i];
    if (inside.open_nodes.empty()) continue;
    const GrammarStacks::Position after = stacks_.return_to(frame.caller);
    if (after == GrammarStacks::kDead) continue;
    for (const uint32_t node : inside.open_nodes) walk(after, node, mask, nullptr);
  }
  if (masks_.size() >= kMaxMasks) masks_.clear();
  return masks_.emplace(state, std::move(mask)).first->second;
}

}  // namespace tandem
