#include "checkpoint/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>

#include "checkpoint/strict_json.h"

namespace tandem {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors data is little-endian and is read in place");

constexpr std::array<std::pair<std::string_view, DType>, 17> kDTypes = {{
    {"F32", DType::f32},
    {"BF16", DType::bf16},
    {"F16", DType::f16},
    {"F64", DType::f64},
    {"F8_E4M3", DType::f8_e4m3},
    {"F8_E5M2", DType::f8_e5m2},
    {"F8_E8M0", DType::f8_e8m0},
    {"I8", DType::i8},
    {"U8", DType::u8},
    {"I16", DType::i16},
    {"U16", DType::u16},
    {"I32", DType::i32},
    {"U32", DType::u32},
    {"I64", DType::i64},
    {"U64", DType::u64},
    {"BOOL", DType::boolean},
    {"F4", DType::f4_e2m1},
}};

DType dtype_from_safetensors(std::string_view name) {
  for (const auto& [text, dtype] : kDTypes) {
    if (text == name) return dtype;
  }
  return DType::none;
}

// Walks the header as it is read, so that a duplicate key is seen and nothing is built that the format does
// not know. States: outside, in the top object, in __metadata__, in a tensor, in its shape, in its offsets.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<TensorInfo> tensors;
  std::string problem;  // what is wrong, without the file's name

  bool null() override { return bad_value("null"); }
  bool boolean(bool) override { return bad_value("a boolean"); }
  bool number_integer(number_integer_t value) override { return bad_value(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return bad_value(text); }
  bool binary(binary_t&) override { return bad_value("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::shape) {
      if (current_.shape.size() == kMaxTensorRank) {
        return fail(fmt::format("has more than {} dimensions", kMaxTensorRank));
      }
      current_.shape.push_back(value);
      return true;
    }
    if (state_ == State::offsets) {
      if (offsets_ == 2) return fail("has more than two data_offsets");
      (offsets_++ == 0 ? current_.begin : current_.end) = value;
      return true;
    }
    return bad_value(std::to_string(value));
  }

  bool string(string_t& value) override {
    if (state_ == State::metadata) return true;
    if (state_ == State::tensor && key_ == "dtype") {
      current_.dtype_name = value;
      current_.dtype = dtype_from_safetensors(value);
      return true;
    }
    return bad_value("the text '" + printable(value) + "'");
  }

  bool start_object(size_t) override {
    switch (state_) {
      case State::outside:
        state_ = State::top;
        return true;
      case State::top:
        if (key_ == "__metadata__") {
          state_ = State::metadata;
          seen_metadata_.clear();
        } else {
          state_ = State::tensor;
          current_ = TensorInfo{};
          current_.name = key_;
          has_dtype_ = has_shape_ = has_offsets_ = false;
        }
        return true;
      default:
        return bad_value("an object");
    }
  }

  bool key(string_t& value) override {
    if (state_ == State::top) {
      if (!names_.insert(value).second) {
        problem = fmt::format("has the tensor '{}' twice in its header", printable(value));
        return false;
      }
    } else if (state_ == State::metadata) {
      if (!seen_metadata_.insert(value).second) {
        problem = fmt::format("has the key '{}' twice in __metadata__", printable(value));
        return false;
      }
    } else {
      bool* seen = value == "dtype"          ? &has_dtype_
                   : value == "shape"        ? &has_shape_
                   : value == "data_offsets" ? &has_offsets_
                                             : nullptr;
      if (seen == nullptr) return fail("has the unknown key '" + printable(value) + "'");
      if (*seen) return fail("has '" + value + "' twice");
      *seen = true;
    }
    key_ = value;
    return true;
  }

  bool end_object() override {
    if (state_ == State::tensor) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_) {
        return fail(fmt::format("has no '{}'", !has_dtype_   ? "dtype"
                                               : !has_shape_ ? "shape"
                                                             : "data_offsets"));
      }
      tensors.push_back(std::move(current_));
      state_ = State::top;
    } else {
      state_ = state_ == State::metadata ? State::top : State::outside;
    }
    return true;
  }

  bool start_array(size_t) override {
    if (state_ == State::tensor && key_ == "shape") {
      state_ = State::shape;
    } else if (state_ == State::tensor && key_ == "data_offsets") {
      state_ = State::offsets;
      offsets_ = 0;
    } else {
      return bad_value("a list");
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::offsets && offsets_ != 2) return fail("needs two data_offsets");
    state_ = State::tensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
    problem =
        fmt::format("has a header that is not valid JSON (byte {}): {}", position, printable(error.what()));
    return false;
  }

 private:
  enum class State { outside, top, metadata, tensor, shape, offsets };

  bool fail(const std::string& what) {
    problem = fmt::format("tensor '{}' {}", printable(current_.name), what);
    return false;
  }

  bool bad_value(const std::string& what) {
    switch (state_) {
      case State::outside:
        problem = "has a header that is not a JSON object";
        break;
      case State::top:
        problem = fmt::format("header entry '{}' is {}, not an object", printable(key_), what);
        break;
      case State::metadata:
        problem = fmt::format("__metadata__ entry '{}' is {}, not a text", printable(key_), what);
        break;
      case State::tensor:
        return fail(fmt::format("has {} as its {}", what, key_));
      case State::shape:
      case State::offsets:
        return fail(fmt::format("has {} in its {}; only whole numbers from 0 are", what, key_));
    }
    return false;
  }

  State state_ = State::outside;
  std::string key_;
  TensorInfo current_;
  int offsets_ = 0;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::unordered_set<std::string> names_, seen_metadata_;
};

