"""What Redis does to a stream in one go. Times are in milliseconds, all of them by Redis' clock.

Every script may run twice for one call, because a command whose answer was lost is sent again.
A Redis at its `maxmemory` refuses a script at its first write, unless that write takes no memory:
so what is refused there has changed nothing, and what frees memory begins with such a write.
"""

from typing import Final

# KEYS: the stream, its lease, its tombstone, which earlier versions wrote; then what the tenant's
# streams take: the bytes of each, when each ends, and the sum; and which of them have expired,
# when. A stream's `by` is who has it, whether its lease still runs or not; `-` stands before who
# made it what it is and gave it back.
_KEYS = """
local stream, lease, tombstone = KEYS[1], KEYS[2], KEYS[3]
local sizes, ends, sum, expired = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local function after(milliseconds)
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000) + milliseconds
end
"""
UNKNOWN, EXPIRED, BUSY, FOUND = range(4)

# Why a stream is not there.
_ABSENT = f"""
local function absent(id)
  if redis.call('EXISTS', tombstone) == 1 or redis.call('ZSCORE', ends, id)
    or redis.call('ZSCORE', expired, id) then return {{{EXPIRED}}} end
  return {{{UNKNOWN}}}
end
"""

# What of a stream may be too long to be read is left out.
_READ = """
local function read(field, most)
  if redis.call('HSTRLEN', stream, field) > tonumber(most) then return '' end
  return redis.call('HGET', stream, field) or ''
end
"""

# A stream counts with all that belongs to it: its keys and its place in the tenant's tables; then
# each field, as the allocator rounds it.
GONE_MS = 24 * 3600 * 1000  # for which an expired stream is told from an unknown one
# Ids of a tenant that are told from unknown ones. One takes 1 KiB at most, so all of them take a
# 64th of the bytes that the tenant may have at most.
_MOST_EXPIRED, _BYTES_PER_EXPIRED = 1 << 14, 1 << 16
_STREAM_BYTES, _ID_BYTES, _FIELD_BYTES = 800, 5, 96

# Counts that do not fit together, because Redis has evicted a part of them, are begun anew, and so
# is what is no plain number: one of more digits cannot be added exactly. A
# stream that lives longer than it seemed counts for as long: `live` counts it if it has been
# counted out.
_COUNT = f"""
local function plain(text)
  if not text or #text > 15 then return nil end
  return (text == '0' or string.match(text, '^[1-9]%d*$')) and tonumber(text)
end
local function counted()
  for key, kind in pairs({{[sizes] = 'hash', [ends] = 'zset', [sum] = 'string'}}) do
    if redis.call('TYPE', key).ok ~= kind then return false end
  end
  return plain(redis.call('GETRANGE', sum, 0, 15))
end
local function bytes_of(id) return plain(redis.call('HGET', sizes, id)) or 0 end
local function held() return tonumber(redis.call('GET', sum) or 0) end
local function of_stream(id) return {_STREAM_BYTES} + {_ID_BYTES} * string.len(id) end
local function of_field(length) return {_FIELD_BYTES} + length + math.floor(length / 4) end
local function add(id, bytes, milliseconds)
  redis.call('ZREM', expired, id)
  redis.call('INCRBY', sum, bytes - bytes_of(id))
  redis.call('HSET', sizes, id, bytes)
  redis.call('ZADD', ends, after(milliseconds), id)
  for _, key in ipairs({{sizes, ends, sum, expired}}) do
    local least = milliseconds + {GONE_MS}
    if redis.call('PTTL', key) < least then redis.call('PEXPIRE', key, least) end
  end
end
local function mend()
  if not counted() then redis.call('DEL', sizes, ends, sum) end
  if not string.match(redis.call('TYPE', expired).ok, '^[nz]') then redis.call('DEL', expired) end
end
local function live(id, milliseconds)
  redis.call('PEXPIRE', stream, milliseconds)
  mend()
  local bytes = bytes_of(id)
  if bytes == 0 then
    bytes = of_stream(id)
    for _, field in ipairs(redis.call('HKEYS', stream)) do
      if field ~= 'by' then bytes = bytes + of_field(redis.call('HSTRLEN', stream, field)) end
    end
  end
  add(id, bytes, milliseconds)
end
"""

# What has ended is counted out here, because nothing tells when a key expires.
_HOLD = f"""{_COUNT}
local function count_out(now, names)
  local gone = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 100)
  for i = 1, #gone, 2 do
    redis.call('ZREM', ends, gone[i])
    redis.call('DECRBY', sum, bytes_of(gone[i]))
    redis.call('HDEL', sizes, gone[i])
    redis.call('ZADD', expired, gone[i + 1], gone[i])
  end
  redis.call('ZREMRANGEBYSCORE', expired, '-inf', now - {GONE_MS})
  redis.call('ZREMRANGEBYRANK', expired, 0, -names - 1)
  return #gone == 200
end
local function hold(id, bytes, most, idle)
  if most >= 0 then redis.call('SETRANGE', lease, 0, '') end  -- no change: see at the top
  local now = after(0)
  mend()
  if most >= 0 then
    local names = math.min({_MOST_EXPIRED}, math.floor(most / {_BYTES_PER_EXPIRED}))
    local more, turns = count_out(now, names), 1
    local added = bytes - bytes_of(id)
    while added > 0 and held() + added > most do
      if not more or turns == 10 then return held() end
      more, turns = count_out(now, names), turns + 1
      added = bytes - bytes_of(id)
    end
  end
  add(id, bytes, idle)
  return -1
end
"""

