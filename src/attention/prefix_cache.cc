#include "attention/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <numeric>
#include <utility>

#include "base/checksum.h"

namespace tandem {
namespace {

// Units end where every group's blocks end and no kept state is half made.
uint32_t tokens_of_unit(const StatePools& pools) {
  uint32_t tokens = 1;
  for (uint32_t group = 0; group < pools.num_groups(); ++group) {
    const StateGroupSpec& spec = pools.pool(group).spec();
    tokens = std::lcm(tokens, std::max(spec.tokens_per_block, spec.snapshot_every));
  }
  return tokens;
}

uint64_t checksum_of_tokens(uint64_t before, std::span<const int32_t> tokens) {
  return checksum64(std::as_bytes(tokens), before);
}

}  // namespace

std::unique_ptr<PrefixCache> PrefixCache::create(StatePools& pools, const PrefixCacheOptions& options) {
  const uint32_t unit = tokens_of_unit(pools);
  bool any = false;
  for (uint32_t group = 0; group < pools.num_groups(); ++group) {
    const BlockPool& pool = pools.pool(group);
    any = any || pool.spec().keeps_all();
    // A pool that never holds a unit.
    if (pool.num_blocks() < unit / pool.spec().tokens_per_block && pool.spec().keeps_all()) return nullptr;
  }
  if (!any) return nullptr;
  return std::unique_ptr<PrefixCache>(new PrefixCache(pools, options));
}

PrefixCache::PrefixCache(StatePools& pools, const PrefixCacheOptions& options)
    : pools_(&pools),
      unit_tokens_(tokens_of_unit(pools)),
      lookahead_(options.lookahead),
      hash_(options.hash != nullptr ? options.hash : checksum_of_tokens) {
  uint32_t most = UINT32_MAX;
  owners_.resize(pools.num_groups());
  resumers_.resize(pools.num_groups());
  for (uint32_t group = 0; group < pools.num_groups(); ++group) {
    BlockPool& pool = pools.pool(group);
    block_offsets_.push_back(blocks_per_unit_);
    if (pool.spec().keeps_all()) {
      most = std::min(most, pool.num_blocks() / blocks_in_unit(group));
      blocks_per_unit_ += blocks_in_unit(group);
      owners_[group].assign(pool.num_blocks(), kNone);
    } else {
      has_retained_ = true;
      blocks_per_unit_ += pool.blocks_for(pool.spec().retain_tokens);
      resumers_[group].resize(pool.num_blocks());
      // Of one text a block lies in at most two points that are next to each other; a fork may add to them.
      for (std::vector<uint32_t>& units : resumers_[group]) units.reserve(4);
    }
    pool.on_reuse([this, group](int32_t block) { on_reuse(group, block); });
  }
  units_.resize(most);
  for (uint32_t unit = most; unit > 0; --unit)
    units_[unit - 1].next_in_bucket = std::exchange(first_free_, unit - 1);
  buckets_.assign(std::bit_ceil(size_t{most} + 1), kNone);
  tokens_.resize(size_t{most} * (unit_tokens_ + lookahead_));
  blocks_.resize(size_t{most} * blocks_per_unit_);
  salts_.emplace("", 0);
  shared_.resize(pools.num_groups());
}

PrefixCache::~PrefixCache() {
  for (uint32_t group = 0; group < pools_->num_groups(); ++group) pools_->pool(group).on_reuse(nullptr);
}

std::span<int32_t> PrefixCache::blocks_of(uint32_t unit, uint32_t group) {
  return std::span(blocks_).subspan(size_t{unit} * blocks_per_unit_ + block_offsets_[group],
                                    num_blocks(group, units_[unit].end));
}

std::span<const int32_t> PrefixCache::blocks_of(uint32_t unit, uint32_t group) const {
  return std::span(blocks_).subspan(size_t{unit} * blocks_per_unit_ + block_offsets_[group],
                                    num_blocks(group, units_[unit].end));
}

size_t PrefixCache::num_blocks(uint32_t group, uint32_t end) const {
  const StateGroupSpec& spec = pools_->pool(group).spec();
  return spec.keeps_all() ? blocks_in_unit(group)
                          : end / spec.tokens_per_block - first_reached_block(spec, end);
}

PrefixCache::Place PrefixCache::root_of(const std::string& salt) {
  const auto found = salts_.find(salt);
  return {kNone, found != salts_.end() ? &*found : nullptr, 0};
}

uint32_t PrefixCache::child_of(const Place& place, std::span<const int32_t> tokens, uint64_t hash) const {
  if (place.salt == nullptr) return kNone;
  uint32_t unit = buckets_[hash % buckets_.size()];
  for (; unit != kNone; unit = units_[unit].next_in_bucket) {
    const Unit& each = units_[unit];
    if (each.hash != hash || each.parent != place.unit || each.salt != place.salt) continue;
    if (std::ranges::equal(std::span(tokens_).subspan(size_t{unit} * tokens.size(), tokens.size()), tokens))
      return unit;
  }
  return kNone;
}

uint32_t PrefixCache::unit_of(uint64_t serial) const {
  const auto unit = static_cast<uint32_t>(serial % units_.size());
  return serial != 0 && units_[unit].serial == serial ? unit : kNone;
}

uint32_t PrefixCache::attach(SequenceState& state, std::span<const int32_t> tokens, uint32_t worth,
                             PrefixUse& use) {
  use.forget();
  const auto size = static_cast<uint32_t>(tokens.size());
  use.began = size;
  use.prompt_point = (size - 1) / unit_tokens_ * unit_tokens_;
  use.branch_point = 0;
  if (!use.may_read) return 0;
  path_.clear();
  size_t longest = 0, drafted = 0;
  bool all_drafted = true;
  Place place = root_of(use.salt);
  for (uint32_t end = unit_tokens_; end < size; end += unit_tokens_) {
    const std::span<const int32_t> text = tokens_at(tokens, end);
    const uint32_t unit = child_of(place, text, hash_of(place, text));
    if (unit == kNone) break;
    path_.push_back(unit);
    place = behind(unit);
    all_drafted = all_drafted && units_[unit].drafted;
    if (has_retained_ && !units_[unit].resumes) continue;
    longest = path_.size();
    if (all_drafted && (!has_retained_ || units_[unit].resume_drafted)) drafted = longest;
  }
  if (path_.size() > longest) use.branch_point = static_cast<uint32_t>(path_.size()) * unit_tokens_;
  const bool redraft = is_drafting_ && longest > drafted && (longest - drafted) * unit_tokens_ <= worth;
  const size_t count = redraft ? drafted : longest;
  if (count == 0) return 0;
  std::vector<SequenceState::SharedBlocks> groups;
  const auto length = static_cast<uint32_t>(count) * unit_tokens_;
  for (uint32_t group = 0; group < shared_.size(); ++group) {
    std::vector<int32_t>& blocks = shared_[group];
    blocks.clear();
    const size_t first_unit = keeps_all(group) ? 0 : count - 1;
    for (size_t i = first_unit; i < count; ++i) {
      const std::span<const int32_t> more = blocks_of(path_[i], group);
      blocks.insert(blocks.end(), more.begin(), more.end());
    }
    groups.push_back({first_reached_block(pools_->pool(group).spec(), length), blocks});
  }
  if (!state.share(length, groups)) return 0;  // longer than the sequence may become
  use.stored = use.attached = length;
  use.unit = units_[path_[count - 1]].serial;
  use.drafted = count <= drafted ? length : 0;
  return length;
}

void PrefixCache::store(const SequenceState& state, std::span<const int32_t> tokens, PrefixUse& use) {
  const auto size = static_cast<uint32_t>(tokens.size());
  const uint32_t whole = std::min(state.length(), size - 1);
  if (use.stored > whole) use.forget();
  if (use.stored + unit_tokens_ > whole) return;
  uint32_t last = use.stored > 0 ? unit_of(use.unit) : kNone;
  // Its unit may be gone, with one before it: then from the beginning again.
  if (last == kNone) use.stored = 0;
  Place place = last == kNone ? root_of(use.salt) : behind(last);
  for (uint32_t end = use.stored + unit_tokens_; end <= whole; end += unit_tokens_) {
    const std::span<const int32_t> text = tokens_at(tokens, end);
    const uint64_t hash = hash_of(place, text);
    const bool drafted = end <= use.drafted;
    uint32_t unit = child_of(place, text, hash);
    if (unit == kNone) {
      if (place.salt == nullptr) place.salt = &*salts_.emplace(use.salt, 0).first;
      unit = add(place, text, hash);
      take_blocks(unit, state);
      units_[unit].drafted = drafted;
    } else if (!has_blocks_of(unit, state)) {
      // Somebody else has computed the same. Blocks that are in use are not worth another copy.
      const bool better = drafted && !units_[unit].drafted;
      const bool as_good = drafted == units_[unit].drafted;
      if (better || (as_good && blocks_are_free(unit))) {
        take_blocks(unit, state);
        units_[unit].drafted = drafted;
      }
    }
    const bool better_point = !units_[unit].resumes || (drafted && !units_[unit].resume_drafted);
    if (has_retained_ && better_point && wants_resume_point(end, use) &&
        add_resume_point(unit, state, drafted) && end >= use.began) {
      // An answer has one point, which goes on with it.
      if (const uint32_t before = unit_of(use.rolling); before != kNone) drop_resume_point(before);
      use.rolling = units_[unit].serial;
    }
    place = behind(unit);
    use.stored = end;
    use.unit = units_[unit].serial;
  }
}

uint32_t PrefixCache::add(const Place& place, std::span<const int32_t> tokens, uint64_t hash) {
  // Units own blocks of their own, so there are never more than a pool has blocks for.
  assert(first_free_ != kNone);
  const uint32_t index = first_free_;
  Unit& unit = units_[index];
  first_free_ = unit.next_in_bucket;
  unit = {};
  unit.serial = next_serial_++ * units_.size() + index;
  unit.hash = hash;
  unit.parent = place.unit;
  unit.salt = place.salt;
  unit.end = (place.unit == kNone ? 0 : units_[place.unit].end) + unit_tokens_;
  unit.next_in_bucket = std::exchange(buckets_[hash % buckets_.size()], index);
  if (place.unit != kNone) {
    unit.next_sibling = std::exchange(units_[place.unit].first_child, index);
    if (unit.next_sibling != kNone) units_[unit.next_sibling].previous_sibling = index;
  }
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(size_t{index} * tokens.size()));
  for (uint32_t group = 0; group < shared_.size(); ++group) {
    if (keeps_all(group)) std::ranges::fill(blocks_of(index, group), -1);
  }
  ++unit.salt->second;
  ++num_units_;
  return index;
}

