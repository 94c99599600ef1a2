#include "attention/prefix_saver.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "attention/prefix_file.h"

namespace tandem {

using namespace prefix_file;

namespace {

// Bytes that may wait for the disk: what is copied while it hesitates, and no burden beside a KV pool.
constexpr uint64_t kMaxWaitingBytes = uint64_t{64} << 20;

// The disk's turn comes behind every thread that computes.
constexpr int kNice = 10;

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
  // The first bytes of the file, once more.
  void write_head(std::span<const std::byte> bytes) {
    if (error_ == 0 && ::pwrite(fd_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
      error_ = errno;
  }
  bool failed() const { return error_ != 0; }
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

}  // namespace

struct PrefixSaver::Impl {
  explicit Impl(const PrefixStoreOptions& store) : options(store), thread([this] { run(); }) {}
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = dropped = true;
    }
    changed.notify_all();
    thread.join();
  }

  // ---- the cache's thread ----

  // A unit as it stands in the file, but for its checksum.
  std::vector<std::byte> record_of(PrefixCache& cache, uint32_t unit, const PrefixCache::View& view) const {
    UnitHead head;
    head.parent = view.parent ? numbers.at(*view.parent) : UINT32_MAX;
    head.flags = (view.drafted ? kDrafted : 0) | (view.resumes ? kResumes : 0) |
                 (view.resume_drafted ? kResumeDrafted : 0);
    head.salt_bytes = view.salt->size();
    for_each_block(cache, unit, view.resumes,
                   [&](std::span<std::byte> block) { head.block_bytes += block.size(); });
    std::vector<std::byte> record(sizeof(head) + head.salt_bytes + view.tokens.size_bytes() +
                                  head.block_bytes);
    size_t end = 0;
    const auto append = [&](std::span<const std::byte> bytes) {
      std::ranges::copy(bytes, record.begin() + static_cast<std::ptrdiff_t>(end));
      end += bytes.size();
    };
    append(bytes_of(head));
    append(std::as_bytes(std::span(*view.salt)));
    append(std::as_bytes(view.tokens));
    for_each_block(cache, unit, view.resumes, [&](std::span<std::byte> block) { append(block); });
    return record;
  }

  // False: the file is as long as it may be.
  bool copy_unit(PrefixCache& cache, uint64_t serial, uint64_t& bytes) {
    const auto unit = cache.unit_of_serial(serial);
    if (!unit) return true;
    const PrefixCache::View view = cache.view(*unit);
    if (view.parent) {
      const auto parent = numbers.find(*view.parent);
      // The number of one that has gone may be another's now.
      if (parent == numbers.end() || copied[parent->second] != cache.serial(*view.parent)) return true;
    }
    std::vector<std::byte> record = record_of(cache, *unit, view);
    if (file_bytes + record.size() > options.max_bytes) return false;
    file_bytes += record.size();
    bytes += record.size();
    numbers[*unit] = static_cast<uint32_t>(copied.size());
    copied.push_back(serial);
    {
      const std::lock_guard lock(mutex);
      waiting_bytes += record.size();
      records.push_back(std::move(record));
    }
    changed.notify_all();
    return true;
  }

  // ---- the writing thread ----

