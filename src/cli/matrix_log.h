// MatrixLog: the JSONL file of a matrix run, by which a long run is taken up again: a first line that says
// what was run, then a line a cell, written as it ends. One thread.
#pragma once

#include <fstream>
#include <map>
#include <string>

#include "cli/matrix_report.h"

namespace tandem {

class MatrixLog {
 public:
  // Reads what `path` has and appends from then on; an empty path: nothing is read or written. `identity`
  // (model, build, expected hash) must be the file's own. An error: another run's file, or one that cannot be
  // written.
  static Result<MatrixLog> open(const std::string& path, const std::string& identity);

  // What the file already knows of a cell and need not be run again: equal or refused. Null: run it.
  const CellResult* known(const std::string& cell) const;
  void write(const std::string& cell, const CellResult& result);

 private:
  std::map<std::string, CellResult> known_;
  std::ofstream file_;
};

}  // namespace tandem
