#include "tokenizer/tokenizer_file.h"

#include <fmt/format.h>
#include <algorithm>

#include "tokenizer/json_field.h"
#include "tokenizer/unicode.h"

namespace tandem {
namespace {

using nlohmann::json;

// Ids index tables; the largest known vocabulary has some 260,000 tokens.
constexpr int64_t kMaxTokenId = (1 << 24) - 1;
constexpr int kMaxNesting = 8;  // Sequence inside Sequence; real files nest 1 deep

Result<json> parse_json(const std::string& text, const std::string& path) {
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    return make_error(ErrorCode::data_loss, fmt::format("{}: not valid JSON: {}", path, error.what()));
  }
}

Result<std::string> type_of(const JsonField& field) {
  TANDEM_TRY(field.object());
  return field.at("type").string();
}

// A pattern is {"String": "..."} or {"Regex": "..."}.
Result<std::string> literal_pattern(const JsonField& field) {
  TANDEM_TRY(field.object());
  if (field.at("String").is_null()) return field.refuse("only a \"String\" pattern is supported here");
  TANDEM_ASSIGN(std::string text, field.at("String").string());
  size_t offset = 0;
  if (!text.empty()) next_codepoint(text, offset);
  if (text.empty() || offset != text.size())
    return field.refuse("only a pattern of one character is supported here");
  return text;
}

Status read_model(const JsonField& model, TokenizerFile& out) {
  TANDEM_TRY(model.object());
  // Old files leave the type out; vocab and merges then say that it is BPE.
  if (!model.at("type").is_null()) {
    TANDEM_ASSIGN(const std::string type, model.at("type").string());
    if (type != "BPE")
      return model.at("type").refuse(fmt::format("\"{}\" is not supported, only \"BPE\" is", type));
  }
  const JsonField dropout = model.at("dropout");
  if (!dropout.is_null() && !(dropout.value().is_number() && dropout.value().get<double>() == 0)) {
    return dropout.refuse("dropout at inference is not supported; set it to null");
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonField field = model.at(name);
    if (field.is_null()) continue;
    TANDEM_ASSIGN(const std::string text, field.string());
    if (!text.empty())
      return field.refuse(fmt::format("\"{}\" is not supported, only null or \"\" is", text));
  }
  TANDEM_ASSIGN(out.bpe.ignore_merges, model.at("ignore_merges").boolean(false));
  TANDEM_ASSIGN(out.bpe.byte_fallback, model.at("byte_fallback").boolean(false));
  TANDEM_ASSIGN(out.bpe.fuse_unknown, model.at("fuse_unk").boolean(false));
  if (!model.at("unk_token").is_null()) {
    TANDEM_ASSIGN(out.bpe.unknown, model.at("unk_token").string());
  }

  const JsonField vocab = model.at("vocab");
  TANDEM_TRY(vocab.object());
  out.vocabulary.reserve(vocab.value().size());
  for (const auto& [token, id] : vocab.value().items()) {
    if (!id.is_number_integer() || id < 0 || id > kMaxTokenId) {
      return vocab.bad(fmt::format("the id of \"{}\" is {} and must be an integer in [0, {}]", token,
                                   id.dump(), kMaxTokenId));
    }
    out.vocabulary.emplace(token, id.get<int32_t>());
  }
  if (out.vocabulary.empty()) return vocab.bad("is empty");

  const JsonField merges = model.at("merges");
  TANDEM_TRY(merges.array());
  out.merges.reserve(merges.value().size());
  for (size_t i = 0; i < merges.value().size(); ++i) {
    const json& merge = merges.value()[i];
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        return merges.element(i).bad(fmt::format("\"{}\" must be two tokens with one space between", text));
      }
      out.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      out.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      return merges.element(i).bad("must be \"a b\" or [\"a\", \"b\"]");
    }
  }
  return {};
}

