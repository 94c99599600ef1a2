#!/bin/sh
# fuzz/run.sh TARGET [SECONDS]: builds one fuzz target with Clang and sanitizers and runs it, at the lowest priority.
# What it finds is left as build-fuzz/found/TARGET-*; run.sh TARGET FILE runs one input again.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
target=${1:?"which of requests, templates, grammars, tokenizers, frames, handshakes, checkpoints"}
build=${TANDEM_FUZZ_BUILD:-$root/build-fuzz}
[ -f "$build/build.ninja" ] || cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTANDEM_FUZZ=ON \
  -DCMAKE_CXX_COMPILER="${CXX:-clang++-19}"
ninja -C "$build" -j"${JOBS:-$(nproc)}" "fuzz_$target"
export ASAN_OPTIONS=abort_on_error=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
if [ -f "${2:-}" ]; then exec "$build/fuzz_$target" "$2"; fi
python3 "$root/fuzz/make_seeds.py" "$build/corpus"
mkdir -p "$build/found" "$build/grown/$target"
# 20 s for one input, with sanitizers: what takes a second without them holds up a thread that others wait for.
# Inputs of 16 KB: larger ones say the same more slowly.
exec nice -n 19 "$build/fuzz_$target" -max_total_time="${2:-600}" -timeout=20 -rss_limit_mb=3072 -max_len=16384 -print_final_stats=1 \
  -dict="$root/fuzz/json.dict" -artifact_prefix="$build/found/$target-" "$build/grown/$target" "$build/corpus/$target"
