#include "tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/unicode.h"

namespace tandem {
namespace {

// The largest known tokenizer.json has some 35 MB; JSON takes several times its text while it is read.
constexpr size_t kMaxFileBytes = size_t{256} << 20;
// Offsets and symbols of a piece are 32-bit; a prompt of this size is beyond any context.
constexpr size_t kMaxTextBytes = size_t{256} << 20;
// NFC makes at most 3 bytes of 9 (three Hangul letters to one syllable).
constexpr size_t kNfcShrink = 3;

struct Token {
  std::string text;   // as the vocabulary writes it
  std::string bytes;  // what it stands for
  bool present = false;
  bool special = false;
  bool control = false;
};

// What a token stands for, before spaces are stripped at the start of the text.
std::string decode_token(const std::string& text, const DecoderSpec& spec) {
  if (spec.byte_level) return alphabet_to_bytes(text).value_or(text);
  if (spec.byte_fallback && text.size() == 6 && text.starts_with("<0x") && text.back() == '>') {
    const auto hex = [](char c) {
      return c >= '0' && c <= '9'                     ? c - '0'
             : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                      : -1;
    };
    if (hex(text[3]) >= 0 && hex(text[4]) >= 0)
      return std::string(1, static_cast<char>(hex(text[3]) * 16 + hex(text[4])));
  }
  std::string out = text;
  for (const auto& [pattern, content] : spec.replace) {
    for (size_t at = out.find(pattern); at != std::string::npos;
         at = out.find(pattern, at + content.size())) {
      out.replace(at, pattern.size(), content);
    }
  }
  return out;
}

// Whether NFC of what ends before `c` and of what begins with it can be taken apart: `c` combines with
// nothing before it.
bool starts_sequence(char32_t c) {
  if (c < 0x300) return true;
  if ((c >= 0x1160 && c <= 0x11FF) || (c >= 0xD7B0 && c <= 0xD7FF)) return false;  // Hangul vowels and finals
  const Category category = general_category(c);
  return category != Category::Mn && category != Category::Mc && category != Category::Me;
}

bool overlaps(std::span<const TextRange> ranges, size_t begin, size_t end) {
  const auto range =
      std::partition_point(ranges.begin(), ranges.end(), [&](const TextRange& r) { return r.end <= begin; });
  return range != ranges.end() && range->begin < end;
}

}  // namespace

struct Tokenizer::State {
  std::vector<Token> tokens;  // by id
  std::vector<AddedToken> added;
  AddedTokenFinder raw_finder, normalized_finder;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  std::vector<int32_t> prefix, suffix;
  std::optional<int32_t> bos, eos;
  size_t strip_start = 0;
  size_t bytes_per_token = 0;  // no token of a text takes more bytes of it; 0: no such bound

  Status build(TokenizerFile file);
  Status apply_config(const TokenizerConfig& config, const std::string& path);
  std::optional<int32_t> id_of(std::string_view token) const;
  Result<const Token*> token(int32_t id) const;

