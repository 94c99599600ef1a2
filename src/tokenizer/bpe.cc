#include "tokenizer/bpe.h"

#include <fmt/format.h>
#include <bit>
#include <queue>

#include "tokenizer/unicode.h"

namespace tandem {
namespace {

// Up to here a rescan of all pairs for each merge beats the heap's bookkeeping; words of text are nearly all
// shorter.
constexpr size_t kShortPiece = 48;

struct ByteAlphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<int16_t, 0x144> to_byte{};  // the highest character is U+0143

  ByteAlphabet() {
    to_byte.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      of_byte[byte] = printable ? static_cast<char32_t>(byte) : next++;
      to_byte[of_byte[byte]] = static_cast<int16_t>(byte);
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet instance;
  return instance;
}

// C0, C1 and F5 to FF occur in no UTF-8 text; some vocabularies leave them out.
bool occurs_in_utf8(int byte) {
  return byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
}

}  // namespace

std::string byte_to_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (char byte : bytes) append_utf8(out, alphabet().of_byte[static_cast<uint8_t>(byte)]);
  return out;
}

std::optional<std::string> alphabet_to_bytes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t offset = 0; offset < text.size();) {
    const char32_t c = next_codepoint(text, offset);
    if (c >= alphabet().to_byte.size() || alphabet().to_byte[c] < 0) return std::nullopt;
    out += static_cast<char>(alphabet().to_byte[c]);
  }
  return out;
}

void Bpe::MergeTable::reserve(size_t count) {
  const size_t size = std::bit_ceil(count * 2 + 2);
  slots_.assign(size, Slot{});
  shift_ = 64 - std::countr_zero(size);
}

void Bpe::MergeTable::put(int32_t left, int32_t right, Merge merge) {
  const uint64_t key =
      static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  size_t at = index(key);
  while (slots_[at].key != UINT64_MAX && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {key, merge};
}

const Bpe::Merge* Bpe::MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t key =
      static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  size_t at = index(key);
  while (slots_[at].key != key) {
    if (slots_[at].key == UINT64_MAX) return nullptr;
    at = (at + 1) & (slots_.size() - 1);
  }
  return &slots_[at].merge;
}

Result<Bpe> Bpe::build(Vocabulary vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
                       BpeOptions options) {
  Bpe bpe;
  bpe.vocabulary_ = std::move(vocabulary);
  bpe.options_ = std::move(options);
  const auto id_of = [&](std::string_view token) {
    const auto found = bpe.vocabulary_.find(token);
    return found == bpe.vocabulary_.end() ? -1 : found->second;
  };

  bpe.merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const int32_t left_id = id_of(left);
    const int32_t right_id = id_of(right);
    const int32_t result = id_of(left + right);
    if (left_id < 0 || right_id < 0 || result < 0) {
      return make_error(ErrorCode::data_loss,
                        fmt::format("model.merges[{}]: token \"{}\" is not in model.vocab", rank,
                                    left_id < 0    ? left
                                    : right_id < 0 ? right
                                                   : left + right));
    }
    bpe.merges_.put(left_id, right_id, {static_cast<uint32_t>(rank), result});
  }

  if (!bpe.options_.unknown.empty()) {
    bpe.unknown_id_ = id_of(bpe.options_.unknown);
    if (bpe.unknown_id_ < 0) {
      return make_error(ErrorCode::data_loss,
                        fmt::format("model.unk_token: \"{}\" is not in model.vocab", bpe.options_.unknown));
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    const std::string token =
        bpe.options_.byte_level ? byte_to_alphabet({&raw, 1}) : fmt::format("<0x{:02X}>", byte);
    bpe.byte_ids_[byte] = id_of(token);
    const bool needed = bpe.options_.byte_level ? occurs_in_utf8(byte) : bpe.options_.byte_fallback;
    if (needed && bpe.byte_ids_[byte] < 0) {
      return make_error(
          ErrorCode::data_loss,
          fmt::format("model.vocab: no token \"{}\" for byte 0x{:02X}; text with that byte could not be "
                      "encoded",
                      token, byte));
    }
  }
  if (!bpe.options_.byte_level && !bpe.options_.byte_fallback && bpe.unknown_id_ < 0) {
    return make_error(
        ErrorCode::unsupported,
        "model.unk_token: null without byte_fallback and without a ByteLevel pre_tokenizer would drop "
        "unknown characters; give one of the three");
  }
  return bpe;
}

