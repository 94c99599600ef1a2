// CodedRows: rows of a weight as a checkpoint stores them, codes and scales apart, for packing. Values; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem {

struct CodedRows {
  // [rows, code_stride bytes]: e4m3 and int8 one column a byte; e2m1 two columns a byte, the even one in the
  // low four bits. int8: -128 does not occur.
  const std::byte* codes = nullptr;
  size_t code_stride = 0;
  // [rows, scale_stride]: fp8_block float32, mxfp4 and mxfp8 e8m0 (byte b is 2^(b - 127)); one for each scale
  // block that the columns touch. int8: float32, one a row.
  const void* scales = nullptr;
  size_t scale_stride = 0;  // elements
};

// Why rows cannot be packed as they are. All are weights that no quantiser makes.
enum class PackFault : uint8_t {
  none,
  nan_code,   // an e4m3 NaN
  bad_scale,  // NaN or infinite
  spread,     // scales of one row that differ by more than 2^64: the running sum could leave float32
};
std::string_view pack_fault_text(PackFault fault);  // "has a scale that is NaN or infinite"

}  // namespace tandem
