#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>

#include "cli/matrix_design.h"
#include "cli/matrix_log.h"
#include "cli/matrix_report.h"

namespace tandem {
namespace {

std::vector<MatrixCell> supported_cells() {
  std::vector<MatrixCell> supported;
  for (const MatrixCell& cell : all_cells(matrix_axes())) {
    if (cell_settings(matrix_axes(), cell, Settings())) supported.push_back(cell);
  }
  return supported;
}

std::set<std::pair<size_t, size_t>> pairs_of(const MatrixCell& cell) {
  std::set<std::pair<size_t, size_t>> pairs;
  for (size_t a = 0; a < cell.size(); ++a) {
    for (size_t b = a + 1; b < cell.size(); ++b) pairs.emplace(a * 100 + cell[a], b * 100 + cell[b]);
  }
  return pairs;
}

TEST(MatrixDesign, TheProductHasEveryCombinationOnce) {
  size_t product = 1;
  for (const MatrixAxis& axis : matrix_axes()) product *= axis.values.size();
  const auto cells = all_cells(matrix_axes());
  EXPECT_EQ(cells.size(), product);
  std::set<std::string> names;
  for (const MatrixCell& cell : cells) names.insert(cell_text(matrix_axes(), cell));
  EXPECT_EQ(names.size(), product);
  EXPECT_EQ(matrix_axes()[kShapeAxis].name, "shape");
  EXPECT_EQ(matrix_axes()[kTransportAxis].name, "transport");
  EXPECT_EQ(kTransportAxis + 1, matrix_axes().size()) << "the table takes the two innermost axes as columns";
}

TEST(MatrixDesign, ValuesAreTheSettingsOwn) {
  const MatrixAxis& transports = matrix_axes()[kTransportAxis];
  std::set<std::string> labels;
  for (const MatrixValue& value : transports.values) labels.insert(value.label);
  EXPECT_TRUE(labels.contains("inproc") && labels.contains("shm") && labels.contains("tcp"));
  EXPECT_EQ(transports.values.front().label, "inproc");
  for (const MatrixValue& value : matrix_axes()[0].values) EXPECT_NE(value.label, "local");
}

TEST(MatrixDesign, ACellSetsWhatItSays) {
  MatrixCell cell(matrix_axes().size(), 0);
  for (size_t axis = 0; axis < cell.size(); ++axis) {
    for (size_t value = 0; value < matrix_axes()[axis].values.size(); ++value) {
      const std::string& label = matrix_axes()[axis].values[value].label;
      if (label == "m2n" || label == "attention" || label == "1A4F" || label == "tcp" || label == "auto" ||
          label == "expert" || label == "eager") {
        if (matrix_axes()[axis].name == "connector" && label == "auto") continue;
        cell[axis] = static_cast<uint8_t>(value);
      }
    }
  }
  Settings base;
  base.model = "somewhere";
  const auto settings = cell_settings(matrix_axes(), cell, base);
  ASSERT_TRUE(settings) << settings.error().message << cell_text(matrix_axes(), cell);
  EXPECT_EQ(settings->model, "somewhere");
  EXPECT_EQ(settings->afd.connector, "m2n");
  EXPECT_TRUE(settings->afd.compute_gate_on_attention);
  EXPECT_TRUE(settings->shared_experts_on_attention());
  EXPECT_EQ(settings->up.ffn, 4);
  EXPECT_EQ(settings->up.transport, "tcp");
}

TEST(MatrixDesign, WhatTheValidatorRefusesIsRefusedWithItsMessage) {
  size_t refused = 0;
  for (const MatrixCell& cell : all_cells(matrix_axes())) {
    const auto settings = cell_settings(matrix_axes(), cell, Settings());
    if (settings) continue;
    ++refused;
    EXPECT_NE(settings.error().message.find("is not supported; use"), std::string::npos)
        << settings.error().message;
  }
  EXPECT_GT(refused, 0u);
}

TEST(MatrixDesign, ThePrunedCellsHaveEveryPairThatGoesTogether) {
  const auto cells = supported_cells();
  ASSERT_GT(cells.size(), 8u);
  std::set<std::pair<size_t, size_t>> wanted, had;
  for (const MatrixCell& cell : cells) wanted.merge(pairs_of(cell));
  const auto chosen = covering_cells(cells, Cover::pairs, {});
  for (const size_t index : chosen) had.merge(pairs_of(cells[index]));
  EXPECT_EQ(had, wanted);
  EXPECT_LT(chosen.size(), cells.size() / 2 + 12);
  EXPECT_TRUE(uncovered(matrix_axes(), cells, Cover::pairs, chosen).empty());
  EXPECT_TRUE(covering_cells(cells, Cover::pairs, chosen).empty());

  // The last was chosen for something that none before it has.
  const std::vector<size_t> less(chosen.begin(), chosen.end() - 1);
  EXPECT_FALSE(uncovered(matrix_axes(), cells, Cover::pairs, less).empty());
  EXPECT_FALSE(covering_cells(cells, Cover::pairs, less).empty());
}

TEST(MatrixDesign, TriplesAreCoveredByMoreCellsAndNamed) {
  const std::vector<MatrixAxis> axes = {{"colour", {{"red", {}}, {"blue", {}}}},
                                        {"size", {{"big", {}}, {"small", {}}}},
                                        {"shape", {{"round", {}}, {"square", {}}}},
                                        {"age", {{"old", {}}, {"new", {}}}}};
  const auto cells = all_cells(axes);
  const auto pairs = covering_cells(cells, Cover::pairs, {});
  const auto triples = covering_cells(cells, Cover::triples, {});
  EXPECT_LT(pairs.size(), triples.size());
  EXPECT_LT(triples.size(), cells.size());
  EXPECT_TRUE(uncovered(axes, cells, Cover::triples, triples).empty());
  EXPECT_FALSE(uncovered(axes, cells, Cover::triples, pairs).empty());
  const auto missing = uncovered(axes, cells, Cover::triples, std::vector<size_t>{0});
  EXPECT_EQ(missing.size(), 4u * 8 - 4);
  EXPECT_NE(std::ranges::find(missing, "colour=blue with size=big with shape=round"), missing.end());
}

TEST(MatrixDesign, ValuesAreCoveredByFewerCells) {
  const auto cells = supported_cells();
  const auto by_value = covering_cells(cells, Cover::values, {});
  EXPECT_LT(by_value.size(), covering_cells(cells, Cover::pairs, {}).size());
  std::vector<std::set<size_t>> wanted(matrix_axes().size()), had(matrix_axes().size());
  for (const MatrixCell& cell : cells) {
    for (size_t axis = 0; axis < cell.size(); ++axis) wanted[axis].insert(cell[axis]);
  }
  for (const size_t index : by_value) {
    for (size_t axis = 0; axis < had.size(); ++axis) had[axis].insert(cells[index][axis]);
  }
  EXPECT_EQ(had, wanted);
}

TEST(MatrixDesign, AnUncoveredPairIsNamed) {
  const std::vector<MatrixAxis> axes = {{"colour", {{"red", {}}, {"blue", {}}}}, {"size", {{"big", {}}}}};
  const auto cells = all_cells(axes);
  const std::vector<size_t> done = {0};
  EXPECT_EQ(uncovered(axes, cells, Cover::pairs, done),
            (std::vector<std::string>{"colour=blue with size=big"}));
  EXPECT_EQ(uncovered(axes, cells, Cover::values, done), (std::vector<std::string>{"colour=blue"}));
}

MatrixReport report_with(CellState state) {
  MatrixReport report;
  report.cells = all_cells(matrix_axes());
  report.results.resize(report.cells.size());
  report.results.front() = {CellState::equal, "", 0.5};
  report.results[1] = {state, "prompt 3, position 2: token 1 where colocated has 2", 0.25};
  report.results.back() = {CellState::refused, "because", 0};
  return report;
}

TEST(MatrixReport, PassesOnlyWhenAllThatRanIsEqual) {
  EXPECT_TRUE(report_with(CellState::equal).passed());
  EXPECT_TRUE(report_with(CellState::refused).passed());
  EXPECT_FALSE(report_with(CellState::different).passed());
  EXPECT_FALSE(report_with(CellState::failed).passed());
  MatrixReport nothing = report_with(CellState::refused);
  nothing.results.front().state = CellState::refused;
  EXPECT_FALSE(nothing.passed()) << "nothing ran";
}

TEST(MatrixReport, TheTableHasStatesReasonsAndTheFirstDifference) {
  const std::string table = report_with(CellState::different).table();
  EXPECT_NE(table.find(" =!"), std::string::npos) << table;
  EXPECT_NE(table.find("1 cells: refused: because"), std::string::npos) << table;
  EXPECT_NE(table.find("different: prompt 3, position 2: token 1"), std::string::npos) << table;
  const std::string json = report_with(CellState::different).json();
  EXPECT_NE(json.find("\"different\":1"), std::string::npos) << json;
  EXPECT_NE(json.find("\"reason\":\"because\""), std::string::npos) << json;
}

TEST(MatrixLog, ARunIsTakenUpAgainAndAnotherOnesFileIsRefused) {
  const std::string path = "/tmp/tandem-matrix-log-" + std::to_string(::getpid()) + ".jsonl";
  std::remove(path.c_str());
  {
    auto log = MatrixLog::open(path, "this run");
    ASSERT_TRUE(log);
    EXPECT_EQ(log->known("a=1"), nullptr);
    log->write("a=1", {CellState::equal, "", 0.5});
    log->write("a=2", {CellState::different, "somewhere", 0.5});
    log->write("a=3", {CellState::refused, "why", 0.5});
  }
  std::ofstream(path, std::ios::app) << "{\"cell\": \"a=4\", \"sta";  // killed while it wrote
  {
    auto log = MatrixLog::open(path, "this run");
    ASSERT_TRUE(log);
    ASSERT_NE(log->known("a=1"), nullptr);
    EXPECT_EQ(log->known("a=1")->state, CellState::equal);
    EXPECT_EQ(log->known("a=2"), nullptr) << "what differed is run again";
    EXPECT_EQ(log->known("a=3")->detail, "why");
    EXPECT_EQ(log->known("a=4"), nullptr);
    log->write("a=4", {CellState::equal, "", 0.5});
  }
  EXPECT_NE(MatrixLog::open(path, "this run")->known("a=4"), nullptr);
  const auto other = MatrixLog::open(path, "another");
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("is of another run (this run, this is another)"), std::string::npos)
      << other.error().message;
  std::remove(path.c_str());
}

}  // namespace
}  // namespace tandem
