-- The bytes that a tenant's streams take. A stream counts with its keys, its entries in the
-- tenant's tables, and each field as the allocator rounds it.

local STREAM_BYTES, ID_BYTES, FIELD_BYTES = 800, 5, 96

-- An expired stream is told apart from an unknown one for a day, and for so many ids of a tenant.
-- An id takes 1 KiB at most, so all of them take at most a 64th of the tenant's bytes.
local EXPIRED_MS = 24 * 3600 * 1000
local MAX_EXPIRED, BYTES_PER_EXPIRED = 16384, 65536

local function plain(text)  -- a number of more digits cannot be added exactly
  if not text or #text > 15 then return nil end
  return (text == '0' or string.match(text, '^[1-9]%d*$')) and tonumber(text)
end

local function counted()
  for key, kind in pairs({[sizes] = 'hash', [ends] = 'zset', [sum] = 'string'}) do
    if redis.call('TYPE', key).ok ~= kind then return false end
  end
  return plain(redis.call('GETRANGE', sum, 0, 15))
end

local function bytes_of(id) return plain(redis.call('HGET', sizes, id)) or 0 end
local function total() return tonumber(redis.call('GET', sum) or 0) end
local function of_stream(id) return STREAM_BYTES + ID_BYTES * string.len(id) end
local function of_field(length) return FIELD_BYTES + length + math.floor(length / 4) end

-- Count a stream with its bytes until its end.
local function add(id, bytes, milliseconds)
  redis.call('ZREM', expired, id)
  redis.call('INCRBY', sum, bytes - bytes_of(id))
  redis.call('HSET', sizes, id, bytes)
  redis.call('ZADD', ends, after(milliseconds), id)
  for _, key in ipairs({sizes, ends, sum, expired}) do
    local least = milliseconds + EXPIRED_MS
    if redis.call('PTTL', key) < least then redis.call('PEXPIRE', key, least) end
  end
end

-- Begin the tables anew if they do not fit together, as after an eviction of some of them.
local function mend()
  if not counted() then redis.call('DEL', sizes, ends, sum) end
  if not string.match(redis.call('TYPE', expired).ok, '^[nz]') then redis.call('DEL', expired) end
end

-- Let the stream live for so long. It is counted again if it has been counted out meanwhile.
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

-- Count out streams that have ended, because nothing happens when a key expires. Keep at most
-- `max_ids` expired ids. Return whether there may be more.
local function count_out(now, max_ids)
  local gone = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 100)
  for i = 1, #gone, 2 do
    redis.call('ZREM', ends, gone[i])
    redis.call('DECRBY', sum, bytes_of(gone[i]))
    redis.call('HDEL', sizes, gone[i])
    redis.call('ZADD', expired, gone[i + 1], gone[i])
  end
  redis.call('ZREMRANGEBYSCORE', expired, '-inf', now - EXPIRED_MS)
  redis.call('ZREMRANGEBYRANK', expired, 0, -max_ids - 1)
  return #gone == 200
end

-- Count a stream with its new bytes, or return the tenant's total if that leaves too few of
-- `max_bytes`. A negative `max_bytes` is no limit.
local function hold(id, bytes, max_bytes, idle)
  if max_bytes >= 0 then redis.call('SETRANGE', lease, 0, '') end  -- refused by a full Redis
  local now = after(0)
  mend()
  if max_bytes >= 0 then
    local max_ids = math.min(MAX_EXPIRED, math.floor(max_bytes / BYTES_PER_EXPIRED))
    local more, turns = count_out(now, max_ids), 1
    local added = bytes - bytes_of(id)
    while added > 0 and total() + added > max_bytes do
      if not more or turns == 10 then return total() end
      more, turns = count_out(now, max_ids), turns + 1
      added = bytes - bytes_of(id)
    end
  end
  add(id, bytes, idle)
  return CHANGED
end
