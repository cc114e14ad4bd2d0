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

local now

local function after(milliseconds)
  if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return now + milliseconds
end

-- A text; empty if it is missing or longer than `max_bytes`.
local function bounded(text, max_bytes)
  return text and #text <= tonumber(max_bytes) and text or ''
end

-- The reply of a script that found the stream: one text, which a client reads at once.
local function found(left, head, max_head_bytes, state, max_state_bytes)
  head = bounded(head, max_head_bytes)
  local reply_bytes = redis.call('HSTRLEN', stream, 'reply')
  local numbers = string.format('%d %d %d ', left, reply_bytes, #head)
  return numbers .. head .. bounded(state, max_state_bytes)
end

-- The reply of a script that did not.
local function missing(id)
  if redis.call('EXISTS', tombstone) == 1 or redis.call('ZSCORE', ends, id)
    or redis.call('ZSCORE', expired, id) then return EXPIRED end
  return UNKNOWN
end
