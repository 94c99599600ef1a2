#!/usr/bin/env bash
# Installs, builds, and serves the bundled model with attention and experts in two processes, at http://127.0.0.1:8000.
#   scripts/run.sh            until Ctrl-C
#   scripts/run.sh --once     answers one sample question and ends
#   scripts/run.sh --port N   another port
# Further flags are those of `tandem up`.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install.sh
scripts/build.sh release tandem
exec build/tandem up --model models/arith --attention 1 --ffn 1 "$@"
