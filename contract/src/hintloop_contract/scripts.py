"""The Lua scripts: every change of more than one key is one of these. Owns atomicity."""

from __future__ import annotations

# A caller whose fencing token is older than the newest one is refused with -1.
_FENCE = """
local function fenced(key, token)
  return token ~= '' and tonumber(token) < tonumber(redis.call('GET', key) or '0')
end
"""

_FREE = """
local function free(key, retention_s)
  if tonumber(retention_s) > 0 then redis.call('EXPIRE', key, retention_s) else redis.call('DEL', key) end
end
"""

# Notes an entry for people to look at, and lets the oldest go past either bound. An entry weighs what its values do.
# Few go in one call, so that a bound that was lowered holds nobody up.
_REMEMBER = """
local function weight(fields)
  local sum = 0
  for i = 2, #fields, 2 do sum = sum + #fields[i] end
  return sum
end
local function remember(stream, held_key, max_entries, max_bytes, entry)
  local size = weight(entry)
  if size > tonumber(max_bytes) then return end
  redis.call('XADD', stream, '*', unpack(entry))
  local held, length = redis.call('INCRBY', held_key, size), redis.call('XLEN', stream)
  for _ = 1, 16 do
    -- Alone it fits: what else is counted are entries that somebody else took out.
    if length == 1 then redis.call('SET', held_key, size) return end
    if length <= tonumber(max_entries) and held <= tonumber(max_bytes) then return end
    local oldest = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
    redis.call('XDEL', stream, oldest[1])
    held, length = redis.call('DECRBY', held_key, weight(oldest[2])), length - 1
  end
end
local function remember_hop(kind, record, first)
  if ARGV[kind] == '' then return end
  local entry = {'kind', ARGV[kind]}
  if record ~= '' then entry[3], entry[4] = 'record', record end
  for i = first, #ARGV do entry[#entry + 1] = ARGV[i] end
  remember(KEYS[#KEYS - 1], KEYS[#KEYS], ARGV[kind + 1], ARGV[kind + 2], entry)
end
"""

#: KEYS seen, stream, funnel; ARGV seen_ttl_s, counter, field...
APPEND = """
if not redis.call('SET', KEYS[1], '1', 'NX', 'EX', ARGV[1]) then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 3))
if ARGV[2] ~= '' then redis.call('HINCRBY', KEYS[3], ARGV[2], 1) end
return 1
"""

#: KEYS stream, funnel, weights, seen...; ARGV seen_ttl_s, counter, bound (0 = none), under ('' = any weights), current,
#: updating, num_names, name..., then each message's values in the order of the names. Answers 1 (appended), 0 (seen
#: before) or -1 (past the bound) for each; nothing at all when ``under`` is given and the weights are others.
APPEND_MANY = """
if ARGV[4] ~= '' then
  local weights = redis.call('HMGET', KEYS[3], 'current', 'updating')
  if (weights[1] or '') ~= ARGV[5] or (weights[2] or '') ~= ARGV[6] then return {} end
end
local bound, num_names = tonumber(ARGV[3]), tonumber(ARGV[7])
local room = bound > 0 and bound - redis.call('XLEN', KEYS[1]) or math.huge
local entry, results, appended = {}, {}, 0
for i = 1, num_names do entry[2 * i - 1] = ARGV[7 + i] end
for m = 1, #KEYS - 3 do
  local seen = KEYS[3 + m]
  if room <= 0 then
    results[m] = redis.call('EXISTS', seen) - 1
  elseif not redis.call('SET', seen, '1', 'NX', 'EX', ARGV[1]) then
    results[m] = 0
  else
    for i = 1, num_names do entry[2 * i] = ARGV[7 + m * num_names + i] end
    redis.call('XADD', KEYS[1], '*', unpack(entry))
    results[m], room, appended = 1, room - 1, appended + 1
  end
end
if appended > 0 and ARGV[2] ~= '' then redis.call('HINCRBY', KEYS[2], ARGV[2], appended) end
return results
"""

#: KEYS in, out, funnel, fence, record, attempts, history, history_bytes
#: ARGV group, id, fence, record, history_kind ('' = off), history_max_entries, history_max_bytes, num_counters,
#: counter..., field...
COMMIT = (
    _FENCE
    + _REMEMBER
    + """
if fenced(KEYS[4], ARGV[3]) then return -1 end
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[6], ARGV[2])
if ARGV[4] ~= '' then redis.call('SET', KEYS[5], ARGV[4]) end
local counters = tonumber(ARGV[8])
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 9 + counters))
for i = 1, counters do redis.call('HINCRBY', KEYS[3], ARGV[8 + i], 1) end
remember_hop(5, ARGV[4], 9 + counters)
return 1
"""
)

