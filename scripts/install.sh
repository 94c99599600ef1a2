#!/usr/bin/env bash
# Installs the Debian packages that Tandem needs. With --tests also what its tests need. Does nothing when all are there.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build ccache
  libboost1.81-dev libssl-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libyaml-cpp-dev libcli11-dev
  prometheus-cpp-dev libutf8proc-dev libucx-dev libhwloc-dev pkg-config libgtest-dev libbenchmark-dev
)
if [ "${1:-}" = "--tests" ]; then packages+=(python3 python3-venv openssl); fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing: ${missing[*]}"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "install.sh: packages are missing and there is no sudo; as root: apt-get install ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if [ "${1:-}" = "--tests" ]; then
  # Test tools only: the official client, numpy for reference values, and pytest. Made anew when the list changes.
  stamp=.venv/requirements.sha256
  wanted=$(sha256sum tests/requirements.txt | cut -d' ' -f1)
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "installing Python packages of tests/requirements.txt into .venv"
    rm -rf .venv
    /usr/bin/python3 -m venv .venv
    .venv/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt
    echo "$wanted" >"$stamp"
  fi
fi