void PrefixCache::take_blocks(uint32_t unit, const SequenceState& state) {
  for (uint32_t group = 0; group < shared_.size(); ++group) {
    if (!keeps_all(group)) continue;
    BlockPool& pool = pools_->pool(group);
    const std::span<int32_t> blocks = blocks_of(unit, group);
    const size_t first = units_[unit].end / pool.spec().tokens_per_block - blocks.size();
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i] >= 0) {
        owners_[group][static_cast<size_t>(blocks[i])] = kNone;
        pool.forget(blocks[i]);
      }
      blocks[i] = state.block_table(group)[first + i];
      assert(owners_[group][static_cast<size_t>(blocks[i])] == kNone);
      owners_[group][static_cast<size_t>(blocks[i])] = unit;
      pool.keep(blocks[i]);
    }
  }
}

bool PrefixCache::blocks_are_free(uint32_t unit) const {
  for (uint32_t group = 0; group < shared_.size(); ++group) {
    if (!keeps_all(group)) continue;
    for (const int32_t block : blocks_of(unit, group)) {
      if (!pools_->pool(group).is_free(block)) return false;
    }
  }
  return true;
}

bool PrefixCache::has_blocks_of(uint32_t unit, const SequenceState& state) const {
  for (uint32_t group = 0; group < shared_.size(); ++group) {
    if (!keeps_all(group)) continue;
    const std::span<const int32_t> blocks = blocks_of(unit, group);
    const size_t end = units_[unit].end / pools_->pool(group).spec().tokens_per_block;
    if (state.block_table(group)[end - 1] != blocks.back()) return false;
  }
  return true;
}

