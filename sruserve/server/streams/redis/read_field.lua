-- Read a field of a taken stream. Another holder may have changed it meanwhile.
-- ARGV: field, longest, who has it

local field, max_bytes, holder = unpack(ARGV)
if redis.call('HGET', stream, 'by') ~= holder then return LEASE_LOST end
return bounded(redis.call('HGET', stream, field), max_bytes)