Status read_normalizer(const JsonField& field, int depth, std::vector<NormalizerStep>& steps) {
  if (field.is_null()) return {};
  TANDEM_ASSIGN(const std::string type, type_of(field));
  if (type == "NFC") {
    steps.push_back({NormalizerStep::Kind::nfc, {}, {}});
    return {};
  }
  if (type == "Prepend") {
    TANDEM_ASSIGN(std::string text, field.at("prepend").string());
    steps.push_back({NormalizerStep::Kind::prepend, {}, std::move(text)});
    return {};
  }
  if (type == "Replace") {
    TANDEM_ASSIGN(std::string pattern, literal_pattern(field.at("pattern")));
    TANDEM_ASSIGN(std::string content, field.at("content").string());
    steps.push_back({NormalizerStep::Kind::replace, std::move(pattern), std::move(content)});
    return {};
  }
  if (type == "Sequence" && depth < kMaxNesting) {
    const JsonField list = field.at("normalizers");
    TANDEM_TRY(list.array());
    for (size_t i = 0; i < list.value().size(); ++i)
      TANDEM_TRY(read_normalizer(list.element(i), depth + 1, steps));
    return {};
  }
  return field.at("type").refuse(
      fmt::format("normalizer \"{}\" is not supported; NFC, Prepend, Replace and Sequence are", type));
}

// Digits are the characters of category N; the reference asks another table here, one of Unicode 17, which
// has 13 more.
constexpr std::string_view kDigit = "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]";
// The pattern behind ByteLevel's use_regex: GPT-2's.
constexpr std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

Result<PreTokenizerStep> regex_step(const JsonField& field, std::string_view pattern) {
  PreTokenizerStep step;
  auto regex = Regex::compile(pattern);
  if (!regex) return field.wrap(regex.error());
  step.regex = std::move(*regex);
  return step;
}

Status read_split(const JsonField& field, std::vector<PreTokenizerStep>& steps) {
  PreTokenizerStep step;
  const JsonField pattern = field.at("pattern");
  TANDEM_TRY(pattern.object());
  if (!pattern.at("Regex").is_null()) {
    TANDEM_ASSIGN(const std::string text, pattern.at("Regex").string());
    TANDEM_ASSIGN(step, regex_step(pattern, text));
  } else {
    TANDEM_ASSIGN(const std::string text, pattern.at("String").string());
    if (text.empty()) return pattern.bad("\"String\" is empty");
    auto regex = Regex::literal(text);
    if (!regex) return pattern.wrap(regex.error());
    step.regex = std::move(*regex);
  }
  TANDEM_ASSIGN(step.invert, field.at("invert").boolean(false));
  TANDEM_ASSIGN(const std::string behavior, field.at("behavior").string());
  if (behavior == "Isolated") {
    step.behavior = SplitBehavior::isolated;
  } else if (behavior == "Removed") {
    step.behavior = SplitBehavior::removed;
  } else if (behavior == "MergedWithPrevious") {
    step.behavior = SplitBehavior::merged_with_previous;
  } else if (behavior == "MergedWithNext") {
    step.behavior = SplitBehavior::merged_with_next;
  } else if (behavior == "Contiguous") {
    step.behavior = SplitBehavior::contiguous;
  } else {
    return field.at("behavior").refuse(fmt::format("\"{}\" is not supported", behavior));
  }
  steps.push_back(std::move(step));
  return {};
}

