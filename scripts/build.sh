#!/usr/bin/env bash
# Configures and builds a preset of CMakePresets.json (default: release, into build/). Further words: ninja targets.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" -- "$@"
