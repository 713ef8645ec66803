#!lua flags=allow-oom
-- override_limit: override a configured limit, or remove the override. The next admission uses it, and the tasks
-- that wait for the limiter are checked at once.
-- KEYS  prefix
-- ARGV  field of HASH limits, value or '' to remove the override, who
-- returns 1, or 0 if there was no override to remove
-- @include base hashes wake limits mutexes locks events turning
local field, value, who = ARGV[1], ARGV[2], ARGV[3]
local before = live_value(field)
if value == '' and not before then
  return 0
end
turn_limits({[field] = value ~= '' and value or config_value(field) or false})
set_field(P .. 'limits:live', field, value ~= '' and value .. ' ' .. digits(now) .. ' ' .. who)
if value ~= (before or '') then  -- otherwise the call is a repetition
  log_event(value == '' and 'limit-unset' or 'limit-set', who,
    change_in_words(field, before or config_value(field),
      value ~= '' and value or config_value(field)))
end
return 1