bool PrefixCache::add_resume_point(uint32_t unit, const SequenceState& state, bool drafted) {
  const auto in_state = [&](uint32_t group) {
    const StateGroupSpec& spec = pools_->pool(group).spec();
    const uint32_t end = units_[unit].end;
    const uint32_t first = first_reached_block(spec, end);
    return state.block_table(group).subspan(first, end / spec.tokens_per_block - first);
  };
  for (uint32_t group = 0; group < shared_.size(); ++group) {
    if (!keeps_all(group) && std::ranges::find(in_state(group), -1) != in_state(group).end()) return false;
  }
  drop_resume_point(unit);
  for (uint32_t group = 0; group < shared_.size(); ++group) {
    if (keeps_all(group)) continue;
    const std::span<const int32_t> blocks = in_state(group);
    std::ranges::copy(blocks, blocks_of(unit, group).begin());
    for (const int32_t block : blocks) {
      pools_->pool(group).keep(block);
      resumers_[group][static_cast<size_t>(block)].push_back(unit);
    }
  }
  units_[unit].resumes = true;
  units_[unit].resume_drafted = drafted;
  return true;
}

void PrefixCache::drop_resume_point(uint32_t unit) {
  if (!std::exchange(units_[unit].resumes, false)) return;
  for (uint32_t group = 0; group < shared_.size(); ++group) {
    if (keeps_all(group)) continue;
    for (const int32_t block : blocks_of(unit, group)) {
      std::vector<uint32_t>& units = resumers_[group][static_cast<size_t>(block)];
      std::erase(units, unit);
      if (units.empty()) pools_->pool(group).forget(block);
    }
  }
}

