#include "grammar/grammar_stacks.h"

#include <algorithm>

namespace tandem {
namespace {

uint64_t hash_of(std::span<const uint32_t> frames, bool ended) {
  uint64_t hash = ended ? 0x9e3779b97f4a7c15ULL : 0;
  for (const uint32_t frame : frames) {
    hash = (hash ^ frame) * 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

GrammarStacks::GrammarStacks(GrammarNetwork network) : network_(std::move(network)) {
  // The two bottoms have no state; their numbers are kWhole and kOpen.
  frames_.resize(2);
  depths_.resize(2);
  is_in_work_.resize(2);
  rows_.emplace_back();  // kDead
  start_ = position_of({network_.start(), kWhole});
}

GrammarStacks::Position GrammarStacks::position_of(Frame frame) {
  work_.assign(1, number_of(frame));
  return close();
}

GrammarStacks::Position GrammarStacks::return_to(uint32_t frame) {
  if (frame == kWhole || frame == kOpen) return kDead;
  work_.assign(1, frame);
  return close();
}

uint32_t GrammarStacks::number_of(Frame frame) {
  const uint64_t key = uint64_t{frame.state} << 32 | frame.caller;
  const auto [at, is_new] = frame_numbers_.try_emplace(key, static_cast<uint32_t>(frames_.size()));
  if (is_new) {
    frames_.push_back(frame);
    depths_.push_back(depths_[frame.caller] + 1);
    is_in_work_.push_back(false);
    memory_bytes_ += sizeof(Frame) + 64;  // and its entry in the map
  }
  return at->second;
}

GrammarStacks::Position GrammarStacks::compute_step(Position position, uint8_t byte) {
  work_.clear();
  for (const uint32_t number : rows_[position].frames) {
    const Frame frame = frames_[number];
    for (const GrammarNetwork::ByteEdge& edge : network_.byte_edges(frame.state)) {
      if (byte >= edge.first && byte <= edge.last) work_.push_back(number_of({edge.to, frame.caller}));
    }
  }
  const Position next = close();
  Rows& rows = rows_[position];
  if (rows.next == nullptr) {
    rows.next = std::make_unique<std::array<Position, 256>>();
    rows.next->fill(kUnknown);
    memory_bytes_ += sizeof(*rows.next);
  }
  return (*rows.next)[byte] = next;
}

GrammarStacks::Position GrammarStacks::close() {
  bool ended = false;
  found_.clear();
  for (const uint32_t number : work_) is_in_work_[number] = true;
  const auto add = [&](uint32_t number) {
    if (is_in_work_[number] || work_.size() >= kMaxFrames) return;
    is_in_work_[number] = true;
    work_.push_back(number);
  };
  for (size_t i = 0; i < work_.size(); ++i) {
    const uint32_t number = work_[i];
    const Frame frame = frames_[number];
    if (!network_.byte_edges(frame.state).empty()) found_.push_back(number);
    for (const GrammarNetwork::CallEdge& call : network_.call_edges(frame.state)) {
      if (depths_[number] >= kMaxDepth) break;
      // A call with nothing behind it returns to the caller's caller: stacks of right recursion stay flat.
      const uint32_t caller =
          network_.only_accepts(call.to) ? frame.caller : number_of({call.to, frame.caller});
      add(number_of({call.start, caller}));
    }
    if (!network_.accepts(frame.state)) continue;
    if (frame.caller == kWhole || frame.caller == kOpen) {
      ended = true;
    } else {
      add(frame.caller);
    }
  }
  for (const uint32_t number : work_) is_in_work_[number] = false;
  work_.clear();
  if (found_.empty() && !ended) return kDead;
  std::ranges::sort(found_);
  found_.erase(std::ranges::unique(found_).begin(), found_.end());

  const uint64_t hash = hash_of(found_, ended);
  const auto [begin, end] = positions_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    const Rows& rows = rows_[at->second];
    if (rows.ended == ended && rows.frames == found_) return at->second;
  }
  const auto position = static_cast<Position>(rows_.size());
  rows_.push_back({found_, ended, nullptr});
  positions_.emplace(hash, position);
  memory_bytes_ += sizeof(Rows) + found_.size() * sizeof(uint32_t) + 64;
  return position;
}

}  // namespace tandem
