#!/bin/sh
# Writes what the binary knows into docs/: the reference of settings, the support matrix, the plugin's keys.
# Usage: scripts/generate_docs.sh [BINARY]
set -eu
cd "$(dirname "$0")/.."
binary=${1:-build/tandem}
"$binary" configuration > docs/configuration.md

# between FILE MARKER FLAG: what `configuration FLAG` prints, between the lines of the marker.
between() {
  text=$("$binary" configuration "$3")
  TEXT="$text" MARKER="$2" awk '
    $0 == "<!-- " ENVIRON["MARKER"] ": begin -->" { print; print ENVIRON["TEXT"]; skip = 1; next }
    $0 == "<!-- " ENVIRON["MARKER"] ": end -->" { skip = 0 }
    !skip { print }' "$1" > "$1.new"
  mv "$1.new" "$1"
}
between docs/features.md "support matrix" --matrix
between docs/afd-plugin.md "plugin keys" --plugin
