"""What Redis does to a stream in one go. Times are in milliseconds, all of them by Redis' clock.

Every script may run twice for one call, because a command whose answer was lost is sent again.
"""

from typing import Final

# KEYS: the stream, its lease, its tombstone; then what the tenant's streams hold: the bytes of
# each, when each ends, and the sum. A stream's `by` is who has it, whether its lease still runs or
# not; `-` stands before who made it what it is and gave it back.
_KEYS = """
local stream, lease, tombstone = KEYS[1], KEYS[2], KEYS[3]
local sizes, ends, sum = KEYS[4], KEYS[5], KEYS[6]
local function after(milliseconds)
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000) + milliseconds
end
"""
UNKNOWN, EXPIRED, BUSY, FOUND = range(4)

# What of a stream may be too long to be read is left out.
_READ = """
local function read(field, most)
  if redis.call('HSTRLEN', stream, field) > tonumber(most) then return '' end
  return redis.call('HGET', stream, field) or ''
end
"""

# ARGV: who takes it, for how long, longest head, longest reply
TAKE: Final = f"""{_KEYS}{_READ}
if redis.call('EXISTS', stream) == 0 then return {{redis.call('EXISTS', tombstone)}} end
local head, reply = read('head', ARGV[3]), read('reply', ARGV[4])
local taken = redis.call('SET', lease, ARGV[1], 'NX', 'PX', ARGV[2])
if not taken and redis.call('GET', lease) ~= ARGV[1] then return {{{BUSY}}} end
redis.call('HSET', stream, 'by', ARGV[1])
local left, least = redis.call('PTTL', stream), 2 * ARGV[2]
if left < least then redis.call('PEXPIRE', stream, least) end
return {{{FOUND}, head, reply, left}}
"""

# ARGV: longest head
READ: Final = f"""{_KEYS}{_READ}
if redis.call('EXISTS', stream) == 0 then return {{redis.call('EXISTS', tombstone)}} end
return {{{FOUND}, read('head', ARGV[1]), false, redis.call('PTTL', stream)}}
"""

# ARGV: field, longest
READ_STATE: Final = f"{_KEYS}{_READ} return read(ARGV[1], ARGV[2])"

# ARGV: who has it, for how much longer, id
RENEW: Final = f"""{_KEYS}
if redis.call('HGET', stream, 'by') ~= ARGV[1] then return 0 end
redis.call('SET', lease, ARGV[1], 'PX', ARGV[2])
local least = 2 * ARGV[2]
if redis.call('PTTL', stream) < least then redis.call('PEXPIRE', stream, least) end
redis.call('ZADD', ends, 'XX', 'GT', after(least), ARGV[3])
return 1
"""

# What has ended is counted out here, because nothing tells when a key expires. Counts that do not
# fit together, because Redis has evicted a part of them, are begun anew.
_HOLD = """
local function counted()
  for key, kind in pairs({[sizes] = 'hash', [ends] = 'zset', [sum] = 'string'}) do
    if redis.call('TYPE', key).ok ~= kind then return false end
  end
  return string.match(redis.call('GETRANGE', sum, 0, 15), '^%d+$')
end
local function bytes_of(id) return tonumber(redis.call('HGET', sizes, id) or 0) or 0 end
local function hold(id, bytes, most, idle)
  if not counted() then redis.call('DEL', sizes, ends, sum) end
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', after(0), 'LIMIT', 0, 100)) do
    redis.call('DECRBY', sum, bytes_of(gone))
    redis.call('HDEL', sizes, gone)
    redis.call('ZREM', ends, gone)
  end
  local added = bytes - bytes_of(id)
  local held = tonumber(redis.call('GET', sum) or 0)
  if most >= 0 and added > 0 and held + added > most then return held end
  redis.call('INCRBY', sum, added)
  redis.call('HSET', sizes, id, bytes)
  redis.call('ZADD', ends, after(idle), id)
  for _, key in ipairs({sizes, ends, sum}) do
    if redis.call('PTTL', key) < 2 * idle then redis.call('PEXPIRE', key, 2 * idle) end
  end
  return -1
end
"""
ADDED, EXISTS, NOT_MINE = -1, -2, -3

# ARGV: id, bytes, most bytes or -1, idle time, tombstone's time, who adds it, fields and values
ADD: Final = f"""{_KEYS}{_HOLD}
if redis.call('HGET', stream, 'by') == '-' .. ARGV[6] then return {ADDED} end
local ended = redis.call('HGET', stream, 'ended')
if ended and ended ~= '1' then return {EXISTS} end
local held = hold(ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
if held >= 0 then return held end
redis.call('DEL', stream)
redis.call('HSET', stream, 'by', '-' .. ARGV[6], unpack(ARGV, 7))
redis.call('PEXPIRE', stream, ARGV[4])
redis.call('SET', tombstone, '', 'PX', ARGV[5])
return {ADDED}
"""

# ARGV: as of ADD, but the bytes of one state and who has it; before the fields how many states
# stay, and those
COMMIT: Final = f"""{_KEYS}{_HOLD}
local by = redis.call('HGET', stream, 'by')
if by == '-' .. ARGV[6] then return {ADDED} end
if by ~= ARGV[6] then return {NOT_MINE} end
local staying, states, going, first = {{}}, 0, {{}}, 8 + ARGV[7]
for i = 8, first - 1 do staying[ARGV[i]] = true end
for _, field in ipairs(redis.call('HKEYS', stream)) do
  if staying[field] then states = states + 1
  elseif string.sub(field, 1, 5) == 'state' then table.insert(going, field) end
end
for i = first, #ARGV, 2 do
  if staying[ARGV[i]] then states = states + 1 end
end
local held = hold(ARGV[1], states * ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]))
if held >= 0 then return held end
if #going > 0 then redis.call('HDEL', stream, unpack(going)) end
redis.call('HSET', stream, 'by', '-' .. ARGV[6], unpack(ARGV, first))
redis.call('PEXPIRE', stream, ARGV[4])
redis.call('SET', tombstone, '', 'PX', ARGV[5])
redis.call('DEL', lease)
return {ADDED}
"""

# ARGV: who has it; then, if that is known, how long it may be idle now, tombstone's time, id
GIVE_BACK: Final = f"""{_KEYS}
if redis.call('GET', lease) == ARGV[1] then redis.call('DEL', lease) end
if redis.call('HGET', stream, 'by') ~= ARGV[1] then return 0 end
redis.call('HDEL', stream, 'by')
if ARGV[2] then
  redis.call('PEXPIRE', stream, ARGV[2])
  redis.call('PEXPIRE', tombstone, ARGV[3])
  redis.call('ZADD', ends, 'XX', after(ARGV[2]), ARGV[4])
end
return 1
"""

# ARGV: who has it, id
DELETE: Final = f"""{_KEYS}
local by = redis.call('HGET', stream, 'by')
if by ~= ARGV[1] and redis.call('EXISTS', stream) == 1 then return {NOT_MINE} end
local bytes = redis.call('HGET', sizes, ARGV[2])
if bytes then
  redis.call('DECRBY', sum, bytes)
  redis.call('HDEL', sizes, ARGV[2])
  redis.call('ZREM', ends, ARGV[2])
end
redis.call('DEL', stream, lease, tombstone)
return {ADDED}
"""
ALL: Final = (TAKE, READ, READ_STATE, RENEW, ADD, COMMIT, GIVE_BACK, DELETE)
