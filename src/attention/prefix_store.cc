#include "attention/prefix_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/file.h"

namespace tandem {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'N', 'D', 'M', 'P', 'R', 'E', 'F'};
constexpr uint32_t kVersion = 1;

// [FileHead][identity] then for each unit [UnitHead][salt][tokens][blocks]. Little-endian, packed.
struct FileHead {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t num_units = 0;
  uint64_t identity_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t checksum = 0;  // of the fields before and the identity
};
static_assert(sizeof(FileHead) == 40);

struct UnitHead {
  uint64_t checksum = 0;  // of all behind it up to the next unit; begins with the one before
  uint32_t parent = 0;    // number in the file, UINT32_MAX: none
  uint32_t flags = 0;
  uint64_t salt_bytes = 0, block_bytes = 0;
};
static_assert(sizeof(UnitHead) == 32);
constexpr size_t kChecksumBytes = sizeof(uint64_t);
constexpr uint32_t kDrafted = 1, kResumes = 2, kResumeDrafted = 4;

std::string groups_of(const PrefixCache& cache) {
  std::string text = fmt::format("unit {}+{}\n", cache.unit_tokens(), cache.lookahead());
  const StatePools& pools = cache.pools();
  for (uint32_t group = 0; group < pools.num_groups(); ++group) {
    const StateGroupSpec& spec = pools.pool(group).spec();
    text += fmt::format("group.{} {} tokens of {} bytes, {} retained, layers", spec.name,
                        spec.tokens_per_block, spec.bytes_per_block, spec.retain_tokens);
    for (const uint32_t layer : spec.layers) text += fmt::format(" {}", layer);
    text += fmt::format(", {}\n", dtype_name(spec.dtype));
  }
  return text;
}

std::string identity_of(const PrefixStoreOptions& options, const PrefixCache& cache) {
  return options.identity + groups_of(cache);
}

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

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

uint64_t checksum_of_head(FileHead head, std::string_view identity) {
  head.checksum = 0;
  return checksum64(identity, checksum64(bytes_of(head)));
}

void append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Calls visit(bytes) for each block of the unit, in each layer.
template <class Visit>
void for_each_block(PrefixCache& cache, uint32_t unit, bool resumes, Visit visit) {
  for (uint32_t group = 0; group < cache.pools().num_groups(); ++group) {
    BlockPool& pool = cache.pools().pool(group);
    if (!pool.spec().keeps_all() && !resumes) continue;
    for (const int32_t block : std::as_const(cache).blocks_of(unit, group)) {
      for (size_t layer = 0; layer < pool.spec().layers.size(); ++layer) visit(pool.bytes_of(block, layer));
    }
  }
}

class Writer {
 public:
  explicit Writer(const std::string& place) : place_(place), name_(place + ".writing") {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(place).parent_path(), ignored);
    // Texts of users can be found out from it.
    fd_ = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd_ < 0) error_ = errno;
  }
  ~Writer() {
    if (fd_ >= 0) ::close(fd_);
    if (!moved_) ::unlink(name_.c_str());
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (error_ == 0 && !bytes.empty()) {
      const ssize_t done = ::write(fd_, bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) {
        error_ = done < 0 ? errno : EIO;
      } else {
        bytes = bytes.subspan(static_cast<size_t>(done));
      }
    }
  }
  Status finish() {
    if (error_ == 0 && ::fsync(fd_) != 0) error_ = errno;
    if (error_ == 0 && ::rename(name_.c_str(), place_.c_str()) != 0) error_ = errno;
    if (error_ != 0)
      return make_error(ErrorCode::unavailable,
                        fmt::format("cannot write {}: {}", name_, std::strerror(error_)));
    moved_ = true;
    return {};
  }

 private:
  std::string place_, name_;
  int fd_ = -1, error_ = 0;
  bool moved_ = false;
};

struct UnitRecord {
  UnitHead head;
  std::string_view salt;
  std::vector<int32_t> tokens;
  std::span<const std::byte> blocks;
};

}  // namespace

Result<PrefixStoreReport> save_prefixes(const PrefixStoreOptions& options, PrefixCache& cache) {
  const std::string identity = identity_of(options, cache);
  const size_t token_bytes = size_t{cache.unit_tokens() + cache.lookahead()} * sizeof(int32_t);
  const auto block_bytes = [&](uint32_t unit) {
    uint64_t bytes = 0;
    for_each_block(cache, unit, cache.view(unit).resumes,
                   [&](std::span<std::byte> block) { bytes += block.size(); });
    return bytes;
  };
  FileHead head;
  head.identity_bytes = identity.size();
  head.file_bytes = sizeof(head) + identity.size();
  std::vector<uint32_t> units = cache.units_by_use();
  for (const uint32_t unit : units) {
    const uint64_t more = sizeof(UnitHead) + cache.view(unit).salt->size() + token_bytes + block_bytes(unit);
    if (head.file_bytes + more > options.max_bytes) break;
    head.file_bytes += more;
    ++head.num_units;
  }
  units.resize(head.num_units);
  head.checksum = checksum_of_head(head, identity);

  Writer writer(options.path);
  writer.write(bytes_of(head));
  writer.write(std::as_bytes(std::span(identity)));
  std::unordered_map<uint32_t, uint32_t> numbers;
  std::vector<std::byte> record;
  uint64_t before = head.checksum;
  for (uint32_t number = 0; number < units.size(); ++number) {
    const PrefixCache::View view = cache.view(units[number]);
    UnitHead unit;
    unit.parent = view.parent ? numbers.at(*view.parent) : UINT32_MAX;
    unit.flags = (view.drafted ? kDrafted : 0) | (view.resumes ? kResumes : 0) |
                 (view.resume_drafted ? kResumeDrafted : 0);
    unit.salt_bytes = view.salt->size();
    unit.block_bytes = block_bytes(units[number]);
    numbers.emplace(units[number], number);
    record.clear();
    append(record, bytes_of(unit));
    append(record, std::as_bytes(std::span(*view.salt)));
    append(record, std::as_bytes(view.tokens));
    for_each_block(cache, units[number], view.resumes,
                   [&](std::span<std::byte> block) { append(record, block); });
    before = checksum64(std::span(record).subspan(kChecksumBytes), before);
    std::memcpy(record.data(), &before, kChecksumBytes);
    writer.write(record);
  }
  TANDEM_TRY(writer.finish());
  return PrefixStoreReport{head.num_units, uint64_t{head.num_units} * cache.unit_tokens(), head.file_bytes};
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
  uint64_t before = head.checksum;
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
