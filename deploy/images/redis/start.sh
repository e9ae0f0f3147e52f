#!/bin/sh
# Becomes the server. The password is the one that was given as a secret, or else made here, once; what it says is on
# no command line.
set -eu
password=/run/hintloop/redis_password
given=/run/secrets/redis_password
umask 022
if [ -s "$given" ]; then
  cp "$given" "$password.new"
elif [ ! -s "$password" ]; then
  od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$password.new"
fi
if [ -f "$password.new" ]; then
  mv "$password.new" "$password"
fi
umask 077
cat /opt/hintloop/redis.conf >/tmp/redis.conf
printf 'maxmemory %s\nrequirepass %s\n' "${REDIS_MAXMEMORY:-0}" "$(cat "$password")" >>/tmp/redis.conf
exec redis-server /tmp/redis.conf
