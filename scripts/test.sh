#!/usr/bin/env bash
# Installs, builds and runs every test: ctest, then pytest against the built binary.
#   scripts/test.sh               what CI runs
#   scripts/test.sh --sanitize    the same C++ tests under AddressSanitizer and UBSan (build-sanitize/)
#   scripts/test.sh --long        with the tests marked long
set -euo pipefail
cd "$(dirname "$0")/.."
preset=release
pytest_marks="not long"
for argument in "$@"; do
  case "$argument" in
    --sanitize) preset=sanitize ;;
    --long) pytest_marks="long or not long" ;;
    *) echo "test.sh: unknown flag $argument; known: --sanitize --long" >&2; exit 2 ;;
  esac
done
scripts/install.sh --tests
scripts/build.sh "$preset"
ctest --preset "$preset" --parallel 2
if [ "$preset" = release ]; then
  TANDEM_BINARY="$PWD/build/tandem" .venv/bin/python -m pytest tests tools bench -q -m "$pytest_marks"
fi
