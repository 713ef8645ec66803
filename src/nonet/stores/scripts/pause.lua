#!lua flags=allow-oom
-- pause: stop starting some tasks. Running tasks continue, and submissions are accepted.
-- KEYS  prefix
-- ARGV  who, reason, n × what, see lib/pauses
-- returns n × (1 paused | 0 it was paused before by the same operator with the same reason)
-- @include base events pausing
local who, reason, key = ARGV[1], ARGV[2], P .. 'paused'
local answer, new = {}, {}
for i = 3, #ARGV do
  local what = ARGV[i]
  local before = redis.call('HGET', key, what)
  local is_new = not before or string.match(before, '^%d*|(.*)$') ~= who .. '|' .. reason
  if is_new then
    new[#new + 1] = what
  end
  answer[#answer + 1] = is_new and 1 or 0
end
-- Log first: if Redis stops the script in between, an event without a pause is better than a pause without one.
if #new > 0 then
  log_event('pause', who, table.concat(new, ', ') .. (reason ~= '' and ': ' .. reason or ''))
end
mark_pausing(#new > 0)
for _, what in ipairs(new) do
  redis.call('HSET', key, what, digits(now - offset) .. '|' .. who .. '|' .. reason)
end
return answer
