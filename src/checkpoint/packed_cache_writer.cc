// write_packed_cache (declared in packed_cache.h).
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/checksum.h"
#include "checkpoint/packed_cache.h"

namespace tandem {
namespace {

std::unexpected<Error> system_error(const std::string& what, int error) {
  const ErrorCode code = error == ENOSPC || error == EDQUOT || error == EFBIG ? ErrorCode::resource_exhausted
                                                                              : ErrorCode::unavailable;
  return make_error(code, fmt::format("{}: {}", what, std::strerror(error)));
}

// The file that is being written, under a name of its own and a lock. Everybody who writes the same weights
// uses the same name, so that a crash leaves at most one such file, and the next writer begins it again. Gone
// with the object unless it was moved into place.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(const std::string& place) : place_(place), name_(place + ".writing") {}
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;
  ~UnfinishedFile() {
    if (mine_) ::unlink(name_.c_str());
    if (fd_ >= 0) ::close(fd_);
  }

  // False: another process has it.
  Result<bool> begin() {
    fd_ = ::open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) return system_error("cannot write " + name_, errno);
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return false;
      return system_error("cannot lock " + name_, errno);
    }
    // Whoever had the lock before may have moved this very file into its place meanwhile.
    struct stat opened{}, named{};
    if (::fstat(fd_, &opened) != 0) return system_error("cannot look at " + name_, errno);
    if (::stat(name_.c_str(), &named) != 0 || opened.st_ino != named.st_ino || opened.st_dev != named.st_dev)
      return false;
    mine_ = true;
    if (::ftruncate(fd_, 0) != 0) return system_error("cannot write " + name_, errno);
    return true;
  }

  // So that a full disk shows before anything was written. File systems that cannot are asked as it grows.
  Status reserve(uint64_t bytes) {
    if (::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0) return {};
    if (errno != EOPNOTSUPP && errno != ENOSYS)
      return system_error(fmt::format("no {} bytes for {}", bytes, place_), errno);
    if (::ftruncate(fd_, static_cast<off_t>(bytes)) == 0) return {};
    return system_error("cannot write " + name_, errno);
  }

  // 0, or an errno.
  int write(uint64_t offset, const void* data, size_t bytes) const {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t done = ::pwrite(fd_, from, bytes, static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return done < 0 ? errno : EIO;
      from += done;
      offset += static_cast<uint64_t>(done);
      bytes -= static_cast<size_t>(done);
    }
    return 0;
  }

  // Not synced: should the machine lose power now, the checksums find what was lost.
  Status finish() {
    if (::rename(name_.c_str(), place_.c_str()) != 0) return system_error("cannot make " + place_, errno);
    mine_ = false;
    return {};
  }

 private:
  const std::string place_, name_;
  int fd_ = -1;
  bool mine_ = false;
};

// Parts in the order of the file, to be found by offset.
class PartsInOrder {
 public:
  PartsInOrder(const PackedCacheLayout& layout, std::span<const PackedCachePart> parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].bytes != 0) placed_.push_back({layout.entries()[i].offset, parts[i].bytes, parts[i].data});
    }
    std::ranges::sort(placed_, {}, &Placed::begin);
  }

  // out: bytes [begin, begin + size) of the file, zero where no part lies.
  void gather(uint64_t begin, std::span<std::byte> out) const {
    std::ranges::fill(out, std::byte{0});
    const uint64_t end = begin + out.size();
    auto at = std::ranges::upper_bound(placed_, begin, {}, [](const Placed& p) { return p.begin + p.bytes; });
    for (; at != placed_.end() && at->begin < end; ++at) {
      const uint64_t from = std::max(begin, at->begin), to = std::min(end, at->begin + at->bytes);
      std::memcpy(out.data() + (from - begin), at->data + (from - at->begin), to - from);
    }
  }

 private:
  struct Placed {
    uint64_t begin = 0, bytes = 0;
    const std::byte* data = nullptr;
  };
  std::vector<Placed> placed_;
};

}  // namespace

Result<bool> write_packed_cache(const PackedCacheKey& key, std::span<const PackedCachePart> parts,
                                ThreadPool& pool) {
  const PackedCacheLayout layout(parts);
  UnfinishedFile file(key.path);
  TANDEM_ASSIGN(const bool mine, file.begin());
  if (!mine) return false;
  TANDEM_TRY(file.reserve(layout.file_bytes()));

  std::vector<std::byte> head(layout.body_begin());
  const PartsInOrder ordered(layout, parts);
  std::vector<std::vector<std::byte>> scratch(static_cast<size_t>(pool.threads()),
                                              std::vector<std::byte>(kPackedCacheBlock));
  std::atomic<int> error{0};
  pool.run(layout.num_blocks(), [&](size_t block, int worker) {
    if (error.load(std::memory_order_relaxed) != 0) return;
    std::vector<std::byte>& bytes = scratch[static_cast<size_t>(worker)];
    ordered.gather(layout.block_begin(block), bytes);
    const uint64_t checksum = checksum64(bytes);
    std::memcpy(head.data() + layout.checksums_begin() + block * sizeof checksum, &checksum, sizeof checksum);
    if (const int failed = file.write(layout.block_begin(block), bytes.data(), bytes.size()); failed != 0)
      error.store(failed);
  });

  std::memcpy(head.data() + layout.entries_begin(), layout.entries().data(), layout.entries().size_bytes());
  PackedCachePrefix prefix;
  prefix.num_parts = static_cast<uint32_t>(parts.size());
  prefix.checkpoint = key.checkpoint;
  prefix.contents = key.contents;
  prefix.file_bytes = layout.file_bytes();
  prefix.table_checksum = checksum64(std::span(head).subspan(layout.entries_begin()));
  std::memcpy(head.data(), &prefix, sizeof prefix);
  prefix.prefix_checksum =
      checksum64(std::span<const std::byte>(head).first(offsetof(PackedCachePrefix, prefix_checksum)));
  std::memcpy(head.data(), &prefix, sizeof prefix);
  if (error.load() == 0) error.store(file.write(0, head.data(), head.size()));
  if (error.load() != 0) return system_error("cannot write " + key.path, error.load());
  TANDEM_TRY(file.finish());
  return true;
}

}  // namespace tandem
