// Tagged fields: tag u16 | flags u16 (bit 0: must be understood) | bytes u32 | value, little-endian, one
// behind the other. The writer leaves out what has its default; the reader skips what it does not know and
// may skip.
#pragma once

#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "transport/little_endian.h"

namespace tandem {

template <class T>
concept WireNumber = std::is_arithmetic_v<T>;

template <size_t bytes>
using WireWord = std::conditional_t<
    bytes == 1, uint8_t,
    std::conditional_t<bytes == 2, uint16_t, std::conditional_t<bytes == 4, uint32_t, uint64_t>>>;

template <WireNumber T>
void store_number(std::byte* at, T value) {
  store_little_endian(at, std::bit_cast<WireWord<sizeof(T)>>(value));
}
template <WireNumber T>
T load_number(const std::byte* at) {
  return std::bit_cast<T>(load_little_endian<WireWord<sizeof(T)>>(at));
}

struct TaggedField {
  static constexpr size_t kHeadBytes = 8;
  static constexpr uint16_t kMustBeUnderstood = 1;
  uint16_t tag = 0, flags = 0;
  std::span<const std::byte> value;

  // invalid_argument: of another size.
  template <WireNumber T>
  Status read(T& into) const {
    if (value.size() != sizeof(T)) return wrong_size();
    into = load_number<T>(value.data());
    return {};
  }
  Status read(bool& into) const {
    uint8_t byte = 0;
    TANDEM_TRY(read(byte));
    into = byte != 0;
    return {};
  }
  template <WireNumber T>
  Status read(std::vector<T>& into) const {
    if (value.size() % sizeof(T) != 0) return wrong_size();
    into.resize(value.size() / sizeof(T));
    for (size_t i = 0; i < into.size(); ++i) into[i] = load_number<T>(value.data() + i * sizeof(T));
    return {};
  }
  Status read(std::string& into) const {
    into.assign(reinterpret_cast<const char*>(value.data()), value.size());
    return {};
  }
  Status wrong_size() const {
    return make_error(ErrorCode::invalid_argument,
                      "field " + std::to_string(tag) + " has " + std::to_string(value.size()) + " bytes");
  }
};

class FieldWriter {
 public:
  void put(uint16_t tag, std::span<const std::byte> value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + TaggedField::kHeadBytes + value.size());
    store_number<uint16_t>(&bytes_[at], tag);
    store_number<uint16_t>(&bytes_[at + 2], TaggedField::kMustBeUnderstood);
    store_number<uint32_t>(&bytes_[at + 4], static_cast<uint32_t>(value.size()));
    if (!value.empty()) std::memcpy(&bytes_[at + TaggedField::kHeadBytes], value.data(), value.size());
  }
  template <WireNumber T>
  void number(uint16_t tag, T value, T otherwise = T{}) {
    if (value == otherwise) return;
    std::byte bytes[sizeof(T)];
    store_number(bytes, value);
    put(tag, bytes);
  }
  void boolean(uint16_t tag, bool value) { number<uint8_t>(tag, value ? 1 : 0); }
  template <WireNumber T>
  void numbers(uint16_t tag, const std::vector<T>& values) {
    if (values.empty()) return;
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    for (size_t i = 0; i < values.size(); ++i) store_number(&bytes[i * sizeof(T)], values[i]);
    put(tag, bytes);
  }
  void text(uint16_t tag, std::string_view value) {
    if (!value.empty()) put(tag, std::as_bytes(std::span(value)));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Calls `known(field)` for each: false when it does not know the tag.
template <class Known>
Status read_fields(std::span<const std::byte> bytes, const char* what, Known&& known) {
  while (!bytes.empty()) {
    if (bytes.size() < TaggedField::kHeadBytes)
      return make_error(ErrorCode::data_loss, std::string(what) + " ends inside a field");
    TaggedField field;
    field.tag = load_number<uint16_t>(bytes.data());
    field.flags = load_number<uint16_t>(bytes.data() + 2);
    const auto size = load_number<uint32_t>(bytes.data() + 4);
    bytes = bytes.subspan(TaggedField::kHeadBytes);
    if (size > bytes.size())
      return make_error(ErrorCode::data_loss,
                        std::string(what) + ": field " + std::to_string(field.tag) + " goes beyond the end");
    field.value = bytes.first(size);
    bytes = bytes.subspan(size);
    const Result<bool> understood = known(field);
    if (!understood)
      return make_error(understood.error().code, std::string(what) + ": " + understood.error().message);
    if (!*understood && (field.flags & TaggedField::kMustBeUnderstood) != 0) {
      return make_error(ErrorCode::unsupported, std::string(what) + ": field " + std::to_string(field.tag) +
                                                    " must be understood and is not known; run the same "
                                                    "release on both sides");
    }
  }
  return {};
}

// For the callbacks of read_fields: the field is known, and into this.
template <class T>
Result<bool> take(const TaggedField& field, T& into) {
  TANDEM_TRY(field.read(into));
  return true;
}

inline ErrorCode code_of(uint8_t value) {
  return value <= static_cast<uint8_t>(ErrorCode::internal) ? static_cast<ErrorCode>(value)
                                                            : ErrorCode::internal;
}

}  // namespace tandem
