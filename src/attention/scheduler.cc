#include "attention/scheduler.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

template <class Container>
auto position_of(Container& container, const Sequence& sequence) {
  return std::lower_bound(container.begin(), container.end(), sequence,
                          [](const std::unique_ptr<Sequence>& each, const Sequence& wanted) {
                            return each->comes_before(wanted);
                          });
}

template <class Container>
void insert(Container& container, std::unique_ptr<Sequence> sequence) {
  const auto at = position_of(container, *sequence);
  container.insert(at, std::move(sequence));
}

template <class Container>
std::unique_ptr<Sequence> take(Container& container, const Sequence& wanted) {
  const auto at = position_of(container, wanted);
  if (at == container.end() || at->get() != &wanted) return nullptr;
  std::unique_ptr<Sequence> sequence = std::move(*at);
  container.erase(at);
  return sequence;
}

}  // namespace

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  insert(waiting_, std::move(sequence));
}

template <class Before>
bool Scheduler::preempt_last(Before before) {
  for (size_t i = running_.size(); i > 0; --i) {
    Sequence& victim = *running_[i - 1];
    if (!before(victim)) return false;
    if (victim.in_step || !victim.state.holds_blocks()) continue;
    give_back(victim);
    victim.drafts.clear();
    insert(waiting_, take(running_, victim));
    ++num_preempted_;
    return true;
  }
  return false;
}

bool Scheduler::preempt_behind(const Sequence& sequence) {
  return preempt_last([&](const Sequence& victim) { return sequence.comes_before(victim); });
}

bool Scheduler::preempt_less_urgent(const Sequence& sequence) {
  return preempt_last(
      [&](const Sequence& victim) { return sequence.request.priority < victim.request.priority; });
}

void Scheduler::give_back(Sequence& sequence) {
  if (cache_ != nullptr) cache_->store(sequence.state, sequence.tokens, sequence.prefix);
  sequence.state.clear();
  sequence.prefix.forget();
}

void Scheduler::settle(Sequence& sequence) {
  if (sequence.is_drafting) sequence.prefix.drafted = sequence.state.length();
  if (cache_ != nullptr) cache_->store(sequence.state, sequence.tokens, sequence.prefix);
  sequence.state.trim();
}

void split_by_token(std::span<const StepPart> parts, std::span<std::vector<StepPart>> out) {
  uint64_t total = 0;
  for (const StepPart& part : parts) total += part.rows;
  size_t next = 0;
  uint32_t taken = 0;  // rows of parts[next]
  for (size_t share = 0; share < out.size(); ++share) {
    out[share].clear();
    // More rows to the earlier shares: the later ones wait for them anyway.
    uint64_t wanted = (total + out.size() - 1 - share) / out.size();
    while (wanted > 0) {
      const StepPart& part = parts[next];
      const auto rows = static_cast<uint32_t>(std::min<uint64_t>(wanted, part.rows - taken));
      const bool whole = taken + rows == part.rows;
      out[share].push_back(
          {part.sequence, rows, part.offset + taken, part.samples && whole, part.last && whole});
      wanted -= rows;
      taken += rows;
      if (taken < part.rows) continue;
      ++next;
      taken = 0;
    }
  }
}

uint32_t Scheduler::num_decoding() const {
  return static_cast<uint32_t>(
      std::ranges::count_if(running_, [](const auto& sequence) { return sequence->is_decoding(); }));
}

uint32_t Scheduler::num_prefilling() const {
  const auto running = static_cast<uint32_t>(running_.size());
  const uint32_t room = limits_.max_num_seqs - std::min(limits_.max_num_seqs, running);
  return running - num_decoding() + std::min(room, static_cast<uint32_t>(waiting_.size()));
}

uint32_t Scheduler::decode_share(uint32_t lanes, uint32_t idle_lanes) const {
  const auto free = static_cast<uint32_t>(std::ranges::count_if(
      running_, [](const auto& sequence) { return sequence->is_decoding() && !sequence->in_step; }));
  const auto part = [](uint32_t rows, uint32_t count) { return (rows + count - 1) / count; };
  return std::min(part(free, idle_lanes), part(num_decoding(), lanes));
}

void Scheduler::plan_decode(uint32_t max_sequences, uint32_t max_drafts, std::vector<StepPart>& parts,
                            std::vector<Sequence*>& out_of_blocks) {
  parts.clear();
  // By index: preempting erases younger entries, which stand behind.
  for (size_t i = 0; i < running_.size() && parts.size() < max_sequences; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.in_step || !sequence.is_decoding()) continue;
    const uint32_t wanted = sequence.state.length() + 1;
    bool reserved = sequence.state.reserve(wanted).has_value();
    while (!reserved && preempt_behind(sequence)) reserved = sequence.state.reserve(wanted).has_value();
    if (reserved) {
      sequence.in_step = true;
      if (sequence.drafts.size() > max_drafts) sequence.drafts.resize(max_drafts);
      auto drafts = static_cast<uint32_t>(sequence.drafts.size());
      if (drafts > 0 && !sequence.state.reserve(wanted + drafts)) drafts = 0;
      parts.push_back({&sequence, 1 + drafts, 0, /*samples=*/true, /*last=*/true, drafts});
    } else if (running_.size() == 1) {
      out_of_blocks.push_back(&sequence);
    }
  }
}

