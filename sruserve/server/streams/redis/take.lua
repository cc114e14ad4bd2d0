-- Take the lease of a stream. Read its head, and its last state where it is the start of a step.
-- ARGV: id, who takes it, for how long, longest head, 1 to take less memory (then no state is
-- read), longest state, number of the step to be done; empty: the next one

local id, holder, lease_ms, max_head_bytes, to_free, max_state_bytes, step = unpack(ARGV)

-- The name of the state before the step. A step that has a state was done already.
local function start()
  if step ~= '' then
    return redis.call('HSTRLEN', stream, 'state' .. step) == 0 and 'state' .. step - 1 or ''
  end
  local last = -1
  for _, name in ipairs(redis.call('HKEYS', stream)) do
    last = math.max(last, tonumber(string.match(name, '^state(%d+)$')) or -1)
  end
  return 'state' .. last
end

local left, least = redis.call('PTTL', stream), 2 * lease_ms
if left == -2 then return missing(id) end
if to_free == '1' then redis.call('HDEL', stream, '') end  -- then a full Redis takes the rest
local taken = redis.call('SET', lease, holder, 'NX', 'PX', lease_ms)
if not taken and redis.call('GET', lease) ~= holder then
  -- after a failover or a jump of the clock, a lease could outlive its holder
  local remaining = redis.call('PTTL', lease)
  if remaining < 0 or remaining > tonumber(lease_ms) then redis.call('PEXPIRE', lease, lease_ms) end
  return BUSY
end
redis.call('HSET', stream, 'by', holder)
if left < least then live(id, least) end
local name = to_free == '1' and '' or start()
local head, state = unpack(redis.call('HMGET', stream, 'head', name))
return found(left, head, max_head_bytes, state, max_state_bytes)
