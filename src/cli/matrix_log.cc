#include "cli/matrix_log.h"

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace tandem {

using Json = nlohmann::ordered_json;

Result<MatrixLog> MatrixLog::open(const std::string& path, const std::string& identity) {
  MatrixLog log;
  if (path.empty()) return log;
  bool is_new = true;
  bool ends_in_a_line = true;
  if (file_exists(path)) {
    std::ifstream file(path);
    std::string line;
    for (size_t number = 1; std::getline(file, line); ++number) {
      // A run that was killed may have left half a line behind.
      ends_in_a_line = !file.eof();
      const Json json = Json::parse(line, nullptr, false);
      if (number == 1) {
        is_new = false;
        const std::string theirs = json.is_object() ? json.value("matrix", "") : "";
        if (theirs != identity)
          return make_error(ErrorCode::invalid_argument, "eval.output: " + path + " is of another run (" +
                                                             (theirs.empty() ? "no matrix" : theirs) +
                                                             ", this is " + identity +
                                                             "); name another file or remove it");
        continue;
      }
      if (!json.is_object() || !json.contains("cell")) continue;
      log.known_[json.value("cell", "")] = {parse_cell_state(json.value("state", "")),
                                            json.value("detail", ""), json.value("seconds", 0.0)};
    }
  }
  log.file_.open(path, std::ios::app);
  if (!log.file_) return make_error(ErrorCode::invalid_argument, "eval.output: cannot write " + path);
  if (is_new) log.file_ << Json{{"matrix", identity}}.dump() << std::endl;
  if (!ends_in_a_line) log.file_ << std::endl;
  return log;
}

const CellResult* MatrixLog::known(const std::string& cell) const {
  const auto found = known_.find(cell);
  if (found == known_.end()) return nullptr;
  const CellState state = found->second.state;
  return state == CellState::equal || state == CellState::refused ? &found->second : nullptr;
}

void MatrixLog::write(const std::string& cell, const CellResult& result) {
  if (!file_.is_open()) return;
  Json json = {{"cell", cell}, {"state", cell_state_name(result.state)}, {"seconds", result.seconds}};
  if (!result.detail.empty()) json["detail"] = result.detail;
  file_ << json.dump() << std::endl;  // flushed: what has been run is kept when the next cell is killed
}

}  // namespace tandem
