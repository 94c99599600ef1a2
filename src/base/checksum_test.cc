#include "base/checksum.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

// Values of the reference implementation, of bytes i * 7 + 3: every path of lengths and a seed.
TEST(Checksum, IsXxh64) {
  struct Case {
    size_t length;
    uint64_t seed, hash;
  };
  for (const Case& c : {Case{0, 0, 0xef46db3751d8e999}, Case{1, 0, 0x1f25c8d0bc1f4bb6},
                        Case{7, 0, 0x9a7b149959ce60d8}, Case{31, 1, 0xaaca4e41ffcae21c},
                        Case{32, 0, 0x23c3c17ef790fd97}, Case{33, 2654435761, 0x72cdd3262f467933},
                        Case{100, 0, 0xa61f8d4c170fe531}, Case{1000, 7, 0xd08998cfe209c750}}) {
    std::vector<std::byte> bytes(c.length);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + 3);
    EXPECT_EQ(checksum64(bytes, c.seed), c.hash) << c.length;
  }
}

}  // namespace
}  // namespace tandem
