#!/usr/bin/env bash
# Chromium for the browser tests. Does nothing where one is installed; says so where it cannot be.
set -euo pipefail

if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "install_browser.sh: no apt-get here; install Chromium yourself, else the browser tests fail" >&2
    exit 1
fi
root=()
if [ "$(id -u)" -ne 0 ]; then
    root=(sudo)
fi
"${root[@]}" apt-get update -qq
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core