// The bytes that shape and dtype call for; false when they do not fit 64 bits or a whole byte.
bool expected_bytes(const TensorInfo& tensor, uint64_t& bytes) {
  uint64_t count = 1;
  bool empty = false;
  for (const uint64_t dim : tensor.shape) empty = empty || dim == 0;
  for (const uint64_t dim : tensor.shape) {
    if (!empty && __builtin_mul_overflow(count, dim, &count)) return false;
  }
  uint64_t bits = empty ? 0 : count;
  if (__builtin_mul_overflow(bits, uint64_t{dtype_bits(tensor.dtype)}, &bits) || bits % 8 != 0) return false;
  bytes = bits / 8;
  return true;
}

}  // namespace

std::string shape_text(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Result<std::vector<TensorInfo>> parse_safetensors_header(std::span<const std::byte> file,
                                                         const std::string& path) {
  const auto refuse = [&path](const std::string& what) {
    return make_error(ErrorCode::data_loss, path + ": " + what);
  };
  constexpr uint64_t kPrefix = 8;
  if (file.size() < kPrefix) {
    return refuse(
        fmt::format("has {} bytes; a safetensors file starts with a header length of 8", file.size()));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kPrefix);
  if (header_bytes > kMaxHeaderBytes) {
    return refuse(
        fmt::format("claims a header of {} bytes; the format allows {}", header_bytes, kMaxHeaderBytes));
  }
  if (header_bytes > file.size() - kPrefix) {
    return refuse(
        fmt::format("claims a header of {} bytes and has {} after its length: truncated, or not safetensors",
                    header_bytes, file.size() - kPrefix));
  }
  const auto* text = reinterpret_cast<const char*>(file.data() + kPrefix);
  // The format wants the brace first; a JSON parser would let a byte order mark or blanks through.
  if (header_bytes == 0 || text[0] != '{') return refuse("has a header that is not a JSON object");

  HeaderReader reader;
  try {
    if (!nlohmann::json::sax_parse(text, text + header_bytes, &reader)) return refuse(reader.problem);
  } catch (const std::exception& error) {
    return refuse(fmt::format("has a header that cannot be read: {}", printable(error.what())));
  }

  std::vector<TensorInfo> tensors = std::move(reader.tensors);
  const uint64_t data_bytes = file.size() - kPrefix - header_bytes;
  for (TensorInfo& tensor : tensors) {
    const std::string name = printable(tensor.name);
    if (tensor.begin > tensor.end) {
      return refuse(
          fmt::format("tensor '{}' ends at byte {} before it begins at {}", name, tensor.end, tensor.begin));
    }
    if (tensor.end > data_bytes) {
      return refuse(
          fmt::format("tensor '{}' ends at byte {} of {}: the file is truncated or its header is wrong", name,
                      tensor.end, data_bytes));
    }
    if (tensor.dtype == DType::none) continue;
    uint64_t bytes = 0;
    if (!expected_bytes(tensor, bytes)) {
      return refuse(fmt::format("tensor '{}' has the shape {}, which no {} tensor can have", name,
                                shape_text(tensor.shape), tensor.dtype_name));
    }
    if (bytes != tensor.bytes()) {
      return refuse(fmt::format("tensor '{}' has {} bytes, and {} {} calls for {}", name, tensor.bytes(),
                                tensor.dtype_name, shape_text(tensor.shape), bytes));
    }
  }
  std::ranges::sort(tensors, [](const TensorInfo& a, const TensorInfo& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t covered = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorInfo& tensor = tensors[i];
    if (tensor.begin < covered) {
      return refuse(fmt::format("tensors '{}' and '{}' share bytes", printable(tensors[i - 1].name),
                                printable(tensor.name)));
    }
    if (tensor.begin > covered) {
      return refuse(fmt::format("{} bytes before tensor '{}' belong to no tensor", tensor.begin - covered,
                                printable(tensor.name)));
    }
    covered = tensor.end;
    tensor.begin += kPrefix + header_bytes;
    tensor.end += kPrefix + header_bytes;
  }
  if (covered != data_bytes) {
    return refuse(fmt::format("the last {} bytes belong to no tensor", data_bytes - covered));
  }
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  TANDEM_ASSIGN(file.file_, MappedFile::open(path));
  TANDEM_ASSIGN(file.tensors_, parse_safetensors_header(file.file_.bytes(), path));
  return file;
}

}  // namespace tandem
