#!lua
-- hold: take locks for code that is not a task, all or none; the watchdog renews them.
-- KEYS  prefix
-- ARGV  id (made by the client), locks, lock ttl ms
-- returns {'OK', fence} | {'REFUSED', name of the lock}
-- @include base locks
-- The reply to an earlier call may have been lost: its locks must not refuse their own holder.
local before = redis.call('GET', P .. 'l:' .. ARGV[1])
if before then
  return {'OK', string.match(before, 'fence (%d+)$')}
end
local fence = digits(math.max(tonumber(redis.call('GET', P .. 'fence') or '0'), now) + 1)
local blocker = take_locks(parse_locks(ARGV[2], tonumber(ARGV[3])), ARGV[1] .. '/0/' .. fence)
if blocker then
  return {'REFUSED', blocker}
end
redis.call('SET', P .. 'fence', fence)
-- The last line is no lock, and no reader of locks takes it for one.
redis.call('SET', P .. 'l:' .. ARGV[1], ARGV[2] .. '\nfence ' .. fence, 'PX', tonumber(ARGV[3]) * 2)
return {'OK', fence}
