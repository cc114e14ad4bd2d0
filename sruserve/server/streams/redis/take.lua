-- Take the lease of a stream. Read its head, and its last state where it is the start of a step.
-- ARGV: id, who takes it, for how long, longest head, 1 to take less memory (then no state is
-- read), longest state, number of the step to be done; empty: the next one

local id, holder, lease_ms, max_head_bytes, to_free, max_state_bytes, step = unpack(ARGV)
if redis.call('EXISTS', stream) == 0 then return missing(id) end
if to_free == '1' then redis.call('HDEL', stream, '') end  -- then a full Redis takes the rest
local taken = redis.call('SET', lease, holder, 'NX', 'PX', lease_ms)
if not taken and redis.call('GET', lease) ~= holder then return {BUSY} end
redis.call('HSET', stream, 'by', holder)
local left, least = redis.call('PTTL', stream), 2 * lease_ms
if left < least then live(id, least) end
local state = to_free == '1' and '' or last_state(step, max_state_bytes)
return found(max_head_bytes, left, state)
