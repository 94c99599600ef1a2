#include "attention/scheduler.h"

#include <algorithm>

namespace tandem {
namespace {

template <class Container>
auto position_of(Container& container, RequestId id) {
  return std::lower_bound(
      container.begin(), container.end(), id,
      [](const std::unique_ptr<Sequence>& sequence, RequestId wanted) { return sequence->id < wanted; });
}

template <class Container>
Sequence* find_in(Container& container, RequestId id) {
  const auto at = position_of(container, id);
  return at != container.end() && (*at)->id == id ? at->get() : nullptr;
}

template <class Container>
std::unique_ptr<Sequence> take(Container& container, RequestId id) {
  const auto at = position_of(container, id);
  std::unique_ptr<Sequence> sequence = std::move(*at);
  container.erase(at);
  return sequence;
}

}  // namespace

bool Scheduler::preempt_younger_than(const Sequence& sequence) {
  for (size_t i = running_.size(); i > 0; --i) {
    Sequence& victim = *running_[i - 1];
    if (victim.id <= sequence.id) return false;
    if (victim.in_step || victim.state.block_table().empty()) continue;
    victim.state.clear();
    auto owned = take(running_, victim.id);
    waiting_.insert(position_of(waiting_, owned->id), std::move(owned));
    ++num_preempted_;
    return true;
  }
  return false;
}

std::vector<StepPart> Scheduler::plan_decode(std::vector<Sequence*>& out_of_blocks) {
  std::vector<StepPart> parts;
  // By index: preempting erases younger entries, which stand behind.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.in_step || !sequence.is_decoding()) continue;
    const uint32_t wanted = sequence.state.length() + 1;
    bool reserved = sequence.state.reserve(wanted).has_value();
    while (!reserved && preempt_younger_than(sequence)) reserved = sequence.state.reserve(wanted).has_value();
    if (reserved) {
      sequence.in_step = true;
      parts.push_back({&sequence, 1});
    } else if (running_.size() == 1) {
      out_of_blocks.push_back(&sequence);
    }
  }
  return parts;
}

std::vector<StepPart> Scheduler::plan_prefill() {
  std::vector<StepPart> parts;
  uint32_t budget = limits_.max_num_batched_tokens;
  const auto take_chunk = [&](Sequence& sequence) {
    const uint32_t rows = std::min(budget, sequence.pending());
    sequence.in_step = true;
    parts.push_back({&sequence, rows});
    budget -= rows;
  };
  for (const auto& sequence : running_) {
    if (budget == 0) return parts;
    if (!sequence->in_step && !sequence->is_decoding()) take_chunk(*sequence);
  }
  // Strictly by arrival: a short prompt behind a long one that does not fit yet waits with it.
  while (budget > 0 && !waiting_.empty() && running_.size() < limits_.max_num_seqs) {
    Sequence& sequence = *waiting_.front();
    if (!sequence.state.reserve(static_cast<uint32_t>(sequence.tokens.size()))) break;
    auto owned = take(waiting_, sequence.id);
    running_.insert(position_of(running_, sequence.id), std::move(owned));
    take_chunk(sequence);
  }
  return parts;
}

void Scheduler::finish_part(const StepPart& part) {
  part.sequence->state.advance(part.rows);
  part.sequence->in_step = false;
}

std::unique_ptr<Sequence> Scheduler::remove(Sequence& sequence) {
  return find_in(running_, sequence.id) != nullptr ? take(running_, sequence.id)
                                                   : take(waiting_, sequence.id);
}

Sequence* Scheduler::find(RequestId id) const {
  Sequence* sequence = find_in(running_, id);
  return sequence != nullptr ? sequence : find_in(waiting_, id);
}

void Scheduler::for_each(const std::function<void(Sequence&)>& visit) const {
  for (const auto& sequence : running_) visit(*sequence);
  for (const auto& sequence : waiting_) visit(*sequence);
}

}  // namespace tandem
