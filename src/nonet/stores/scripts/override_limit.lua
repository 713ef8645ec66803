#!lua flags=allow-oom
-- override_limit: set a limit by hand, or go back to the configuration. It holds for the next
-- admission; whoever waits for the limiter is looked at again at once.
-- KEYS  prefix
-- ARGV  field of HASH limits, value or '' to go back, who
-- returns 1, or 0 if there is no override to go back from
-- @include base wake limits events turning
local field, value, who = ARGV[1], ARGV[2], ARGV[3]
local live = P .. 'limits:live'
local before = live_value(field)
if value == '' and not before then
  return 0
end
turn_limits({[field] = value ~= '' and value or config_value(field) or false})
if value == '' then
  redis.call('HDEL', live, field)
else
  redis.call('HSET', live, field, value .. ' ' .. digits(now) .. ' ' .. who)
end
if value ~= (before or '') then  -- else a repeated call
  log_event(value == '' and 'limit-unset' or 'limit-set', who,
    change_in_words(field, before or config_value(field),
      value ~= '' and value or config_value(field)))
end
return 1
