#!/usr/bin/env bash
# Chromium for the tests of the console's page: found, or installed where apt is there and allowed.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "browser.sh: Chromium ..." >&2
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
else
  # The other tests run all the same; those of the page fail, and say this.
  echo "browser.sh: there is no Chromium; install it (Debian: apt-get install chromium)" >&2
fi
