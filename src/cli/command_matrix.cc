// tandem eval matrix: one logits hash over every placement, connector, transport and shape.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/build_info.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/matrix_log.h"
#include "cli/matrix_probe.h"
#include "cli/model_folder.h"

namespace tandem {
namespace {

// Cells that turn out to be refused at the start are replaced, but not for ever: a model that has no use for
// a placement at all refuses each of its cells.
constexpr size_t kMaxReplaced = 24;

class Progress {
 public:
  explicit Progress(bool json) : quiet_(json && ::isatty(STDERR_FILENO) != 1) {}

  void show(size_t done, size_t total, const std::string& cell, const CellResult& result, bool was_known) {
    if (!was_known) {
      spent_ += result.seconds;
      ++run_;
    }
    if (quiet_) return;
    // A line for each cell of a short run; of a long one, the failures and each hundredth.
    const bool bad = result.state == CellState::different || result.state == CellState::failed;
    if (total > kLines && !bad && done % (total / 100 + 1) != 0 && done != total) return;
    const double left =
        run_ == 0 ? 0 : spent_ / static_cast<double>(run_) * static_cast<double>(total - done);
    std::fprintf(stderr, "%zu/%zu %s: %s%s, %.1f s%s; about %.0f s left\n", done, total, cell.c_str(),
                 cell_state_name(result.state),
                 result.detail.empty() ? "" : (" (" + result.detail + ")").c_str(), result.seconds,
                 was_known ? " (from the file)" : "", left);
  }

 private:
  static constexpr size_t kLines = 100;
  bool quiet_;
  double spent_ = 0;
  size_t run_ = 0;
};

// Runs cells of the product by their index and keeps what came of them.
class MatrixRun {
 public:
  MatrixRun(const MatrixProbe& probe, MatrixLog& log, const Settings& base, MatrixReport& report)
      : probe_(probe), log_(log), base_(base), report_(report), progress_(base.json) {
    for (size_t i = 0; i < report.cells.size(); ++i) {
      auto settings = cell_settings(matrix_axes(), report.cells[i], base);
      if (settings) {
        supported_.push_back(i);
      } else {
        report.results[i] = {CellState::refused, settings.error().message, 0};
      }
    }
  }

  Status run_all() {
    for (size_t n = 0; n < supported_.size(); ++n) TANDEM_TRY(run(supported_[n], n + 1, supported_.size()));
    return {};
  }

  Status run_covering(Cover cover) {
    std::vector<size_t> ran;  // indices of the product
    size_t refused = 0;
    while (refused <= kMaxReplaced) {
      std::vector<MatrixCell> cells;
      std::vector<size_t> done;
      // A cell that was refused at the start is no longer among those whose pairs must be covered.
      std::erase_if(supported_, [&](size_t i) { return report_.results[i].state == CellState::refused; });
      for (size_t n = 0; n < supported_.size(); ++n) {
        cells.push_back(report_.cells[supported_[n]]);
        if (report_.results[supported_[n]].state != CellState::not_run) done.push_back(n);
      }
      const std::vector<size_t> next = covering_cells(cells, cover, done);
      report_.uncovered = uncovered(matrix_axes(), cells, cover, done);
      if (next.empty()) break;
      const size_t before = report_.count(CellState::refused);
      for (size_t n = 0; n < next.size(); ++n) {
        TANDEM_TRY(run(supported_[next[n]], done.size() + n + 1, done.size() + next.size()));
        if (report_.count(CellState::refused) + refused > before + kMaxReplaced) break;
      }
      refused += report_.count(CellState::refused) - before;
    }
    return {};
  }

 private:
  Status run(size_t index, size_t number, size_t total) {
    const std::string name = cell_text(matrix_axes(), report_.cells[index]);
    const CellResult* known = log_.known(name);
    if (known != nullptr) {
      report_.results[index] = *known;
    } else {
      TANDEM_ASSIGN(const Settings settings, cell_settings(matrix_axes(), report_.cells[index], base_));
      report_.results[index] = probe_.run(settings);
      log_.write(name, report_.results[index]);
    }
    progress_.show(number, total, name, report_.results[index], known != nullptr);
    return {};
  }

  const MatrixProbe& probe_;
  MatrixLog& log_;
  const Settings& base_;
  MatrixReport& report_;
  Progress progress_;
  std::vector<size_t> supported_;
};

}  // namespace

Result<int> run_eval_matrix(Settings& settings) {
  if (!settings.engine.deterministic) {
    return make_error(ErrorCode::invalid_argument,
                      "engine.deterministic: false; without it placements agree within a bound, not in every "
                      "bit");
  }
  TANDEM_ASSIGN(const ModelConfig config, read_model_config(settings.model));
  settings.serving.max_context_tokens =
      std::min<int64_t>(settings.serving.max_context_tokens, config.max_position_embeddings);
  const Instant start = now();
  MatrixReport report;
  report.model = settings.model;
  report.build = build_stamp();
  report.full = settings.eval.full;
  TANDEM_ASSIGN(const MatrixProbe probe, MatrixProbe::create(settings));
  report.prompts = probe.num_prompts();
  report.logits_hash = probe.logits_hash();
  report.cells = all_cells(matrix_axes());
  report.results.resize(report.cells.size());
  TANDEM_ASSIGN(MatrixLog log,
                MatrixLog::open(settings.eval.output,
                                report.model + ", build " + report.build + ", " + report.logits_hash));
  MatrixRun run(probe, log, settings, report);
  TANDEM_TRY(settings.eval.full ? run.run_all()
                                : run.run_covering(settings.eval.cover == "triples"  ? Cover::triples
                                                   : settings.eval.cover == "values" ? Cover::values
                                                                                     : Cover::pairs));
  report.seconds = seconds_since(start);
  std::fputs(settings.json ? (report.json() + "\n").c_str() : report.table().c_str(), stdout);
  return report.passed() ? kExitSuccess : kExitFailure;
}

}  // namespace tandem
