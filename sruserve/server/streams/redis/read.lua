-- Read the head of a stream, which lives no longer for that.
-- ARGV: id, longest head

local id, max_head_bytes = unpack(ARGV)
local left = redis.call('PTTL', stream)
if left == -2 then return missing(id) end
return found(left, redis.call('HGET', stream, 'head'), max_head_bytes, '', 0)
