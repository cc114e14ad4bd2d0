-- Change a taken stream as a whole, and release it.
-- ARGV: id, most bytes or -1, idle time, who has it, steps of the first and the last state that
-- stay, new fields and values

local id, max_bytes, idle, holder, first, last = unpack(ARGV, 1, 6)
local FIRST = 7
local by = redis.call('HGET', stream, 'by')
if by == '-' .. holder then return CHANGED end
if by ~= holder then return LEASE_LOST end
local staying, bytes, going = {}, of_stream(id), {}
for step = first, last do staying['state' .. step] = true end
for _, field in ipairs(redis.call('HKEYS', stream)) do
  if staying[field] then bytes = bytes + of_field(redis.call('HSTRLEN', stream, field))
  elseif string.sub(field, 1, 5) == 'state' then table.insert(going, field) end
end
for i = FIRST + 1, #ARGV, 2 do bytes = bytes + of_field(string.len(ARGV[i])) end
local full = hold(id, bytes, tonumber(max_bytes), tonumber(idle))
if full >= 0 then return full end
for i = 1, #going, 1000 do  -- `unpack` takes only so many
  redis.call('HDEL', stream, unpack(going, i, math.min(i + 999, #going)))
end
redis.call('HSET', stream, 'by', '-' .. holder, unpack(ARGV, FIRST))
redis.call('PEXPIRE', stream, idle)
redis.call('DEL', lease)
return CHANGED
