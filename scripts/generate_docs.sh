#!/bin/sh
# Writes what the binary knows into docs/: the reference of settings and the support matrix.
# Usage: scripts/generate_docs.sh [BINARY]
set -eu
cd "$(dirname "$0")/.."
binary=${1:-build/tandem}
"$binary" configuration > docs/configuration.md
matrix=$("$binary" configuration --matrix)
MATRIX="$matrix" awk '
  /<!-- support matrix: begin -->/ { print; print ENVIRON["MATRIX"]; skip = 1; next }
  /<!-- support matrix: end -->/ { skip = 0 }
  !skip { print }' docs/features.md > docs/features.md.new
mv docs/features.md.new docs/features.md
