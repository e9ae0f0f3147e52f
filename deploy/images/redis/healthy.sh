#!/bin/sh
# Whether the server answers, with its password, and is done loading.
set -eu
REDISCLI_AUTH="$(cat /run/hintloop/redis_password)"
export REDISCLI_AUTH
[ "$(redis-cli ping)" = PONG ]
