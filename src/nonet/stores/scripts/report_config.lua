#!lua flags=allow-oom
-- report_config: remember what is wrong with the source of the configuration now, or that it is good.
-- KEYS  prefix
-- ARGV  term, the problem or '', who
-- returns 1, or 0 if another term leads
-- @include base events
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now then
  return 0
end
local problem, key = ARGV[2], P .. 'config'
if (redis.call('HGET', key, 'problem') or '') == problem then
  return 1
end
if problem == '' then
  redis.call('HDEL', key, 'problem', 'problem_at')
else
  redis.call('HSET', key, 'problem', problem, 'problem_at', digits(now - offset))
  log_event('config-refused', ARGV[3], problem)
end
return 1
