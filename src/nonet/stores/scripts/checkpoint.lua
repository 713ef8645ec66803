#!lua flags=allow-oom
-- checkpoint: store the checkpoint of a running attempt for the next one. This works even when memory is full, so
-- that running tasks can end.
-- KEYS  prefix
-- ARGV  id, gen, fence, data
-- returns OK | STALE (not the owner: nothing was kept)
-- @include base
local id, gen, fence, data = unpack(ARGV, 1, 4)
local record = read_record(id)
if record.gen ~= gen or record.fence ~= fence then  -- fault: checkpoint-fence-unchecked
  return 'STALE'
end
redis.call('SET', P .. 'c:' .. id, data)
change(id, {saved = 1})
return 'OK'
