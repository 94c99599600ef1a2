#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/mapping_watch.h"

namespace tandem {
namespace {

std::unexpected<Error> system_error(const std::string& action, const std::string& path) {
  const ErrorCode code = errno == ENOENT ? ErrorCode::not_found : ErrorCode::unavailable;
  return make_error(code, "cannot " + action + " " + path + ": " + std::strerror(errno));
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

Result<size_t> open_regular(const std::string& path, Descriptor& descriptor) {
  descriptor.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor.fd < 0) return system_error("open", path);
  struct stat status{};
  if (fstat(descriptor.fd, &status) != 0) return system_error("stat", path);
  if (!S_ISREG(status.st_mode))
    return make_error(ErrorCode::invalid_argument, path + " is not a regular file");
  return static_cast<size_t>(status.st_size);
}

}  // namespace

bool file_exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

Result<std::string> read_file(const std::string& path, size_t limit_bytes) {
  Descriptor descriptor;
  TANDEM_ASSIGN(const size_t size, open_regular(path, descriptor));
  if (size > limit_bytes) {
    return make_error(ErrorCode::out_of_range, path + " has " + std::to_string(size) +
                                                   " bytes; the limit is " + std::to_string(limit_bytes));
  }
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(descriptor.fd, text.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("read", path);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  Descriptor descriptor;
  TANDEM_ASSIGN(const size_t size, open_regular(path, descriptor));
  MappedFile file;
  if (size == 0) return file;
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.fd, 0);
  if (data == MAP_FAILED) return system_error("map", path);
  file.data_ = static_cast<const std::byte*>(data);
  file.bytes_ = size;
  watch_mapping(file.data_, size, path);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::drop_pages(size_t offset, size_t bytes) const {
  if (offset >= bytes_ || bytes == 0) return;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t end = offset + std::min(bytes, bytes_ - offset);
  const size_t begin = offset / page * page;
  madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

void MappedFile::will_need() const {
  if (data_ != nullptr) madvise(const_cast<std::byte*>(data_), bytes_, MADV_WILLNEED);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  unwatch_mapping(data_);
  munmap(const_cast<std::byte*>(data_), bytes_);
}

}  // namespace tandem
