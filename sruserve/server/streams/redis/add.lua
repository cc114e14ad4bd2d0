-- Add a stream, in place of an ended one of the same id.
-- ARGV: id, most bytes or -1, idle time, who adds it, fields and values

local id, max_bytes, idle, holder = unpack(ARGV, 1, 4)
local FIRST = 5
if redis.call('HGET', stream, 'by') == '-' .. holder then return CHANGED end
local ended = redis.call('HGET', stream, 'ended')
if ended and ended ~= '1' then return EXISTS end
local bytes = of_stream(id)
for i = FIRST + 1, #ARGV, 2 do bytes = bytes + of_field(string.len(ARGV[i])) end
local full = hold(id, bytes, tonumber(max_bytes), tonumber(idle))
if full >= 0 then return full end
redis.call('DEL', stream)
redis.call('HSET', stream, 'by', '-' .. holder, unpack(ARGV, FIRST))
redis.call('PEXPIRE', stream, idle)
return CHANGED
