#!lua flags=allow-oom
-- retire: remove an idle worker that wants to stop from the stack of idle workers, unless there is work for it. A
-- task submitted before this script keeps it; a task submitted after it wakes other workers.
-- KEYS  prefix
-- ARGV  worker, size
-- returns 1, or 0 if it must fetch once more
-- @include base wake record fitting handing streams unread pauses
local worker, size = ARGV[1], ARGV[2]
local pauses = read_pauses()
if redis.call('EXISTS', P .. 'wake:' .. worker) == 1 or not pauses.all and handed_for(worker, size) then
  return 0
end
for _, stream in ipairs(streams_of(size)) do
  local is_paused = pauses.all or stream.kind ~= 'woken' and pauses['stream:' .. stream.priority .. ':' .. size]
  if not (is_paused and stream.kind ~= 'burials') and unread(stream.key) > 0 then
    return 0
  end
end
redis.call('ZREM', P .. 'idle:' .. size, worker)
return 1
