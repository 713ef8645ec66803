#!lua flags=allow-oom
-- hook_ended: remember how a start-up hook ended in this epoch, or that it runs for long.
-- KEYS  prefix
-- ARGV  term, epoch, hook, who, state (done | failed | running), what went wrong or ''
-- returns 1, or 0 if another term leads or the epoch is over: then nothing is remembered
-- @include base events
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now
  or redis.call('HGET', P .. 'epoch', 'since') ~= ARGV[2] then
  return 0
end
local state, problem = ARGV[5], string.sub(ARGV[6], 1, 300)
local before = redis.call('HGET', P .. 'startup', ARGV[3]) or ''
local value = ARGV[2] .. '|' .. state .. '|' .. problem
redis.call('HSET', P .. 'startup', ARGV[3], value)
if state ~= 'running' and before ~= value then  -- the same failure again and again is one event
  log_event('startup-hook', ARGV[4],
    ARGV[3] .. ': ' .. (state == 'done' and state or state .. ': ' .. problem))
end
return 1