Status read_metaspace(const JsonField& field, std::vector<PreTokenizerStep>& steps) {
  PreTokenizerStep step;
  TANDEM_ASSIGN(const std::string replacement, field.at("replacement").string());
  size_t offset = 0;
  if (!replacement.empty()) next_codepoint(replacement, offset);
  if (replacement.empty() || offset != replacement.size())
    return field.at("replacement").bad("must be one character");
  auto regex = Regex::literal(replacement);
  if (!regex) return field.wrap(regex.error());
  step.regex = std::move(*regex);
  step.kind = PreTokenizerStep::Kind::metaspace;
  step.replacement = replacement;
  TANDEM_ASSIGN(step.cut, field.at("split").boolean(true));
  std::string scheme;
  if (field.at("prepend_scheme").is_null()) {
    TANDEM_ASSIGN(const bool add, field.at("add_prefix_space").boolean(true));
    scheme = add ? "always" : "never";
  } else {
    TANDEM_ASSIGN(scheme, field.at("prepend_scheme").string());
  }
  if (scheme == "always") {
    step.prepend = PreTokenizerStep::Prepend::always;
  } else if (scheme == "first") {
    step.prepend = PreTokenizerStep::Prepend::first;
  } else if (scheme == "never") {
    step.prepend = PreTokenizerStep::Prepend::never;
  } else {
    return field.at("prepend_scheme").bad(fmt::format("\"{}\" must be always, first or never", scheme));
  }
  steps.push_back(std::move(step));
  return {};
}

Status read_pre_tokenizer(const JsonField& field, int depth, TokenizerFile& out) {
  if (field.is_null()) return {};
  TANDEM_ASSIGN(const std::string type, type_of(field));
  if (out.bpe.byte_level) {
    return field.refuse(
        fmt::format("\"{}\" behind ByteLevel is not supported; ByteLevel must be the last step", type));
  }
  if (type == "Sequence" && depth < kMaxNesting) {
    const JsonField list = field.at("pretokenizers");
    TANDEM_TRY(list.array());
    for (size_t i = 0; i < list.value().size(); ++i)
      TANDEM_TRY(read_pre_tokenizer(list.element(i), depth + 1, out));
    return {};
  }
  if (type == "ByteLevel") {
    TANDEM_ASSIGN(const bool prefix, field.at("add_prefix_space").boolean(true));
    TANDEM_ASSIGN(const bool use_regex, field.at("use_regex").boolean(true));
    if (prefix) {
      PreTokenizerStep step;
      step.kind = PreTokenizerStep::Kind::prefix_space;
      out.pre_tokenizer.push_back(std::move(step));
    }
    if (use_regex) {
      TANDEM_ASSIGN(PreTokenizerStep step, regex_step(field, kGpt2Pattern));
      out.pre_tokenizer.push_back(std::move(step));
    }
    out.bpe.byte_level = true;
    return {};
  }
  if (type == "Split") return read_split(field, out.pre_tokenizer);
  if (type == "Metaspace") return read_metaspace(field, out.pre_tokenizer);
  if (type == "Digits") {
    TANDEM_ASSIGN(const bool individual, field.at("individual_digits").boolean(false));
    TANDEM_ASSIGN(PreTokenizerStep step, regex_step(field, kDigit));
    step.behavior = individual ? SplitBehavior::isolated : SplitBehavior::contiguous;
    out.pre_tokenizer.push_back(std::move(step));
    return {};
  }
  return field.at("type").refuse(fmt::format(
      "pre_tokenizer \"{}\" is not supported; ByteLevel, Split, Digits, Metaspace and Sequence are", type));
}