#: KEYS in, drops, drop_counts, record, fence, attempts, seen, history, history_bytes
#: ARGV group, id ('' = no input), fence, retention_s, counted_as, max_age_ms, seen_ttl_s, history_kind ('' = off),
#: history_max_entries, history_max_bytes, field...
DROP = (
    _FENCE
    + _FREE
    + _REMEMBER
    + """
if fenced(KEYS[5], ARGV[3]) then return -1 end
if ARGV[2] ~= '' then
  if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
  redis.call('XDEL', KEYS[1], ARGV[2])
  redis.call('HDEL', KEYS[6], ARGV[2])
elseif not redis.call('SET', KEYS[7], '1', 'NX', 'EX', ARGV[7]) then
  return 0
end
local now = redis.call('TIME')
local oldest = tonumber(now[1]) * 1000 - tonumber(ARGV[6])
redis.call('HINCRBY', KEYS[3], ARGV[5], 1)
redis.call('XADD', KEYS[2], 'MINID', '~', string.format('%.0f', oldest), '*', unpack(ARGV, 11))
free(KEYS[4], ARGV[4])
remember_hop(8, '', 11)
return 1
"""
)

#: KEYS in, attempts, record...; ARGV group, retention_s, id...
FINISH = (
    _FREE
    + """
local done = 0
for i = 3, #ARGV do
  if redis.call('XACK', KEYS[1], ARGV[1], ARGV[i]) == 1 then
    redis.call('XDEL', KEYS[1], ARGV[i])
    redis.call('HDEL', KEYS[2], ARGV[i])
    free(KEYS[i], ARGV[2])
    done = done + 1
  end
end
return done
"""
)

#: KEYS in, attempts, dead, drops, drop_counts, record, history, history_bytes
#: ARGV group, id, max_attempts, retention_s, counted_as, history_kind ('' = off), history_max_entries,
#: history_max_bytes, num_dead_fields, dead_field..., drop_field...
FAIL = (
    _FREE
    + _REMEMBER
    + """
if redis.call('HINCRBY', KEYS[2], ARGV[2], 1) < tonumber(ARGV[3]) then return 0 end
redis.call('HDEL', KEYS[2], ARGV[2])
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[2])
local dead = tonumber(ARGV[9])
redis.call('XADD', KEYS[3], '*', unpack(ARGV, 10, 9 + dead))
redis.call('XADD', KEYS[4], '*', unpack(ARGV, 10 + dead))
redis.call('HINCRBY', KEYS[5], ARGV[5], 1)
free(KEYS[6], ARGV[4])
remember_hop(6, '', 10 + dead)
return 1
"""
)

#: KEYS history, history_bytes; ARGV max_entries, max_bytes, num_names, name..., then each entry's kind and values in
#: the order of the names.
REMEMBER = (
    _REMEMBER
    + """
local num_names = tonumber(ARGV[3])
for first = 4 + num_names, #ARGV, 1 + num_names do
  local entry = {'kind', ARGV[first]}
  for i = 1, num_names do entry[2 * i + 1], entry[2 * i + 2] = ARGV[3 + i], ARGV[first + i] end
  remember(KEYS[1], KEYS[2], ARGV[1], ARGV[2], entry)
end
return 1
"""
)

#: KEYS lease, fence; ARGV owner, lease_ms
LEASE = """
local held = redis.call('GET', KEYS[1])
if held then
  local owner, token = string.match(held, '^(.*)|(%d+)$')
  if owner ~= ARGV[1] then return 0 end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(token)
end
local token = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1] .. '|' .. token, 'PX', ARGV[2])
return token
"""

#: KEYS notes, fence; ARGV fence, keep_ms, most, note...
NOTE_TURNS = (
    _FENCE
    + """
if fenced(KEYS[2], ARGV[1]) then return -1 end
for i = 4, #ARGV do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[3], '*', 'data', ARGV[i]) end
local now = redis.call('TIME')
local oldest = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) - tonumber(ARGV[2])
redis.call('XTRIM', KEYS[1], 'MINID', '~', string.format('%.0f', math.max(0, oldest)))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return #ARGV - 3
"""
)

#: KEYS stream; ARGV group, idle_ms
REMOVE_IDLE_CONSUMERS = """
local removed = 0
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #info, 2 do consumer[info[i]] = info[i + 1] end
  if consumer['pending'] == 0 and consumer['idle'] > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer['name'])
    removed = removed + 1
  end
end
return removed
"""

#: KEYS value, index; ARGV data, ttl_s, max_entries, key_prefix, name
KEEP = """
local now = redis.call('TIME')
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
redis.call('ZADD', KEYS[2], now[1] * 1000000 + now[2], ARGV[5])
redis.call('EXPIRE', KEYS[2], ARGV[2])
local over = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[3])
if over > 0 then
  local oldest = redis.call('ZPOPMIN', KEYS[2], over)
  for i = 1, #oldest, 2 do redis.call('DEL', ARGV[4] .. oldest[i]) end
end
return 1
"""
