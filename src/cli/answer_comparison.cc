#include "cli/answer_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

struct Line {
  std::string question, answer;
  bool correct = false;
};

Result<std::map<uint64_t, Line>> read(const std::string& path) {
  std::ifstream file(path);
  if (!file) return make_error(ErrorCode::not_found, "cannot read " + path);
  std::map<uint64_t, Line> lines;
  size_t number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    const auto refuse = [&](const std::string& why) {
      return make_error(ErrorCode::invalid_argument, path + " line " + std::to_string(number) + ": " + why);
    };
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    try {
      Line line{json.at("question").get<std::string>(), json.at("answer").get<std::string>(),
                json.at("correct").get<bool>()};
      if (!lines.emplace(json.at("index").get<uint64_t>(), std::move(line)).second)
        return refuse("an index that was there before");
    } catch (const Json::exception&) {
      return refuse("not an answer of tandem eval gsm8k --output");
    }
  }
  if (lines.empty()) return make_error(ErrorCode::invalid_argument, path + " has no line");
  return lines;
}

}  // namespace

double mcnemar_p(uint64_t first, uint64_t second) {
  const auto n = static_cast<double>(first + second);
  if (n == 0) return 1;
  // Sums of binomial terms as logarithms: n can be in the thousands.
  double tail = 0;
  for (uint64_t k = 0; k <= std::min(first, second); ++k) {
    const auto i = static_cast<double>(k);
    tail += std::exp(std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1) - n * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

double AnswerComparison::p_value() const {
  return mcnemar_p(only_first, only_second);
}

Result<AnswerComparison> compare_answers(const std::string& first, const std::string& second) {
  TANDEM_ASSIGN(const auto a, read(first));
  TANDEM_ASSIGN(const auto b, read(second));
  AnswerComparison out;
  out.names[0] = first;
  out.names[1] = second;
  for (const auto& [index, line] : a) {
    const auto found = b.find(index);
    if (found == b.end()) {
      ++out.only_in_first;
      continue;
    }
    const Line& other = found->second;
    if (other.question != line.question) {
      return make_error(
          ErrorCode::invalid_argument,
          fmt::format("question {} of {} is another one in {}; compare answers to the same data", index,
                      first, second));
    }
    if (line.answer == other.answer) ++out.same_text;
    if (line.correct && other.correct) ++out.both;
    if (!line.correct && !other.correct) ++out.neither;
    if (line.correct && !other.correct) {
      ++out.only_first;
      out.first_better.push_back(index);
    }
    if (!line.correct && other.correct) {
      ++out.only_second;
      out.second_better.push_back(index);
    }
  }
  if (out.questions() == 0)
    return make_error(ErrorCode::invalid_argument, first + " and " + second + " have no question in common");
  out.only_in_second = b.size() - out.questions();
  return out;
}

std::string AnswerComparison::text() const {
  const auto percent = [&](uint64_t count) {
    return 100 * static_cast<double>(count) / static_cast<double>(questions());
  };
  std::string out = fmt::format("A: {}\nB: {}\n{} questions of both", names[0], names[1], questions());
  if (only_in_first + only_in_second > 0)
    out += fmt::format("; {} are in A alone, {} in B alone, and left out", only_in_first, only_in_second);
  out += fmt::format("\n\n{:<12}{:>10}{:>10}\n", "", "B right", "B wrong");
  out += fmt::format("{:<12}{:>10}{:>10}\n{:<12}{:>10}{:>10}\n\n", "A right", both, only_first, "A wrong",
                     only_second, neither);
  out += fmt::format("right: A {} ({:.1f} %), B {} ({:.1f} %)\n", both + only_first,
                     percent(both + only_first), both + only_second, percent(both + only_second));
  out += fmt::format("agree: {} ({:.1f} %); word for word: {} ({:.1f} %)\n", both + neither,
                     percent(both + neither), same_text, percent(same_text));
  out += fmt::format("McNemar's exact test: p = {:.4g} of {} answers that differ\n", p_value(),
                     only_first + only_second);
  return out;
}

std::string AnswerComparison::json() const {
  return Json{{"first", names[0]},
              {"second", names[1]},
              {"questions", questions()},
              {"both_right", both},
              {"only_first_right", only_first},
              {"only_second_right", only_second},
              {"neither_right", neither},
              {"same_text", same_text},
              {"only_in_first", only_in_first},
              {"only_in_second", only_in_second},
              {"agreement", static_cast<double>(both + neither) / static_cast<double>(questions())},
              {"mcnemar_p", p_value()},
              {"first_better", first_better},
              {"second_better", second_better}}
      .dump();
}

}  // namespace tandem
