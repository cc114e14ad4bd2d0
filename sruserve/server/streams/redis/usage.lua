-- The bytes that a tenant's streams take. A stream counts with its keys, its entries in the
-- tenant's tables, and each field as the allocator rounds it.

local STREAM_BYTES, ID_BYTES, FIELD_BYTES = 800, 5, 96

-- An expired stream is told apart from an unknown one for a day, and for so many ids of a tenant.
-- An id takes 1 KiB at most, so all of them take at most a 64th of the tenant's bytes.
local EXPIRED_MS = 24 * 3600 * 1000
local SPARE_MS = 3600 * 1000  -- by which tables live longer, so that few commits prolong them
local MAX_EXPIRED, BYTES_PER_EXPIRED = 16384, 65536

local function plain(text)  -- a number of more digits cannot be added exactly
  if not text or #text > 15 then return nil end
  return (text == '0' or string.match(text, '^[1-9]%d*$')) and tonumber(text)
end

-- How many a table has; nil if it is none, or has none.
local function count(command, table)
  local number = tonumber(redis.pcall(command, table))
  return number ~= 0 and number or nil
end

local function counted()
  if not count('HLEN', sizes) or not count('ZCARD', ends) then return false end
  local digits = redis.pcall('GETRANGE', sum, 0, 15)
  return type(digits) == 'string' and plain(digits)
end

local function bytes_of(id) return plain(redis.call('HGET', sizes, id)) or 0 end
local function total() return tonumber(redis.call('GET', sum) or 0) end
local function of_stream(id) return STREAM_BYTES + ID_BYTES * string.len(id) end
local function of_field(length) return FIELD_BYTES + length + math.floor(length / 4) end

-- Count a stream with its bytes until its end. before: the bytes that it counts with until now.
local function add(id, before, bytes, milliseconds)
  if before == 0 then redis.call('ZREM', expired, id) end
  if bytes ~= before then
    redis.call('INCRBY', sum, bytes - before)
    redis.call('HSET', sizes, id, bytes)
  end
  redis.call('ZADD', ends, after(milliseconds), id)
  -- `ends` begins anew whenever one of these tables does.
  local least = milliseconds + EXPIRED_MS
  if redis.call('PTTL', ends) < least then
    for _, key in ipairs({sizes, ends, sum}) do redis.call('PEXPIRE', key, least + SPARE_MS) end
  end
end

-- Begin the tables anew if they do not fit together, as after an eviction of some of them. Return
-- how many expired ids there are.
local function mend()
  if not counted() then redis.call('DEL', sizes, ends, sum) end
  local names = redis.pcall('ZCARD', expired)
  if type(names) == 'number' then return names end
  redis.call('DEL', expired)
  return 0
end

-- Let the stream live for so long. It is counted again if it has been counted out meanwhile.
local function live(id, milliseconds)
  redis.call('PEXPIRE', stream, milliseconds)
  mend()
  local before = bytes_of(id)
  local bytes = before
  if bytes == 0 then
    bytes = of_stream(id)
    for _, field in ipairs(redis.call('HKEYS', stream)) do
      if field ~= 'by' then bytes = bytes + of_field(redis.call('HSTRLEN', stream, field)) end
    end
  end
  add(id, before, bytes, milliseconds)
end

-- Count out streams that have ended, because nothing happens when a key expires. Keep at most
-- `max_ids` of `names` expired ids and the new ones. Return whether there may be more.
local function count_out(now, names, max_ids)
  local gone = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 100)
  for i = 1, #gone, 2 do
    redis.call('ZREM', ends, gone[i])
    redis.call('DECRBY', sum, bytes_of(gone[i]))
    redis.call('HDEL', sizes, gone[i])
    redis.call('ZADD', expired, gone[i + 1], gone[i])
  end
  if names + #gone > 0 then
    redis.call('ZREMRANGEBYSCORE', expired, '-inf', now - EXPIRED_MS)
    redis.call('ZREMRANGEBYRANK', expired, 0, -max_ids - 1)
    if #gone > 0 then redis.call('PEXPIRE', expired, EXPIRED_MS) end
  end
  return #gone == 200
end

-- Count a stream with its new bytes, or return the tenant's total if that leaves too few of
-- `max_bytes`. A negative `max_bytes` is no limit.
local function hold(id, bytes, max_bytes, idle)
  local limited, before = max_bytes >= 0, nil
  if limited then
    redis.call('SETRANGE', lease, 0, '')  -- refused by a full Redis
  else
    redis.call('HDEL', stream, '')  -- then a full Redis takes the rest
  end
  local now, names = after(0), mend()
  local max_ids = math.min(MAX_EXPIRED, math.floor(max_bytes / BYTES_PER_EXPIRED))
  local more, turns = true, 0
  while limited do
    if not more or turns == 10 then return total() end
    more, turns = count_out(now, names, max_ids), turns + 1
    before = bytes_of(id)  -- after the stream itself may have been counted out
    if bytes <= before or total() + bytes - before <= max_bytes then break end
  end
  add(id, before or bytes_of(id), bytes, idle)
  return CHANGED
end
