// Files: whole reads with a limit, and read-only mappings. Errors name the path and what the system said.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace tandem {

// The whole file; refused above `limit_bytes` before any memory is taken.
Result<std::string> read_file(const std::string& path, size_t limit_bytes);

bool file_exists(const std::string& path);

// A read-only mapping of a regular file. The bytes live as long as the object. An empty file has an empty
// span.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, bytes_}; }

  // The pages of [offset, offset + bytes) leave this process's memory; a later read fetches them again. For a
  // loader that has copied what it read.
  void drop_pages(size_t offset, size_t bytes) const;
  // All of it will be read soon: the system may begin to fetch it.
  void will_need() const;

 private:
  const std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tandem
