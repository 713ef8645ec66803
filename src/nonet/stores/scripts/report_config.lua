#!lua flags=allow-oom
-- report_config: record what is wrong with the source of the configuration now, or that it is valid.
-- KEYS  prefix
-- ARGV  term, the problem or '', who
-- returns 1, or 0 if another term leads
-- @include base leading events
local term, problem, who, key = ARGV[1], ARGV[2], ARGV[3], P .. 'config'
if not leads(term) then
  return 0
end
if (redis.call('HGET', key, 'problem') or '') == problem then
  return 1
end
if problem == '' then
  redis.call('HDEL', key, 'problem', 'problem_at')
else
  redis.call('HSET', key, 'problem', problem, 'problem_at', digits(now - offset))
  log_event('config-refused', who, problem)
end
return 1