void Bpe::start_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  if (options_.byte_level) {
    symbols.reserve(piece.size());
    for (char byte : piece) symbols.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    return;
  }
  bool previous_unknown = false;
  for (size_t offset = 0; offset < piece.size();) {
    const size_t begin = offset;
    next_codepoint(piece, offset);
    const std::string_view character = piece.substr(begin, offset - begin);
    const auto found = vocabulary_.find(character);
    if (found != vocabulary_.end()) {
      symbols.push_back(found->second);
      previous_unknown = false;
    } else if (options_.byte_fallback) {
      for (char byte : character) symbols.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
      previous_unknown = false;
    } else {
      if (!previous_unknown || !options_.fuse_unknown) symbols.push_back(unknown_id_);
      previous_unknown = true;
    }
  }
}

void Bpe::merge_short(std::vector<int32_t>& symbols) const {
  // pairs[i] is the merge of symbols i and i + 1.
  std::array<const Merge*, kShortPiece> pairs;
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = count;
    uint32_t best_rank = UINT32_MAX;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (pairs[i] != nullptr && pairs[i]->rank < best_rank) {
        best = i;
        best_rank = pairs[i]->rank;
      }
    }
    if (best == count) break;
    symbols[best] = pairs[best]->result;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i] = pairs[i + 1];
    }
    --count;
    if (best > 0) pairs[best - 1] = merges_.find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = merges_.find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

void Bpe::merge_long(std::vector<int32_t>& symbols) const {
  struct Candidate {
    uint32_t rank, position;
    int32_t result;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  const auto size = static_cast<uint32_t>(symbols.size());
  constexpr uint32_t kNone = UINT32_MAX;
  constexpr int32_t kGone = -1;
  std::vector<uint32_t> previous(size);
  std::vector<uint32_t> next(size);
  std::vector<Candidate> heap;
  heap.reserve(size);
  const auto candidate = [&](uint32_t position) -> std::optional<Candidate> {
    if (next[position] == kNone) return std::nullopt;
    const Merge* merge = merges_.find(symbols[position], symbols[next[position]]);
    if (merge == nullptr) return std::nullopt;
    return Candidate{merge->rank, position, merge->result};
  };
  for (uint32_t i = 0; i < size; ++i) {
    previous[i] = i == 0 ? kNone : i - 1;
    next[i] = i + 1 == size ? kNone : i + 1;
  }
  for (uint32_t i = 0; i + 1 < size; ++i) {
    if (const auto found = candidate(i)) heap.push_back(*found);
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>{},
                                                                               std::move(heap));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    if (symbols[top.position] == kGone) continue;
    const auto now = candidate(top.position);
    if (!now || now->result != top.result) continue;  // a neighbour was merged meanwhile
    const uint32_t right = next[top.position];
    symbols[top.position] = top.result;
    symbols[right] = kGone;
    next[top.position] = next[right];
    if (next[right] != kNone) previous[next[right]] = top.position;
    if (const auto behind = candidate(top.position)) queue.push(*behind);
    if (previous[top.position] != kNone) {
      if (const auto before = candidate(previous[top.position])) queue.push(*before);
    }
  }
  std::erase(symbols, kGone);
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out) const {
  if (options_.ignore_merges) {
    const auto found =
        options_.byte_level ? vocabulary_.find(byte_to_alphabet(piece)) : vocabulary_.find(piece);
    if (found != vocabulary_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  std::vector<int32_t> symbols;
  start_symbols(piece, symbols);
  if (symbols.size() <= kShortPiece) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
}

}  // namespace tandem
