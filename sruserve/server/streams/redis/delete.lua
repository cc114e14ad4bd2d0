-- Delete a taken stream.
-- ARGV: id, who has it

local id, holder = unpack(ARGV)
local by = redis.call('HGET', stream, 'by')
if by ~= holder and redis.call('EXISTS', stream) == 1 then return LEASE_LOST end
redis.call('DEL', stream, lease, tombstone)
mend()
if redis.call('HEXISTS', sizes, id) == 1 then
  redis.call('DECRBY', sum, bytes_of(id))
  redis.call('HDEL', sizes, id)
  redis.call('ZREM', ends, id)
end
return CHANGED
