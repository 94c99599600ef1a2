// SafetensorsWriter: writes small .safetensors files, for tests. It writes what it is told: a lie in the
// header is the caller's to tell (raw_safetensors).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class SafetensorsWriter {
 public:
  // `dtype` as the file spells it ("BF16"). The bytes are copied. Tensors lie in the order of these calls.
  void add(std::string name, std::string dtype, std::vector<uint64_t> shape,
           std::span<const std::byte> bytes);
  void add_f32(std::string name, std::vector<uint64_t> shape, std::span<const float> values);
  void add_bf16(std::string name, std::vector<uint64_t> shape, std::span<const float> values);

  // The whole file. `header_padding` blanks follow the header, so that the data may start at any address.
  std::string bytes(size_t header_padding = 0) const;
  // False when the file cannot be written.
  bool write(const std::string& path, size_t header_padding = 0) const;

 private:
  struct Entry {
    std::string name, dtype;
    std::vector<uint64_t> shape;
    size_t begin, end;
  };
  std::vector<Entry> entries_;
  std::string data_;
};

// Length prefix, header text, data.
std::string raw_safetensors(std::string_view header, std::string_view data);

bool write_text_file(const std::string& path, std::string_view text);

}  // namespace tandem
