// The lines of a trace file that are spans of one rank's threads, and their names. Not for anybody but
// trace_file.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/trace_ring.h"
#include "cli/trace_file.h"

namespace tandem {

// What every line with a time begins with.
inline constexpr std::string_view kTimedLine = R"({"ts":)";

// "decode", "prefill", ...: a RowClass.
const char* row_class_name(uint8_t row_class);

// Calls `line` with one JSON object after another, those of a thread in the order of their begin.
using OnLine = std::function<void(const std::string& line)>;
void write_spans(const TraceRing& ring, const TraceWindow& window, const TracedRank& rank,
                 const OnLine& line);

}  // namespace tandem
