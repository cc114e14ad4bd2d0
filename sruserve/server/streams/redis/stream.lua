-- The beginning of every script. It may use the constants of `Status` in scripts.py, which stand
-- before it. Times are in milliseconds, by Redis' clock.
--
-- A script may run twice for one call, because the client resends a command whose reply was lost.
-- A Redis at its `maxmemory` refuses a script at its first write, unless that write takes no
-- memory. So a script that is refused there has changed nothing, and a script that frees memory
-- begins with a write that takes none.

-- The keys of the stream: the record, its lease, and the tombstone that earlier versions wrote.
local stream, lease, tombstone = KEYS[1], KEYS[2], KEYS[3]
-- The tables of the tenant's streams: the bytes of each, the end of each, the sum of the bytes,
-- and the expired ids with their ends.
local sizes, ends, sum, expired = KEYS[4], KEYS[5], KEYS[6], KEYS[7]

-- The field `by` of a record names the holder of the lease, also after the lease has run out. A
-- holder that has committed and released the stream stands there with `-` before its name.

local function after(milliseconds)
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000) + milliseconds
end

-- A field of the record; empty if it is longer than `max_bytes`.
local function read(field, max_bytes)
  if redis.call('HSTRLEN', stream, field) > tonumber(max_bytes) then return '' end
  return redis.call('HGET', stream, field) or ''
end

-- The reply of a script that found the stream.
local function found(max_head_bytes, left, state)
  local reply_bytes = redis.call('HSTRLEN', stream, 'reply')
  return {STORED, read('head', max_head_bytes), left, reply_bytes, state}
end

-- The state after the last step; empty unless `step` is the next step, or is empty itself. A rewind
-- deletes the states after it, so the state of the highest number is the last one.
local function last_state(step, max_bytes)
  local last, field = -1, nil
  for _, name in ipairs(redis.call('HKEYS', stream)) do
    local number = tonumber(string.match(name, '^state(%d+)$'))
    if number and number > last then last, field = number, name end
  end
  if not field or (step ~= '' and tonumber(step) ~= last + 1) then return '' end
  return read(field, max_bytes)
end

-- The reply of a script that did not.
local function missing(id)
  if redis.call('EXISTS', tombstone) == 1 or redis.call('ZSCORE', ends, id)
    or redis.call('ZSCORE', expired, id) then return {EXPIRED} end
  return {UNKNOWN}
end