  Status encode_raw_gap(std::string_view text, size_t offset, const EncodeOptions& options,
                        std::vector<int32_t>& out) const;
  Status encode_pieces(std::string_view text, bool at_start, const EncodeOptions& options,
                       std::vector<int32_t>& out) const;
  static Status check_limit(const EncodeOptions& options, const std::vector<int32_t>& out);
};

Status Tokenizer::State::build(TokenizerFile file) {
  const auto place = [&](int32_t id, const std::string& text) -> Token* {
    if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
    Token& slot = tokens[static_cast<size_t>(id)];
    if (slot.present && slot.text != text) return nullptr;
    slot.text = text;
    slot.present = true;
    return &slot;
  };
  for (const auto& [text, id] : file.vocabulary) {
    if (place(id, text) == nullptr) {
      return make_error(ErrorCode::data_loss,
                        fmt::format("model.vocab: two tokens have the id {}, one is \"{}\"", id, text));
    }
  }
  added = std::move(file.added_tokens);
  for (const AddedToken& token : added) {
    const auto known = file.vocabulary.find(token.content);
    Token* slot = known != file.vocabulary.end() && known->second != token.id
                      ? nullptr
                      : place(token.id, token.content);
    if (slot == nullptr) {
      return make_error(
          ErrorCode::data_loss,
          fmt::format("added_tokens: \"{}\" with id {} contradicts model.vocab", token.content, token.id));
    }
    slot->special = token.special;
    slot->control = token.control;
  }
  for (const std::vector<int32_t>* ids : {&file.prefix, &file.suffix}) {
    for (int32_t id : *ids) {
      if (static_cast<size_t>(id) >= tokens.size() || !tokens[static_cast<size_t>(id)].present) {
        return make_error(ErrorCode::data_loss, fmt::format("post_processor: no token has the id {}", id));
      }
    }
  }
  prefix = std::move(file.prefix);
  suffix = std::move(file.suffix);

  normalizer = Normalizer(std::move(file.normalizer));
  std::vector<std::pair<std::string, const AddedToken*>> raw;
  std::vector<std::pair<std::string, const AddedToken*>> normalized;
  for (const AddedToken& token : added) {
    if (token.normalized) {
      normalized.emplace_back(normalizer.apply(token.content), &token);
    } else {
      raw.emplace_back(token.content, &token);
    }
  }
  raw_finder = AddedTokenFinder(raw);
  normalized_finder = AddedTokenFinder(normalized);

  strip_start = file.decoder.strip_start;
  size_t longest = 1;
  for (Token& token : tokens) {
    if (!token.present) continue;
    token.bytes = decode_token(token.text, file.decoder);
    longest = std::max({longest, token.bytes.size(), token.text.size()});
  }
  const bool swallows =
      std::any_of(added.begin(), added.end(),
                  [](const AddedToken& token) { return token.lstrip || token.rstrip; }) ||
      std::any_of(file.pre_tokenizer.begin(), file.pre_tokenizer.end(),
                  [](const PreTokenizerStep& step) { return step.behavior == SplitBehavior::removed; }) ||
      file.bpe.fuse_unknown;
  bytes_per_token = swallows ? 0 : longest * (normalizer.can_shrink() ? kNfcShrink : 1);

  pre_tokenizer = PreTokenizer(std::move(file.pre_tokenizer));
  TANDEM_ASSIGN(bpe, Bpe::build(std::move(file.vocabulary), file.merges, file.bpe));
  if (!prefix.empty() && tokens[static_cast<size_t>(prefix[0])].special) bos = prefix[0];
  return {};
}

Status Tokenizer::State::apply_config(const TokenizerConfig& config, const std::string& path) {
  const auto resolve = [&](const char* field, const std::optional<std::string>& text,
                           std::optional<int32_t>& id) -> Status {
    if (!text) return {};
    id = id_of(*text);
    if (!id) {
      return make_error(ErrorCode::data_loss,
                        fmt::format("{}: {}: \"{}\" is not a token of tokenizer.json", path, field, *text));
    }
    return {};
  };
  TANDEM_TRY(resolve("bos_token", config.bos_token, bos));
  TANDEM_TRY(resolve("eos_token", config.eos_token, eos));
  // Llama's class builds its post-processor from these flags; elsewhere "false" only repeats what
  // tokenizer.json says.
  const bool llama = config.tokenizer_class.starts_with("LlamaTokenizer");
  const auto around = [&](std::optional<bool> wanted, std::optional<int32_t> id, std::vector<int32_t>& ids) {
    if (!wanted || !id) return;
    const bool there = std::find(ids.begin(), ids.end(), *id) != ids.end();
    if (*wanted && !there) ids.insert(ids.begin(), *id);
    if (!*wanted && there && llama) std::erase(ids, *id);
  };
  around(config.add_bos_token, bos, prefix);
  around(config.add_eos_token, eos, suffix);
  return {};
}

std::optional<int32_t> Tokenizer::State::id_of(std::string_view token) const {
  for (const AddedToken& entry : added) {
    if (entry.content == token) return entry.id;
  }
  const auto found = bpe.vocabulary().find(token);
  if (found == bpe.vocabulary().end()) return std::nullopt;
  return found->second;
}

Result<const Token*> Tokenizer::State::token(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens.size() || !tokens[static_cast<size_t>(id)].present) {
    return make_error(ErrorCode::out_of_range,
                      fmt::format("token id {} has no token; ids are in [0, {})", id, tokens.size()));
  }
  return &tokens[static_cast<size_t>(id)];
}

