// Tokenizer files, and behind a NUL a text; or, with a first byte of 1 to 6, a text for a tokenizer of the
// tests. What loads encodes every text that is UTF-8 and names the byte of every other; pieces decoded one by
// one are the whole.
#include <sys/mman.h>
#include <unistd.h>

#include <array>

#include "fuzzing.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace tandem;
using fuzz::require;

void check(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool special : {false, true}) {
    const auto ids =
        tokenizer.encode(text, {.add_special_tokens = special, .parse_special = special, .max_tokens = 4096});
    if (!ids) {
      require(ids.error().code == ErrorCode::out_of_range || !fuzz::is_utf8(text),
              "what is UTF-8 is encoded");
      continue;
    }
    require(fuzz::is_utf8(text), "what is not UTF-8 is refused");
    require(ids->size() <= 4096, "max_tokens holds");
    const auto whole = tokenizer.decode(*ids);
    require(whole && fuzz::is_utf8(*whole), "what was encoded is decoded");
    IncrementalDecoder decoder(tokenizer);
    std::string pieces;
    for (const int32_t id : *ids) {
      require(id >= 0 && id < tokenizer.vocab_size(), "ids are in the vocabulary");
      if (!special) require(!tokenizer.is_control(id), "text encodes to no control token");
      const auto piece = decoder.push(id);
      require(piece && fuzz::is_utf8(*piece), "pieces are whole characters");
      pieces += *piece;
    }
    pieces += decoder.flush();
    require(pieces == *whole, "the pieces are the whole");
  }
}

const Tokenizer& of_the_tests(size_t which) {
  static const auto made = [] {
    std::array<const char*, 6> names = {"models/arith",
                                        "tests/fixtures/tokenizer/added",
                                        "tests/fixtures/tokenizer/behaviors",
                                        "tests/fixtures/tokenizer/deepseek_v3",
                                        "tests/fixtures/tokenizer/llama3",
                                        "tests/fixtures/tokenizer/mixtral"};
    std::vector<Tokenizer> list;
    for (const char* name : names) {
      auto loaded = Tokenizer::load(std::string(TANDEM_SOURCE_DIR "/") + name);
      require(loaded.has_value(), name);
      list.push_back(std::move(*loaded));
    }
    return list;
  }();
  return made[which % made.size()];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (size > 0 && data[0] >= 1 && data[0] <= 6) {
    check(of_the_tests(data[0] - 1), input.substr(1));
    return 0;
  }
  const auto [file, text] = fuzz::halves(input);
  static const int fd = ::memfd_create("tokenizer.json", MFD_CLOEXEC);
  require(fd >= 0 && ::ftruncate(fd, 0) == 0, "there is a file");
  require(::pwrite(fd, file.data(), file.size(), 0) == static_cast<ssize_t>(file.size()), "it is written");
  const auto loaded = Tokenizer::load("/proc/self/fd/" + std::to_string(fd));
  if (!loaded) {
    require(!loaded.error().message.empty(), "a refusal says why");
    return 0;
  }
  check(*loaded, text.empty() ? "Ein Test: 12345 <s> \xf0\x9f\x91\x8d  \n" : text);
  return 0;
}
