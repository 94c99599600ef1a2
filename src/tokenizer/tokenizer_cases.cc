// Compares this tokenizer with recorded results of another: tools/make_tokenizer_cases.py writes the files.
//
// usage: tokenizer_cases TOKENIZER CASES
//   CASES: one case a line, `<hex of the text's UTF-8>\t<id> <id> ...\t<hex of the decoded text>`; prints the
//   first differences and a count, status 1 when there is one.
#include <cstdio>
#include <fstream>
#include <string>

#include "tokenizer/case_file.h"
#include "tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: tokenizer_cases TOKENIZER CASES\n");
    return 2;
  }
  auto tokenizer = tandem::Tokenizer::load(argv[1]);
  if (!tokenizer) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 2;
  }
  std::ifstream cases(argv[2]);
  if (!cases) {
    std::fprintf(stderr, "%s: cannot be read\n", argv[2]);
    return 2;
  }
  size_t count = 0;
  size_t wrong = 0;
  for (std::string line; std::getline(cases, line);) {
    ++count;
    const std::string difference = tandem::check_tokenizer_case(*tokenizer, line);
    if (difference.empty()) continue;
    if (++wrong <= 10) std::printf("case %zu: %s\n", count, difference.c_str());
  }
  std::printf("%zu cases, %zu differ\n", count, wrong);
  return wrong == 0 && count > 0 ? 0 : 1;
}