Status Tokenizer::State::check_limit(const EncodeOptions& options, const std::vector<int32_t>& out) {
  if (out.size() <= options.max_tokens) return {};
  return make_error(
      ErrorCode::out_of_range,
      fmt::format("the text has more than {} tokens, the limit here; shorten it", options.max_tokens));
}

Status Tokenizer::State::encode_pieces(std::string_view text, bool at_start, const EncodeOptions& options,
                                       std::vector<int32_t>& out) const {
  TANDEM_ASSIGN(const PreTokenizer::Pieces pieces, pre_tokenizer.split(text, at_start));
  size_t begin = 0;
  for (size_t end : pieces.ends) {
    bpe.encode(std::string_view(pieces.text).substr(begin, end - begin), out);
    begin = end;
    TANDEM_TRY(check_limit(options, out));
  }
  return {};
}

// Text between added tokens of the raw kind: normalised, and searched for those of the normalised kind.
Status Tokenizer::State::encode_raw_gap(std::string_view text, size_t offset, const EncodeOptions& options,
                                        std::vector<int32_t>& out) const {
  std::string normalized;
  std::vector<TextRange> plain;  // plain ranges, moved to `normalized`
  std::vector<TextRange> here;   // and to `text`
  for (const TextRange& range : options.plain_ranges) {
    if (range.end <= offset || range.begin >= offset + text.size()) continue;
    here.push_back(
        {std::max(range.begin, offset) - offset, std::min(range.end, offset + text.size()) - offset});
  }
  if (normalizer.identity()) {
    plain = std::move(here);
  } else {
    // Cutting at the borders of plain ranges keeps track of them; a border between characters that combine
    // moves on.
    normalized = normalizer.prefix();
    size_t done = 0;
    const auto cut = [&](size_t at) {
      at = std::max(at, done);
      for (size_t next = at; at < text.size() && !starts_sequence(next_codepoint(text, next));) at = next;
      normalized += normalizer.apply_body(text.substr(done, at - done));
      done = at;
      return normalized.size();
    };
    for (const TextRange& range : here) {
      const size_t begin = cut(range.begin);
      plain.push_back({begin, cut(range.end)});
    }
    normalized += normalizer.apply_body(text.substr(done));
    text = normalized;
  }
  const auto accept = [&](const AddedToken& token, size_t begin, size_t end) {
    return !token.control || (options.parse_special && !overlaps(plain, begin, end));
  };
  size_t done = 0;
  for (const AddedTokenFinder::Found& found : normalized_finder.find(text, accept)) {
    if (done < found.begin) {
      TANDEM_TRY(
          encode_pieces(text.substr(done, found.begin - done), offset == 0 && done == 0, options, out));
    }
    out.push_back(found.token->id);
    TANDEM_TRY(check_limit(options, out));
    done = found.end;
  }
  if (done < text.size())
    TANDEM_TRY(encode_pieces(text.substr(done), offset == 0 && done == 0, options, out));
  return {};
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(path, ignored);
  const std::string file_path = folder ? path + "/tokenizer.json" : path;
  TANDEM_ASSIGN(const std::string text, read_file(file_path, kMaxFileBytes));
  TANDEM_ASSIGN(TokenizerFile file, parse_tokenizer_file(text, file_path));
  auto state = std::make_unique<State>();
  if (auto built = state->build(std::move(file)); !built) {
    return make_error(built.error().code, fmt::format("{}: {}", file_path, built.error().message));
  }
  const std::string config_path = path + "/tokenizer_config.json";
  if (folder && file_exists(config_path)) {
    TANDEM_ASSIGN(const std::string config_text, read_file(config_path, kMaxFileBytes));
    TANDEM_ASSIGN(const TokenizerConfig config, parse_tokenizer_config(config_text, config_path));
    TANDEM_TRY(state->apply_config(config, config_path));
  }
  return Tokenizer(std::move(state));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const State& state = *state_;
  if (text.size() > kMaxTextBytes) {
    return make_error(ErrorCode::out_of_range,
                      fmt::format("the text has {} bytes, the limit is {}", text.size(), kMaxTextBytes));
  }
  if (state.bytes_per_token != 0 && text.size() / state.bytes_per_token > options.max_tokens) {
    return make_error(
        ErrorCode::out_of_range,
        fmt::format(
            "the text has {} bytes, which is certainly more than {} tokens, the limit here; shorten it",
            text.size(), options.max_tokens));
  }
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    return make_error(ErrorCode::invalid_argument, fmt::format("the text is not UTF-8 at byte {}", bad));
  }
  std::vector<int32_t> out;
  if (options.add_special_tokens) out = state.prefix;
  const auto accept = [&](const AddedToken& token, size_t begin, size_t end) {
    return !token.control || (options.parse_special && !overlaps(options.plain_ranges, begin, end));
  };
  size_t done = 0;
  for (const AddedTokenFinder::Found& found : state.raw_finder.find(text, accept)) {
    if (done < found.begin) {
      TANDEM_TRY(state.encode_raw_gap(text.substr(done, found.begin - done), done, options, out));
    }
    out.push_back(found.token->id);
    TANDEM_TRY(State::check_limit(options, out));
    done = found.end;
  }
  if (done < text.size()) TANDEM_TRY(state.encode_raw_gap(text.substr(done), done, options, out));
  if (options.add_special_tokens) out.insert(out.end(), state.suffix.begin(), state.suffix.end());
  TANDEM_TRY(State::check_limit(options, out));
  return out;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (int32_t id : ids) {
    TANDEM_ASSIGN(const Token* token, state_->token(id));
    if (!(skip_special && token->special)) bytes += token->bytes;
  }
  size_t strip = 0;
  while (strip < state_->strip_start && strip < bytes.size() && bytes[strip] == ' ') ++strip;
  return replace_invalid_utf8(std::string_view(bytes).substr(strip));
}

