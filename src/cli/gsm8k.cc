#include "cli/gsm8k.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tandem {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The number that starts at `at`, normalised; empty when none does.
std::string number_at(std::string_view text, size_t at) {
  std::string number;
  if (at < text.size() && text[at] == '-') {
    number = "-";
    ++at;
  }
  if (at < text.size() && text[at] == '$') ++at;
  bool has_point = false;
  bool has_digit = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    const bool digit_follows = at + 1 < text.size() && is_digit(text[at + 1]);
    if (is_digit(c)) {
      number += c;
      has_digit = true;
    } else if (c == ',' && has_digit && !has_point && digit_follows) {
      continue;
    } else if (c == '.' && !has_point && digit_follows) {
      number += c;
      has_point = true;
    } else {
      break;
    }
  }
  if (!has_digit) return {};
  if (has_point) {
    while (number.back() == '0') number.pop_back();
    if (number.back() == '.') number.pop_back();
  }
  const size_t sign = number[0] == '-' ? 1 : 0;
  size_t zeros = sign;
  while (zeros + 1 < number.size() && number[zeros] == '0' && is_digit(number[zeros + 1])) ++zeros;
  number.erase(sign, zeros - sign);
  return number == "-0" ? "0" : number;
}

}  // namespace

std::optional<std::string> strict_number(std::string_view answer) {
  const size_t mark = answer.rfind("####");
  if (mark == std::string_view::npos) return std::nullopt;
  size_t at = mark + 4;
  while (at < answer.size() && (answer[at] == ' ' || answer[at] == '+' || answer[at] == '$')) ++at;
  std::string number = number_at(answer, at);
  if (number.empty()) return std::nullopt;
  return number;
}

std::optional<std::string> flexible_number(std::string_view answer) {
  for (size_t at = answer.size(); at > 0; --at) {
    if (!is_digit(answer[at - 1])) continue;
    size_t begin = at - 1;
    while (begin > 0 && (is_digit(answer[begin - 1]) || answer[begin - 1] == ',' || answer[begin - 1] == '.'))
      --begin;
    while (!is_digit(answer[begin])) ++begin;
    if (begin > 0 && answer[begin - 1] == '-') --begin;
    return number_at(answer, begin);
  }
  return std::nullopt;
}

Result<std::vector<Gsm8kProblem>> load_gsm8k(const std::string& path) {
  std::ifstream file(path);
  if (!file) return make_error(ErrorCode::not_found, "eval.data: cannot open " + path);
  std::vector<Gsm8kProblem> problems;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    const auto refuse = [&](const std::string& what) {
      return make_error(ErrorCode::invalid_argument, path + " line " + std::to_string(number) + ": " + what);
    };
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) return refuse("not a JSON object");
    for (const char* field : {"question", "answer"}) {
      if (!json.contains(field) || !json[field].is_string())
        return refuse("no text in '" + std::string(field) + "'");
    }
    Gsm8kProblem problem{json["question"], json["answer"], {}};
    const auto answer = strict_number(problem.answer);
    if (!answer) return refuse("the answer has no line '#### <number>'");
    problem.number = *answer;
    problems.push_back(std::move(problem));
  }
  if (problems.empty()) return make_error(ErrorCode::invalid_argument, path + " has no problems");
  return problems;
}

Interval wilson_interval(uint64_t hits, uint64_t total) {
  if (total == 0) return {0, 1};
  constexpr double z = 1.959963984540054;  // 97.5 % quantile of the normal distribution
  const double n = static_cast<double>(total);
  const double share = static_cast<double>(hits) / n;
  const double centre = (share + z * z / (2 * n)) / (1 + z * z / n);
  const double half = z * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n);
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

}  // namespace tandem
