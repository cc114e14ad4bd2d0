-- Read the head of a stream, which lives no longer for that.
-- ARGV: id, longest head

local id, max_head_bytes = unpack(ARGV)
if redis.call('EXISTS', stream) == 0 then return missing(id) end
return found(max_head_bytes, redis.call('PTTL', stream), '')