Result<std::string> Tokenizer::token_bytes(int32_t id) const {
  TANDEM_ASSIGN(const Token* token, state_->token(id));
  return token->bytes;
}

Result<std::string> Tokenizer::token_text(int32_t id) const {
  TANDEM_ASSIGN(const Token* token, state_->token(id));
  return token->text;
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  return state_->id_of(token);
}

bool Tokenizer::is_special(int32_t id) const {
  const auto token = state_->token(id);
  return token && (*token)->special;
}

bool Tokenizer::is_control(int32_t id) const {
  const auto token = state_->token(id);
  return token && (*token)->control;
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(state_->tokens.size());
}
std::optional<int32_t> Tokenizer::bos_id() const {
  return state_->bos;
}
std::optional<int32_t> Tokenizer::eos_id() const {
  return state_->eos;
}

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special), strip_left_(tokenizer.state_->strip_start) {}

Result<std::string> IncrementalDecoder::push(int32_t id) {
  TANDEM_ASSIGN(const Token* token, tokenizer_.state_->token(id));
  if (skip_special_ && token->special) return std::string();
  std::string_view bytes = token->bytes;
  while (strip_left_ > 0 && !bytes.empty()) {
    if (bytes[0] != ' ') {
      strip_left_ = 0;
      break;
    }
    bytes.remove_prefix(1);
    --strip_left_;
  }
  tail_ += bytes;
  const size_t keep = incomplete_utf8_suffix(tail_);
  std::string text = replace_invalid_utf8(std::string_view(tail_).substr(0, tail_.size() - keep));
  tail_.erase(0, tail_.size() - keep);
  return text;
}

std::string IncrementalDecoder::flush() {
  std::string text = replace_invalid_utf8(tail_);
  tail_.clear();
  strip_left_ = tokenizer_.state_->strip_start;
  return text;
}

}  // namespace tandem