  void run() {
    pthread_setname_np(pthread_self(), "tandem-prefix");
    // Of this thread alone, on Linux. Without the right to it the thread is as good as others.
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stopping || writing; });
      if (stopping) return;
      lock.unlock();
      Result<PrefixStoreReport> done = write_file();
      lock.lock();
      records.clear();
      waiting_bytes = 0;
      if (!dropped) result = std::move(done);
      writing = dropped = false;
      changed.notify_all();
    }
  }

  Result<PrefixStoreReport> write_file() {
    Writer writer(options.path);
    FileHead head;
    head.identity_bytes = identity.size();
    head.file_bytes = sizeof(head) + identity.size();
    writer.write(bytes_of(head));  // its place
    writer.write(std::as_bytes(std::span(identity)));
    head.units_checksum = checksum64(identity);
    while (true) {
      std::vector<std::byte> record;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return dropped || complete || !records.empty(); });
        if (dropped) return make_error(ErrorCode::cancelled, "dropped");
        if (records.empty()) break;
        record = std::move(records.front());
        records.pop_front();
        waiting_bytes -= record.size();
        if (writer.failed()) continue;
      }
      changed.notify_all();  // there is room again
      head.units_checksum = checksum64(std::span(record).subspan(kChecksumBytes), head.units_checksum);
      std::memcpy(record.data(), &head.units_checksum, kChecksumBytes);
      writer.write(record);
      head.file_bytes += record.size();
      ++head.num_units;
    }
    head.checksum = checksum_of_head(head, identity);
    writer.write_head(bytes_of(head));
    TANDEM_TRY(writer.finish());
    return PrefixStoreReport{head.num_units, uint64_t{head.num_units} * unit_tokens, head.file_bytes};
  }

  const PrefixStoreOptions options;

  // The cache's thread.
  std::vector<uint64_t> serials;                   // of the units to copy, none before its parent
  size_t next = 0;                                 // of serials
  std::vector<uint64_t> copied;                    // [units of the file]: serials
  std::unordered_map<uint32_t, uint32_t> numbers;  // unit -> number in the file
  uint64_t file_bytes = 0;

  // Set before `writing`, and then the writing thread's.
  std::string identity;
  uint32_t unit_tokens = 0;

  std::mutex mutex;  // for what follows
  std::condition_variable changed;
  bool writing = false, complete = false, dropped = false, stopping = false;
  std::deque<std::vector<std::byte>> records;
  uint64_t waiting_bytes = 0;
  std::optional<Result<PrefixStoreReport>> result;
  std::thread thread;  // last: it uses all of the above
};

PrefixSaver::PrefixSaver(const PrefixStoreOptions& options) : impl_(std::make_unique<Impl>(options)) {}
PrefixSaver::~PrefixSaver() = default;

bool PrefixSaver::busy() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->writing || impl_->result.has_value();
}

void PrefixSaver::begin(PrefixCache& cache) {
  Impl& impl = *impl_;
  impl.serials.clear();
  for (const uint32_t unit : cache.units_by_use()) impl.serials.push_back(cache.serial(unit));
  impl.next = 0;
  impl.copied.clear();
  impl.numbers.clear();
  impl.identity = identity_of(impl.options, cache);
  impl.unit_tokens = cache.unit_tokens();
  impl.file_bytes = sizeof(FileHead) + impl.identity.size();
  {
    const std::lock_guard lock(impl.mutex);
    impl.writing = true;
    impl.complete = false;
  }
  impl.changed.notify_all();
}

bool PrefixSaver::copy(PrefixCache& cache, uint64_t bytes) {
  Impl& impl = *impl_;
  {
    const std::lock_guard lock(impl.mutex);
    if (!impl.writing || impl.complete || impl.waiting_bytes >= kMaxWaitingBytes) return false;
  }
  bool room = true;
  for (uint64_t done = 0; room && done < bytes && impl.next < impl.serials.size(); ++impl.next)
    room = impl.copy_unit(cache, impl.serials[impl.next], done);
  if (room && impl.next < impl.serials.size()) return true;
  {
    const std::lock_guard lock(impl.mutex);
    impl.complete = true;
  }
  impl.changed.notify_all();
  return false;
}

std::optional<Result<PrefixStoreReport>> PrefixSaver::take_result() {
  const std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->result, std::nullopt);
}

void PrefixSaver::cancel() {
  std::unique_lock lock(impl_->mutex);
  if (impl_->writing) {
    impl_->dropped = true;
    impl_->changed.notify_all();
    impl_->changed.wait(lock, [this] { return !impl_->writing; });
  }
  impl_->result.reset();
}

Result<PrefixStoreReport> PrefixSaver::save(PrefixCache& cache) {
  cancel();
  begin(cache);
  while (true) {
    while (copy(cache, kMaxWaitingBytes)) continue;
    std::unique_lock lock(impl_->mutex);
    impl_->changed.wait(lock, [this] {
      return impl_->result || (!impl_->complete && impl_->waiting_bytes < kMaxWaitingBytes);
    });
    if (impl_->result) return *std::exchange(impl_->result, std::nullopt);
  }
}

}  // namespace tandem
