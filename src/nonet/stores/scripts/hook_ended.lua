#!lua flags=allow-oom
-- hook_ended: remember how a start-up hook ended in this epoch.
-- KEYS  prefix
-- ARGV  term, epoch, hook, who, what went wrong or '' if it succeeded
-- returns 1, or 0 if another term leads or the epoch is over: then nothing is remembered
-- @include base events
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now
  or redis.call('HGET', P .. 'epoch', 'since') ~= ARGV[2] then
  return 0
end
local state = ARGV[5] == '' and 'done' or 'failed'
local before = redis.call('HGET', P .. 'startup', ARGV[3]) or ''
local value = ARGV[2] .. '|' .. state .. '|' .. string.sub(ARGV[5], 1, 300)
redis.call('HSET', P .. 'startup', ARGV[3], value)
if before ~= value then  -- the same failure again and again is one event
  log_event('startup-hook', ARGV[4],
    ARGV[3] .. ': ' .. (state == 'done' and state or state .. ': ' .. string.sub(ARGV[5], 1, 300)))
end
return 1