uint32_t Scheduler::reserve_chunk(Sequence& sequence, uint32_t rows) {
  const uint32_t length = sequence.state.length();
  while (rows > 0 && !sequence.state.reserve(length + rows, length + sequence.pending())) {
    if (!preempt_behind(sequence)) rows /= 2;
  }
  return rows;
}

bool Scheduler::fits(const Sequence& sequence) const {
  return running_.size() < limits_.max_num_seqs && sequence.state.could_reserve(sequence.pending());
}

void Scheduler::make_way() {
  if (!std::exchange(is_tight_, false)) return;
  // By index: preempting erases entries that stand behind.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.in_step) continue;
    reserve_chunk(sequence, std::min(limits_.max_num_batched_tokens, sequence.pending()));
  }
  while (!waiting_.empty() && !fits(*waiting_.front()) && preempt_less_urgent(*waiting_.front())) {
  }
}

void Scheduler::plan_prefill(std::vector<StepPart>& parts, uint32_t max_rows) {
  parts.clear();
  uint32_t budget = std::min(limits_.max_num_batched_tokens, max_rows);
  const auto take_chunk = [&](Sequence& sequence, uint32_t rows) {
    sequence.in_step = true;
    parts.push_back({&sequence, rows, 0, rows == sequence.pending()});
    budget -= rows;
  };
  // By index: preempting erases younger entries, which stand behind.
  for (size_t i = 0; i < running_.size(); ++i) {
    if (budget == 0) return;
    Sequence& sequence = *running_[i];
    if (sequence.in_step || sequence.is_decoding()) continue;
    const uint32_t rows = reserve_chunk(sequence, std::min(budget, sequence.pending()));
    is_tight_ = rows == 0;
    if (rows == 0) return;  // what lanes hold comes back with their steps; nobody younger gets ahead
    take_chunk(sequence, rows);
  }
  // Strictly in order: a short prompt behind a long one that does not fit yet waits with it.
  while (budget > 0 && !waiting_.empty()) {
    Sequence& sequence = *waiting_.front();
    // One that has been preempted for it waits behind it.
    const bool has_place = running_.size() < limits_.max_num_seqs || preempt_less_urgent(sequence);
    const uint32_t rows = has_place ? take_in(sequence, budget) : 0;
    is_tight_ =
        rows == 0 && !running_.empty() && sequence.request.priority < running_.back()->request.priority;
    if (rows == 0) break;
    take_chunk(sequence, rows);
  }
}

bool Scheduler::pretend_computed(Sequence& sequence) {
  const auto last = static_cast<uint32_t>(sequence.tokens.size()) - 1;
  SequenceState& state = sequence.state;
  // In steps, as a prompt is computed: a group with a retention gives back what is out of reach.
  while (state.length() < last) {
    const uint32_t rows = std::min(limits_.max_num_batched_tokens, last - state.length());
    if (!state.reserve(state.length() + rows, last + 1)) {
      state.clear();
      return false;
    }
    state.advance(rows);
    state.trim();
  }
  return true;
}

uint32_t Scheduler::take_in(Sequence& sequence, uint32_t budget) {
  uint32_t found = 0;
  if (limits_.synthetic_prompts && !pretend_computed(sequence)) return 0;
  if (cache_ != nullptr) {
    // Drafts save steps of the answer: for these rows of the prompt are computed once more, one for one.
    const uint32_t worth = sequence.request.sampling.max_tokens - sequence.generated();
    found = cache_->attach(sequence.state, sequence.tokens, worth, sequence.prefix);
  }
  const uint32_t all = sequence.pending();
  uint32_t rows = std::min(budget, all);
  const auto fits = [&] {
    return sequence.state.reserve(sequence.state.length() + rows, sequence.state.length() + all).has_value();
  };
  bool reserved = fits();
  while (!reserved && preempt_less_urgent(sequence)) reserved = fits();
  if (!reserved) {
    // Alone it goes on with shorter chunks: nobody will give anything back.
    rows = running_.empty() ? reserve_chunk(sequence, rows) : 0;
    if (rows == 0) {
      give_back(sequence);
      return 0;
    }
  }
  if (cache_ != nullptr) queried_tokens_ += sequence.tokens.size();
  hit_tokens_ += found;
  if (!sequence.cached_tokens) sequence.cached_tokens = found;
  insert(running_, take(waiting_, sequence));
  return rows;
}

void Scheduler::finish_part(const StepPart& part) {
  part.sequence->state.advance(part.rows);
  part.sequence->in_step = false;
}

std::unique_ptr<Sequence> Scheduler::remove(Sequence& sequence) {
  give_back(sequence);
  std::unique_ptr<Sequence> taken = take(running_, sequence);
  return taken != nullptr ? std::move(taken) : take(waiting_, sequence);
}

Sequence* Scheduler::find(RequestId id) const {
  Sequence* found = nullptr;
  for_each([&](Sequence& sequence) { found = sequence.id == id ? &sequence : found; });
  return found;
}

void Scheduler::for_each(const std::function<void(Sequence&)>& visit) const {
  for (const auto& sequence : running_) visit(*sequence);
  for (const auto& sequence : waiting_) visit(*sequence);
}

}  // namespace tandem
