#!lua flags=allow-oom
-- hook_ended: record how a start-up hook ended in this epoch, or that it is still running.
-- KEYS  prefix
-- ARGV  term, epoch, hook, who, state (done | failed | running), what went wrong or ''
-- returns 1, or 0 if another term leads or the epoch is over: then nothing is recorded
-- @include base leading events
local term, epoch_of_hook, hook, who, state, problem = unpack(ARGV, 1, 6)
if not leads(term) or redis.call('HGET', P .. 'epoch', 'since') ~= epoch_of_hook then
  return 0
end
problem = string.sub(problem, 1, 300)
local before = redis.call('HGET', P .. 'startup', hook) or ''
local value = epoch_of_hook .. '|' .. state .. '|' .. problem
redis.call('HSET', P .. 'startup', hook, value)
if state ~= 'running' and before ~= value then  -- a repeated failure is one event
  log_event('startup-hook', who, hook .. ': ' .. (state == 'done' and state or state .. ': ' .. problem))
end
return 1
