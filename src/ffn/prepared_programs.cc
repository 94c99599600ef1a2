#include "ffn/prepared_programs.h"

#include <algorithm>

namespace tandem {

Result<PreparedPrograms> PreparedPrograms::create(const SplitSettings& settings, ExchangeLinks* exchange) {
  PreparedPrograms prepared;
  if (!settings.graph) return prepared;
  for (const uint32_t size : settings.capture_sizes) {
    PreparedProgram program;
    program.size = size;
    TANDEM_ASSIGN(program.batch, TileBatch::create(settings, size, exchange));
    prepared.programs_.push_back(std::move(program));
  }
  return prepared;
}

PreparedPrograms::Choice PreparedPrograms::choose(std::span<const uint32_t> words, uint32_t rows) {
  if (std::ranges::find(words, 0u) != words.end()) return {};
  const auto known = [&](uint32_t word) {
    return std::ranges::any_of(programs_, [word](const PreparedProgram& one) { return one.size == word; });
  };
  const auto fits =
      std::ranges::find_if(programs_, [rows](const PreparedProgram& one) { return one.size >= rows; });
  if (fits == programs_.end() || !std::ranges::all_of(words, known)) return {Verdict::miss, nullptr};
  return {Verdict::replay, &*fits};
}

}  // namespace tandem
