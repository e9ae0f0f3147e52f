#!/usr/bin/env bash
# Builds the console's page from services/console/web into the package. Needs Node 20.19 or newer, and npm.
set -euo pipefail
cd "$(dirname "$0")/../services/console/web"
if ! command -v npm >/dev/null; then
  echo "console.sh: npm is missing; install Node.js 20.19 or newer and run this again (the built page is in the clone)" >&2
  exit 1
fi
# Not `npm ci`: it refuses the lock file for an optional package of Windows that not every registry has.
npm install --no-save --no-audit --no-fund
npm run build
