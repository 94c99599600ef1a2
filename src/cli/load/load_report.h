// What `bench serving` says: a table for people, JSON for programs, a page with charts, a line a request.
// Values in, text out.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/load/metrics.h"

namespace tandem {

struct LoadReport {
  std::string url, path, model;
  std::string started;                                    // UTC
  std::vector<std::pair<std::string, std::string>> load;  // what was asked for: name, value
  bool has_rate = false, is_streamed = true;
  LoadSummary summary;

  std::string text() const;
  std::string json() const;
  // One file, with nothing from elsewhere.
  std::string html(std::span<const LoadRecord> records) const;
};

std::string record_line(const LoadRecord& record);  // JSON, without the line's end

}  // namespace tandem
