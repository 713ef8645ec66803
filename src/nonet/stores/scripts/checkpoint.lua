#!lua flags=allow-oom
-- checkpoint: keep what a running attempt saves for the next one, also when memory is full: what
-- runs must be able to end then.
-- KEYS  prefix
-- ARGV  id, gen, fence, data
-- returns OK | STALE (not the owner: nothing was kept)
-- @include base
local key = P .. 't:' .. ARGV[1]
local record = read_fields(key, {'gen', 'fence'})
if record.gen ~= ARGV[2] or record.fence ~= ARGV[3] then
  return 'STALE'
end
redis.call('SET', P .. 'c:' .. ARGV[1], ARGV[4])
redis.call('HSET', key, 'saved', 1)
return 'OK'