void PrefixCache::drop_leaf(uint32_t index) {
  drop_resume_point(index);
  for (uint32_t group = 0; group < shared_.size(); ++group) {
    if (!keeps_all(group)) continue;
    for (const int32_t block : blocks_of(index, group)) {
      owners_[group][static_cast<size_t>(block)] = kNone;
      pools_->pool(group).forget(block);
    }
  }
  Unit& unit = units_[index];
  uint32_t* link = &buckets_[unit.hash % buckets_.size()];
  while (*link != index) link = &units_[*link].next_in_bucket;
  *link = unit.next_in_bucket;
  if (unit.previous_sibling != kNone) {
    units_[unit.previous_sibling].next_sibling = unit.next_sibling;
  } else if (unit.parent != kNone) {
    units_[unit.parent].first_child = unit.next_sibling;
  }
  if (unit.next_sibling != kNone) units_[unit.next_sibling].previous_sibling = unit.previous_sibling;
  if (--unit.salt->second == 0 && !unit.salt->first.empty()) salts_.erase(salts_.find(unit.salt->first));
  unit = {};
  unit.next_in_bucket = std::exchange(first_free_, index);
  --num_units_;
}

void PrefixCache::drop_tree(uint32_t unit) {
  uint32_t leaf = unit;
  while (true) {
    while (units_[leaf].first_child != kNone) leaf = units_[leaf].first_child;
    const uint32_t parent = units_[leaf].parent;
    drop_leaf(leaf);
    if (leaf == unit) return;
    leaf = parent;
  }
}

void PrefixCache::on_reuse(uint32_t group, int32_t block) {
  if (keeps_all(group)) {
    const uint32_t unit = owners_[group][static_cast<size_t>(block)];
    assert(unit != kNone);
    drop_tree(unit);
    return;
  }
  // A unit without its resume point is still passed through by longer ones.
  std::vector<uint32_t>& units = resumers_[group][static_cast<size_t>(block)];
  while (!units.empty()) drop_resume_point(units.back());
}

