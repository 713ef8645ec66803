#!lua
-- retry_quarantined: submit an entry of the quarantine as a task, once, and take it out. Fails
-- loudly when memory is full.
-- KEYS  prefix
-- ARGV  entry, who; of the task: id (made of the entry), name, stream, envelope, locks
-- returns 1 made | 0 the task is known: it was done before | -1 there is no such entry; or
--       {'IMPOSSIBLE', id, why}: it counts for more than a limiter allows
-- @include base wake record rescue events
-- @defer limits locks impossible_lines
local entry, id, stream, lines = ARGV[1], ARGV[3], ARGV[5], ARGV[7]
local item = redis.call('XRANGE', P .. 'quarantine', entry, entry)[1]
local is_known = redis.call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) > 0
if not item and not is_known then
  return -1
end
local why = not is_known and string.find(lines, 'L|', 1, true) and impossible_lines(lines)
if why then
  return {'IMPOSSIBLE', id, why}
end
local made = item and submit_one(id, ARGV[4], stream, 0, '', ARGV[6], lines) or 0
if made == 1 then
  wake(size_of(stream), 1)
end
if item then
  log_event('quarantine-retry', ARGV[2], 'entry ' .. entry .. ' as task ' .. id)
  leave_quarantine(item)
end
return made