Status read_decoder(const JsonField& field, int depth, bool& fused, DecoderSpec& out) {
  TANDEM_ASSIGN(const std::string type, type_of(field));
  const auto out_of_order = [&] {
    return field.refuse(fmt::format("\"{}\" behind Fuse or Strip is not supported", type));
  };
  if (type == "ByteLevel" && depth == 0) {
    out.byte_level = true;
    return {};
  }
  out.byte_level = false;
  if (type == "Sequence" && depth < kMaxNesting) {
    const JsonField list = field.at("decoders");
    TANDEM_TRY(list.array());
    if (list.value().size() == 1) return read_decoder(list.element(0), depth, fused, out);
    for (size_t i = 0; i < list.value().size(); ++i)
      TANDEM_TRY(read_decoder(list.element(i), depth + 1, fused, out));
    return {};
  }
  if (type == "Replace") {
    if (fused || out.byte_fallback) return out_of_order();
    TANDEM_ASSIGN(std::string pattern, literal_pattern(field.at("pattern")));
    TANDEM_ASSIGN(std::string content, field.at("content").string());
    out.replace.emplace_back(std::move(pattern), std::move(content));
    return {};
  }
  if (type == "ByteFallback") {
    if (fused) return out_of_order();
    out.byte_fallback = true;
    return {};
  }
  if (type == "Fuse") {
    fused = true;
    return {};
  }
  if (type == "Strip") {
    TANDEM_ASSIGN(const std::string content, field.at("content").string());
    TANDEM_ASSIGN(const int64_t start, field.at("start").integer(0, 1024));
    TANDEM_ASSIGN(const int64_t stop, field.at("stop").integer(0, 1024));
    if (content != " " || stop != 0 || !fused || out.strip_start != 0) {
      return field.refuse("only a Strip of spaces at the start, behind Fuse, is supported");
    }
    out.strip_start = static_cast<size_t>(start);
    return {};
  }
  if (type == "Metaspace" && depth == 0) {
    TANDEM_ASSIGN(std::string replacement, field.at("replacement").string());
    if (replacement.empty()) return field.at("replacement").bad("is empty");
    out.replace.emplace_back(std::move(replacement), " ");
    const JsonField scheme = field.at("prepend_scheme");
    out.strip_start = scheme.value().is_string() && scheme.value() == "never" ? 0 : 1;
    return {};
  }
  return field.at("type").refuse(
      fmt::format("decoder \"{}\" is not supported here; ByteLevel, Metaspace and a Sequence "
                  "of Replace, ByteFallback, Fuse and Strip are",
                  type));
}

Status read_template(const JsonField& field, TokenizerFile& out) {
  const JsonField single = field.at("single");
  const JsonField tokens = field.at("special_tokens");
  TANDEM_TRY(single.array());
  TANDEM_TRY(tokens.object());
  bool behind = false;
  for (size_t i = 0; i < single.value().size(); ++i) {
    const JsonField piece = single.element(i);
    TANDEM_TRY(piece.object());
    if (!piece.at("Sequence").is_null()) {
      if (behind) return piece.refuse("a template that repeats the sequence is not supported");
      behind = true;
      continue;
    }
    TANDEM_TRY(piece.at("SpecialToken").object());
    TANDEM_ASSIGN(const std::string name, piece.at("SpecialToken").at("id").string());
    const JsonField ids = tokens.at(name).at("ids");
    TANDEM_TRY(ids.array());
    for (size_t k = 0; k < ids.value().size(); ++k) {
      TANDEM_ASSIGN(const int64_t id, ids.element(k).integer(0, kMaxTokenId));
      (behind ? out.suffix : out.prefix).push_back(static_cast<int32_t>(id));
    }
  }
  if (!behind) return single.bad("has no {\"Sequence\": ...}");
  return {};
}

Status read_post_processor(const JsonField& field, int depth, TokenizerFile& out) {
  if (field.is_null()) return {};
  TANDEM_ASSIGN(const std::string type, type_of(field));
  if (type == "ByteLevel") return {};  // only moves offsets
  if (type == "TemplateProcessing") {
    if (!out.prefix.empty() || !out.suffix.empty())
      return field.refuse("two TemplateProcessing steps are not supported");
    return read_template(field, out);
  }
  if (type == "Sequence" && depth < kMaxNesting) {
    const JsonField list = field.at("processors");
    TANDEM_TRY(list.array());
    for (size_t i = 0; i < list.value().size(); ++i)
      TANDEM_TRY(read_post_processor(list.element(i), depth + 1, out));
    return {};
  }
  return field.at("type").refuse(fmt::format(
      "post_processor \"{}\" is not supported; ByteLevel, TemplateProcessing and Sequence are", type));
}

