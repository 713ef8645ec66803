#!lua flags=allow-oom
-- retire: an idle worker that wants to end leaves the stack of idle ones, unless there is work for it: what
-- is submitted before this script keeps it, what comes after it wakes others.
-- KEYS  prefix
-- ARGV  worker, size
-- returns 1, or 0 if it has to look at its streams once more
-- @include base unread pauses
local worker, size = ARGV[1], ARGV[2]
if redis.call('EXISTS', P .. 'wake:' .. worker) == 1 then
  return 0
end
local pauses = read_pauses()
for _, priority in ipairs({'realtime', 'normal', 'background'}) do
  for _, kind in ipairs({'woken', 'tasks'}) do
    local key = P .. kind .. ':' .. priority .. ':' .. size
    local is_paused = pauses.all or kind == 'tasks' and pauses['stream:' .. priority .. ':' .. size]
    if not is_paused and unread(key) > 0 then
      return 0
    end
  end
end
redis.call('ZREM', P .. 'idle:' .. size, worker)
return 1
