#include "attention/prefix_store.h"

#include <fmt/format.h>

#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

#include "attention/prefix_file.h"
#include "attention/prefix_saver.h"
#include "base/file.h"

namespace tandem {

using namespace prefix_file;

namespace {

// The first line that differs, both ways.
std::string difference(const std::string& stored, const std::string& wanted) {
  std::istringstream a(stored), b(wanted);
  std::string left, right;
  while (true) {
    const bool more_left = static_cast<bool>(std::getline(a, left));
    const bool more_right = static_cast<bool>(std::getline(b, right));
    if (!more_left && !more_right) return "nothing";
    if (!more_left) left.clear();
    if (!more_right) right.clear();
    if (left != right) return fmt::format("'{}' there, '{}' here", left, right);
  }
}

struct UnitRecord {
  UnitHead head;
  std::string_view salt;
  std::vector<int32_t> tokens;
  std::span<const std::byte> blocks;
};

}  // namespace

Result<PrefixStoreReport> save_prefixes(const PrefixStoreOptions& options, PrefixCache& cache) {
  PrefixSaver saver(options);
  return saver.save(cache);
}

Result<PrefixStoreReport> load_prefixes(const PrefixStoreOptions& options, PrefixCache& cache) {
  if (!file_exists(options.path))
    return make_error(ErrorCode::not_found, options.path + ": there is no such file");
  TANDEM_ASSIGN(const MappedFile file, MappedFile::open(options.path));
  std::span<const std::byte> rest = file.bytes();
  const auto damaged = [&](const std::string& what) {
    return make_error(ErrorCode::data_loss, fmt::format("{}: {}", options.path, what));
  };
  FileHead head;
  if (rest.size() < sizeof(head)) return damaged("too short for a prefix cache");
  std::memcpy(&head, rest.data(), sizeof(head));
  if (head.magic != kMagic) return damaged("not a prefix cache");
  if (head.version != kVersion)
    return make_error(ErrorCode::invalid_argument, fmt::format("{}: version {}; this build reads {}",
                                                               options.path, head.version, kVersion));
  rest = rest.subspan(sizeof(head));
  if (head.file_bytes != file.bytes().size() || head.identity_bytes > rest.size())
    return damaged(fmt::format("{} bytes; it says {}", file.bytes().size(), head.file_bytes));
  const std::string identity(reinterpret_cast<const char*>(rest.data()), head.identity_bytes);
  if (checksum_of_head(head, identity) != head.checksum) return damaged("the checksum of its head is wrong");
  const std::string wanted = identity_of(options, cache);
  if (identity != wanted) {
    return make_error(ErrorCode::invalid_argument, fmt::format("{}: made with other settings: {}",
                                                               options.path, difference(identity, wanted)));
  }
  rest = rest.subspan(head.identity_bytes);

  // All of it is checked before any of it is used.
  const size_t num_tokens = size_t{cache.unit_tokens()} + cache.lookahead();
  std::vector<UnitRecord> units;
  std::vector<uint32_t> ends;  // [units]: tokens
  uint64_t before = checksum64(identity);
  for (uint32_t number = 0; number < head.num_units; ++number) {
    const auto bad = [&](const char* what) { return damaged(fmt::format("unit {}: {}", number, what)); };
    UnitRecord unit;
    if (rest.size() < sizeof(unit.head)) return bad("cut short");
    std::memcpy(&unit.head, rest.data(), sizeof(unit.head));
    const uint64_t fixed = sizeof(unit.head) + num_tokens * sizeof(int32_t);
    if (rest.size() < fixed || unit.head.salt_bytes > rest.size() - fixed ||
        unit.head.block_bytes > rest.size() - fixed - unit.head.salt_bytes)
      return bad("cut short");
    const size_t bytes = fixed + unit.head.salt_bytes + unit.head.block_bytes;
    before = checksum64(rest.subspan(kChecksumBytes, bytes - kChecksumBytes), before);
    if (before != unit.head.checksum) return bad("its checksum is wrong");
    if (unit.head.parent != UINT32_MAX && unit.head.parent >= number)
      return bad("it stands before its parent");
    const std::byte* at = rest.data() + sizeof(unit.head);
    unit.salt = {reinterpret_cast<const char*>(at), unit.head.salt_bytes};
    unit.tokens.resize(num_tokens);
    std::memcpy(unit.tokens.data(), at + unit.head.salt_bytes, num_tokens * sizeof(int32_t));
    unit.blocks = rest.subspan(bytes - unit.head.block_bytes, unit.head.block_bytes);
    ends.push_back((unit.head.parent == UINT32_MAX ? 0 : ends[unit.head.parent]) + cache.unit_tokens());
    if (unit.head.block_bytes != cache.bytes_of_unit(ends.back(), (unit.head.flags & kResumes) != 0))
      return bad("its blocks have another size");
    units.push_back(std::move(unit));
    rest = rest.subspan(bytes);
  }
  if (!rest.empty()) return damaged("there is more behind its last unit");
  if (before != head.units_checksum) return damaged("its head is of other units");

  PrefixStoreReport report;
  std::vector<std::optional<uint32_t>> taken(units.size());
  for (uint32_t number = 0; number < units.size(); ++number) {
    const UnitRecord& unit = units[number];
    std::optional<uint32_t> parent;
    if (unit.head.parent != UINT32_MAX) {
      parent = taken[unit.head.parent];
      if (!parent) continue;  // there was no room for it
    }
    const bool resumes = (unit.head.flags & kResumes) != 0;
    PrefixCache::View view;
    view.parent = parent;
    const std::string salt(unit.salt);
    view.salt = &salt;
    view.tokens = unit.tokens;
    view.drafted = (unit.head.flags & kDrafted) != 0;
    view.resumes = resumes;
    view.resume_drafted = (unit.head.flags & kResumeDrafted) != 0;
    taken[number] = cache.take_over(view);
    if (!taken[number]) continue;
    // Where there was no room for the point's blocks their bytes are passed over.
    const bool has_point = cache.view(*taken[number]).resumes;
    std::span<const std::byte> bytes = unit.blocks;
    for (uint32_t group = 0; group < cache.pools().num_groups(); ++group) {
      BlockPool& pool = cache.pools().pool(group);
      const bool kept = pool.spec().keeps_all();
      if (!kept && !resumes) continue;
      if (!kept && !has_point) {
        bytes = bytes.subspan(std::as_const(cache).blocks_of(*taken[number], group).size() *
                              pool.spec().bytes_of_all_layers());
        continue;
      }
      for (const int32_t block : std::as_const(cache).blocks_of(*taken[number], group)) {
        for (size_t layer = 0; layer < pool.spec().layers.size(); ++layer) {
          const std::span<std::byte> into = pool.bytes_of(block, layer);
          std::memcpy(into.data(), bytes.data(), into.size());
          bytes = bytes.subspan(into.size());
        }
      }
    }
    ++report.units;
    report.tokens += cache.unit_tokens();
    report.bytes += unit.blocks.size();
  }
  cache.release_taken_over();
  return report;
}

}  // namespace tandem
