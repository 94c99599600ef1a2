// MatrixReport: what `tandem eval matrix` found, as a table for a person and as JSON. A value.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/matrix_design.h"

namespace tandem {

enum class CellState : uint8_t {
  not_run,  // pruned
  refused,  // by the validator, or at the start by name: not a failure
  equal,    // every prompt, batched and one by one, has the colocated logits' bits
  different,
  failed,  // a request or a rank ended with an error
};
const char* cell_state_name(CellState state);
// Nothing when there is no such state.
CellState parse_cell_state(const std::string& name);

struct CellResult {
  CellState state = CellState::not_run;
  std::string detail;  // the refusal, the first difference, the error
  double seconds = 0;
};

struct MatrixReport {
  std::string model;
  std::string build;        // build_stamp()
  std::string logits_hash;  // of the colocated run, all prompts
  size_t prompts = 0;
  bool full = false;
  double seconds = 0;
  std::vector<MatrixCell> cells;       // the whole product of matrix_axes()
  std::vector<CellResult> results;     // of each cell
  std::vector<std::string> uncovered;  // supported pairs (or values) that no cell that ran has

  size_t count(CellState state) const;
  // Something ran, and all that ran is equal.
  bool passed() const;
  std::string table() const;
  std::string json() const;
};

}  // namespace tandem
