// MatrixDesign: the cells of `tandem eval matrix`: the cross product of where and how a model may run, and a
// pruned choice of them. Values come from the settings' own choices, and what goes together from the
// validator: a value that a setting learns enters by itself. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/settings.h"

namespace tandem {

struct MatrixValue {
  std::string label;                                          // "3A2F"
  std::vector<std::pair<std::string, std::string>> settings;  // key and value of each
};

struct MatrixAxis {
  std::string name;
  std::vector<MatrixValue> values;
};

// The value of each axis, as its index.
using MatrixCell = std::vector<uint8_t>;

// connector, exchange, gate, shared, placement, execution, shape, transport.
const std::vector<MatrixAxis>& matrix_axes();
// Of matrix_axes(): the two that the table has as columns; the others make its rows.
inline constexpr size_t kShapeAxis = 6, kTransportAxis = 7;

std::vector<MatrixCell> all_cells(std::span<const MatrixAxis> axes);
// "connector=p2p exchange=auto ...": what names a cell, in files too.
std::string cell_text(std::span<const MatrixAxis> axes, const MatrixCell& cell);

// `base` with the cell's values. An error: the validator refuses the combination, with its message.
Result<Settings> cell_settings(std::span<const MatrixAxis> axes, const MatrixCell& cell,
                               const Settings& base);

// How much of the product a pruned run covers: each value once, or each pair, or triple, of values of as many
// axes.
enum class Cover : uint8_t { values, pairs, triples };

// Which of `cells` to run so that everything to cover that occurs in any of them occurs in one that is run:
// greedily the cell that covers most of what `done` (indices into `cells`) leaves, the first among equals.
std::vector<size_t> covering_cells(std::span<const MatrixCell> cells, Cover cover,
                                   std::span<const size_t> done);
// What occurs in `cells` and in none of `done`, by name: "transport=shm with placement=slice".
std::vector<std::string> uncovered(std::span<const MatrixAxis> axes, std::span<const MatrixCell> cells,
                                   Cover cover, std::span<const size_t> done);

}  // namespace tandem