# A stream that was found: its head, how long it lives, how long its reply is.
_TOLD = f"""
local function told(most, left)
  return {{{FOUND}, read('head', most), left, redis.call('HSTRLEN', stream, 'reply')}}
end
"""

# ARGV: id, who takes it, for how long, longest head, 1 if it is to take less memory
TAKE: Final = f"""{_KEYS}{_READ}{_TOLD}{_ABSENT}{_COUNT}
if redis.call('EXISTS', stream) == 0 then return absent(ARGV[1]) end
if ARGV[5] == '1' then redis.call('HDEL', stream, '') end  -- a full Redis takes what follows
local taken = redis.call('SET', lease, ARGV[2], 'NX', 'PX', ARGV[3])
if not taken and redis.call('GET', lease) ~= ARGV[2] then return {{{BUSY}}} end
redis.call('HSET', stream, 'by', ARGV[2])
local left, least = redis.call('PTTL', stream), 2 * ARGV[3]
if left < least then live(ARGV[1], least) end
return told(ARGV[4], left)
"""

# ARGV: id, longest head
READ: Final = f"""{_KEYS}{_READ}{_TOLD}{_ABSENT}
if redis.call('EXISTS', stream) == 0 then return absent(ARGV[1]) end
return told(ARGV[2], redis.call('PTTL', stream))
"""

# ARGV: field, longest
READ_FIELD: Final = f"{_KEYS}{_READ} return read(ARGV[1], ARGV[2])"

# ARGV: who has it, for how much longer, id
RENEW: Final = f"""{_KEYS}{_COUNT}
if redis.call('HGET', stream, 'by') ~= ARGV[1] then return 0 end
redis.call('SET', lease, ARGV[1], 'PX', ARGV[2])
live(ARGV[3], math.max(redis.call('PTTL', stream), 2 * ARGV[2]))
return 1
"""

ADDED, EXISTS, NOT_MINE = -1, -2, -3

# ARGV: id, most bytes or -1, idle time, who adds it, fields and values
ADD: Final = f"""{_KEYS}{_HOLD}
if redis.call('HGET', stream, 'by') == '-' .. ARGV[4] then return {ADDED} end
local ended = redis.call('HGET', stream, 'ended')
if ended and ended ~= '1' then return {EXISTS} end
local bytes = of_stream(ARGV[1])
for i = 6, #ARGV, 2 do bytes = bytes + of_field(string.len(ARGV[i])) end
local full = hold(ARGV[1], bytes, tonumber(ARGV[2]), tonumber(ARGV[3]))
if full >= 0 then return full end
redis.call('DEL', stream)
redis.call('HSET', stream, 'by', '-' .. ARGV[4], unpack(ARGV, 5))
redis.call('PEXPIRE', stream, ARGV[3])
return {ADDED}
"""

# ARGV: as of ADD, but who has it; before the fields how many states stay, and those
COMMIT: Final = f"""{_KEYS}{_HOLD}
local by = redis.call('HGET', stream, 'by')
if by == '-' .. ARGV[4] then return {ADDED} end
if by ~= ARGV[4] then return {NOT_MINE} end
local staying, bytes, going, first = {{}}, of_stream(ARGV[1]), {{}}, 6 + ARGV[5]
for i = 6, first - 1 do staying[ARGV[i]] = true end
for _, field in ipairs(redis.call('HKEYS', stream)) do
  if staying[field] then bytes = bytes + of_field(redis.call('HSTRLEN', stream, field))
  elseif string.sub(field, 1, 5) == 'state' then table.insert(going, field) end
end
for i = first + 1, #ARGV, 2 do bytes = bytes + of_field(string.len(ARGV[i])) end
local full = hold(ARGV[1], bytes, tonumber(ARGV[2]), tonumber(ARGV[3]))
if full >= 0 then return full end
for i = 1, #going, 1000 do  -- `unpack` takes only so many
  redis.call('HDEL', stream, unpack(going, i, math.min(i + 999, #going)))
end
redis.call('HSET', stream, 'by', '-' .. ARGV[4], unpack(ARGV, first))
redis.call('PEXPIRE', stream, ARGV[3])
redis.call('DEL', lease)
return {ADDED}
"""

# ARGV: who has it; then, if that is known, how long it may be idle now, id
GIVE_BACK: Final = f"""{_KEYS}{_COUNT}
if redis.call('GET', lease) == ARGV[1] then redis.call('DEL', lease) end
if redis.call('HGET', stream, 'by') ~= ARGV[1] then return 0 end
redis.call('HDEL', stream, 'by')
if ARGV[2] then live(ARGV[3], ARGV[2]) end
return 1
"""

# ARGV: who has it, id
DELETE: Final = f"""{_KEYS}{_COUNT}
local by = redis.call('HGET', stream, 'by')
if by ~= ARGV[1] and redis.call('EXISTS', stream) == 1 then return {NOT_MINE} end
redis.call('DEL', stream, lease, tombstone)
mend()
if redis.call('HEXISTS', sizes, ARGV[2]) == 1 then
  redis.call('DECRBY', sum, bytes_of(ARGV[2]))
  redis.call('HDEL', sizes, ARGV[2])
  redis.call('ZREM', ends, ARGV[2])
end
return {ADDED}
"""
ALL: Final = (TAKE, READ, READ_FIELD, RENEW, ADD, COMMIT, GIVE_BACK, DELETE)
