-- Renew the lease of a stream, unless another holder has taken it.
-- ARGV: id, who has it, for how much longer

local id, holder, lease_ms = unpack(ARGV)
if redis.call('HGET', stream, 'by') ~= holder then return LEASE_LOST end
redis.call('SET', lease, holder, 'PX', lease_ms)
live(id, math.max(redis.call('PTTL', stream), 2 * lease_ms))
return CHANGED