std::vector<uint32_t> PrefixCache::units_by_use() const {
  uint32_t kept = 0;
  while (!keeps_all(kept)) ++kept;
  std::vector<uint32_t> units;
  std::vector<bool> listed(units_.size(), false);
  const auto list = [&](uint32_t unit) {
    const size_t first = units.size();
    for (; unit != kNone && !listed[unit]; unit = units_[unit].parent) {
      listed[unit] = true;
      units.push_back(unit);
    }
    std::reverse(units.begin() + static_cast<std::ptrdiff_t>(first), units.end());
  };
  for (uint32_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit].serial != 0 && !blocks_are_free(unit)) list(unit);
  }
  for (const int32_t block : pools_->pool(kept).line_from_last())
    list(owners_[kept][static_cast<size_t>(block)]);
  return units;
}

PrefixCache::View PrefixCache::view(uint32_t index) const {
  const Unit& unit = units_[index];
  View view;
  if (unit.parent != kNone) view.parent = unit.parent;
  view.salt = &unit.salt->first;
  const size_t count = size_t{unit_tokens_} + lookahead_;
  view.tokens = std::span(tokens_).subspan(size_t{index} * count, count);
  view.drafted = unit.drafted;
  view.resumes = unit.resumes;
  view.resume_drafted = unit.resume_drafted;
  return view;
}

uint64_t PrefixCache::bytes_of_unit(uint32_t end, bool resumes) const {
  uint64_t bytes = 0;
  for (uint32_t group = 0; group < shared_.size(); ++group) {
    if (keeps_all(group) || resumes)
      bytes += num_blocks(group, end) * pools_->pool(group).spec().bytes_of_all_layers();
  }
  return bytes;
}

std::optional<uint32_t> PrefixCache::take_over(const View& given) {
  Place place = given.parent ? behind(*given.parent) : root_of(*given.salt);
  const uint64_t hash = hash_of(place, given.tokens);
  if (child_of(place, given.tokens, hash) != kNone) return std::nullopt;
  const uint32_t end = (given.parent ? units_[*given.parent].end : 0) + unit_tokens_;
  const auto has_room = [&](bool kept) {
    for (uint32_t group = 0; group < shared_.size(); ++group) {
      const BlockPool& pool = pools_->pool(group);
      if (keeps_all(group) == kept && pool.free_blocks() < num_blocks(group, end)) return false;
    }
    return true;
  };
  if (first_free_ == kNone || !has_room(true)) return std::nullopt;
  if (place.salt == nullptr) place.salt = &*salts_.emplace(*given.salt, 0).first;
  const uint32_t index = add(place, given.tokens, hash);
  Unit& unit = units_[index];
  unit.drafted = given.drafted;
  unit.resumes = given.resumes && has_retained_ && has_room(false);
  unit.resume_drafted = unit.resumes && given.resume_drafted;
  for (uint32_t group = 0; group < shared_.size(); ++group) {
    if (!keeps_all(group) && !unit.resumes) continue;
    for (int32_t& block : blocks_of(index, group)) {
      block = pools_->pool(group).allocate().value_or(-1);
      pools_->pool(group).keep(block);
      if (keeps_all(group)) {
        owners_[group][static_cast<size_t>(block)] = index;
      } else {
        resumers_[group][static_cast<size_t>(block)].push_back(index);
      }
    }
  }
  taken_over_.push_back(index);
  return index;
}

void PrefixCache::release_taken_over() {
  for (; !taken_over_.empty(); taken_over_.pop_back()) {
    const uint32_t unit = taken_over_.back();
    for (uint32_t group = 0; group < shared_.size(); ++group) {
      if (!keeps_all(group) && !units_[unit].resumes) continue;
      for (const int32_t block : blocks_of(unit, group)) pools_->pool(group).release(block);
    }
  }
}

void PrefixCache::clear() {
  for (uint32_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit].serial != 0) drop_tree(unit);
  }
}

}  // namespace tandem
