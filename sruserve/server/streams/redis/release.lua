-- Release a stream that was not changed.
-- ARGV: id, who has it, how long it may be idle now; empty: as long as before

local id, holder, idle = unpack(ARGV)
if redis.call('GET', lease) == holder then redis.call('DEL', lease) end
if redis.call('HGET', stream, 'by') ~= holder then return LEASE_LOST end
redis.call('HDEL', stream, 'by')
if idle ~= '' then live(id, idle) end
return CHANGED
