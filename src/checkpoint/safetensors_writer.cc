#include "checkpoint/safetensors_writer.h"

#include <fmt/core.h>

#include <cstring>
#include <fstream>
#include <utility>

#include "base/bf16.h"
#include "checkpoint/safetensors.h"

namespace tandem {

void SafetensorsWriter::add(std::string name, std::string dtype, std::vector<uint64_t> shape,
                            std::span<const std::byte> bytes) {
  const size_t begin = data_.size();
  data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  entries_.push_back({std::move(name), std::move(dtype), std::move(shape), begin, data_.size()});
}

void SafetensorsWriter::add_f32(std::string name, std::vector<uint64_t> shape,
                                std::span<const float> values) {
  add(std::move(name), "F32", std::move(shape), std::as_bytes(values));
}

void SafetensorsWriter::add_bf16(std::string name, std::vector<uint64_t> shape,
                                 std::span<const float> values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(to_bf16(value).bits);
  add(std::move(name), "BF16", std::move(shape), std::as_bytes(std::span(bits)));
}

std::string SafetensorsWriter::bytes(size_t header_padding) const {
  std::string header = "{";
  for (const Entry& entry : entries_) {
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                          header.size() == 1 ? "" : ",", entry.name, entry.dtype, shape_text(entry.shape),
                          entry.begin, entry.end);
  }
  return raw_safetensors(header + "}" + std::string(header_padding, ' '), data_);
}

bool SafetensorsWriter::write(const std::string& path, size_t header_padding) const {
  return write_text_file(path, bytes(header_padding));
}

std::string raw_safetensors(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  file += header;
  file += data;
  return file;
}

bool write_text_file(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  return !out.fail();
}

}  // namespace tandem
