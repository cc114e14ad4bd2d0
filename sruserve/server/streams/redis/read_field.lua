-- Read a field of a stream.
-- ARGV: field, longest

local field, max_bytes = unpack(ARGV)
return read(field, max_bytes)