Status read_added_tokens(const JsonField& list, std::vector<AddedToken>& out) {
  if (list.is_null()) return {};
  TANDEM_TRY(list.array());
  for (size_t i = 0; i < list.value().size(); ++i) {
    const JsonField field = list.element(i);
    TANDEM_TRY(field.object());
    AddedToken token;
    TANDEM_ASSIGN(const int64_t id, field.at("id").integer(0, kMaxTokenId));
    token.id = static_cast<int32_t>(id);
    TANDEM_ASSIGN(token.content, field.at("content").string());
    if (token.content.empty()) return field.at("content").bad("is empty");
    TANDEM_ASSIGN(token.special, field.at("special").boolean(false));
    TANDEM_ASSIGN(token.single_word, field.at("single_word").boolean(false));
    TANDEM_ASSIGN(token.lstrip, field.at("lstrip").boolean(false));
    TANDEM_ASSIGN(token.rstrip, field.at("rstrip").boolean(false));
    TANDEM_ASSIGN(token.normalized, field.at("normalized").boolean(!token.special));
    const std::string& text = token.content;
    token.control = token.special || (text.front() == '<' && text.back() == '>') ||
                    (text.front() == '[' && text.back() == ']') || text.find("\uFF5C") != std::string::npos;
    out.push_back(std::move(token));
  }
  return {};
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_file(const std::string& text, const std::string& path) {
  TANDEM_ASSIGN(const json document, parse_json(text, path));
  const JsonField root(document, path, "");
  TANDEM_TRY(root.object());
  TokenizerFile out;
  TANDEM_TRY(read_model(root.at("model"), out));
  TANDEM_TRY(read_normalizer(root.at("normalizer"), 0, out.normalizer));
  out.bpe.byte_level = false;
  TANDEM_TRY(read_pre_tokenizer(root.at("pre_tokenizer"), 0, out));
  bool fused = false;
  if (root.at("decoder").is_null()) {
    return root.at("decoder").refuse(
        "null would join tokens with spaces and is not supported; give ByteLevel or a Sequence");
  }
  TANDEM_TRY(read_decoder(root.at("decoder"), 0, fused, out.decoder));
  TANDEM_TRY(read_post_processor(root.at("post_processor"), 0, out));
  TANDEM_TRY(read_added_tokens(root.at("added_tokens"), out.added_tokens));
  if (out.bpe.byte_level != out.decoder.byte_level) {
    return root.at("decoder").refuse("pre_tokenizer and decoder must both be ByteLevel, or neither");
  }
  return out;
}

Result<TokenizerConfig> parse_tokenizer_config(const std::string& text, const std::string& path) {
  TANDEM_ASSIGN(const json document, parse_json(text, path));
  const JsonField root(document, path, "");
  TANDEM_TRY(root.object());
  TokenizerConfig out;
  const auto token = [&](const char* name) -> Result<std::optional<std::string>> {
    const JsonField field = root.at(name);
    if (field.is_null()) return std::nullopt;
    TANDEM_ASSIGN(std::string content,
                  field.value().is_object() ? field.at("content").string() : field.string());
    return content;
  };
  const auto flag = [&](const char* name) -> Result<std::optional<bool>> {
    if (root.at(name).is_null()) return std::nullopt;
    TANDEM_ASSIGN(const bool value, root.at(name).boolean());
    return value;
  };
  TANDEM_ASSIGN(out.bos_token, token("bos_token"));
  TANDEM_ASSIGN(out.eos_token, token("eos_token"));
  TANDEM_ASSIGN(out.add_bos_token, flag("add_bos_token"));
  TANDEM_ASSIGN(out.add_eos_token, flag("add_eos_token"));
  if (!root.at("tokenizer_class").is_null()) {
    TANDEM_ASSIGN(out.tokenizer_class, root.at("tokenizer_class").string());
  }
  return out;
}

}  // namespace tandem
