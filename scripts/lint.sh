#!/usr/bin/env bash
# Checks the format (clang-format) and the code (clang-tidy, .clang-tidy) of src/ and bench/. Changes nothing.
#   scripts/lint.sh               all but the tests
#   scripts/lint.sh --tests       the tests too
#   scripts/lint.sh --format      the format alone, which takes seconds
#   scripts/lint.sh FILE...       these files; clang-tidy reads a header through the .cc files that include it
# TANDEM_LINT_JOBS sets how many files clang-tidy reads at a time (default: all CPUs).
set -euo pipefail
cd "$(dirname "$0")/.."

with_tests=0
format_only=0
files=()
for argument in "$@"; do
  case "$argument" in
    --tests) with_tests=1 ;;
    --format) format_only=1 ;;
    -*) echo "lint.sh: unknown flag $argument; known: --tests --format" >&2; exit 2 ;;
    *)
      if [ ! -f "$argument" ]; then echo "lint.sh: no file $argument; paths start at the repository's root" >&2; exit 2; fi
      files+=("$argument")
      ;;
  esac
done

# The tools are of the versions in the list, in a folder of their own; made anew when the list changes.
stamp=.venv-lint/requirements.sha256
wanted=$(sha256sum tools/lint-requirements.txt | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  echo "installing tools/lint-requirements.txt into .venv-lint"
  rm -rf .venv-lint
  python3 -m venv .venv-lint
  .venv-lint/bin/pip install -q --disable-pip-version-check -r tools/lint-requirements.txt
  echo "$wanted" >"$stamp"
fi

if [ ${#files[@]} -gt 0 ]; then
  to_format=("${files[@]}")
  to_check=()
  for file in "${files[@]}"; do if [[ $file == *.cc ]]; then to_check+=("$file"); fi; done
else
  mapfile -t to_format < <(find src bench -name '*.cc' -o -name '*.h' | sort)
  mapfile -t to_check < <(find src bench -name '*.cc' -not -path 'bench/peers/*' | sort)
  if [ "$with_tests" -eq 0 ]; then
    mapfile -t to_check < <(printf '%s\n' "${to_check[@]}" | grep -v '_test\.cc$')
  fi
fi

failed=0
.venv-lint/bin/clang-format --dry-run --Werror "${to_format[@]}" || failed=1

if [ "$format_only" -eq 0 ] && [ ${#to_check[@]} -gt 0 ]; then
  cmake --preset release >/dev/null
  # tidy CHECKS FILE...: the compile commands are GCC's, so clang is told to pass over the warnings that it does not
  # know. Its counts of warnings in system headers, on stderr, are left out.
  tidy() {
    local checks=$1
    shift
    [ $# -gt 0 ] || return 0
    printf '%s\0' "$@" |
      xargs -0 -n 1 -P "${TANDEM_LINT_JOBS:-$(nproc)}" .venv-lint/bin/clang-tidy -p build --quiet \
        --checks="$checks" --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unused-command-line-argument \
        2> >(grep -vE '^[0-9]+ (warnings?|errors?) (generated|treated)|^Suppressed ' >&2)
  }
  sources=()
  tests=()
  for file in "${to_check[@]}"; do
    if [[ $file == *_test.cc ]]; then tests+=("$file"); else sources+=("$file"); fi
  done
  tidy "" "${sources[@]}" || failed=1
  # A test is written to be read, and knows which of its optionals have a value.
  tidy "-performance-*,-bugprone-unchecked-optional-access" "${tests[@]}" || failed=1
fi

if [ "$failed" -ne 0 ]; then
  echo "lint.sh: findings above; the format is mended by .venv-lint/bin/clang-format -i FILE" >&2
  exit 1
fi
