#!lua flags=allow-oom
-- pause: start nothing of some work any more; what runs goes on. Submissions are accepted.
-- KEYS  prefix
-- ARGV  who, reason, n × what: all, stream:PRIORITY:SIZE or task:NAME
-- returns n × (1 paused | 0 it was before, by the same with the same reason)
-- @include base events pausing
local who, reason, key = ARGV[1], ARGV[2], pauses_in('paused')
local answer, new = {}, {}
for i = 3, #ARGV do
  local before = redis.call('HGET', key, ARGV[i])
  local is_new = not before or string.match(before, '^%d*|(.*)$') ~= who .. '|' .. reason
  if is_new then
    new[#new + 1] = ARGV[i]
  end
  answer[#answer + 1] = is_new and 1 or 0
end
-- Told first: a script that was cut is repeated, and a pause that nobody knows of would be worse.
if #new > 0 then
  log_event('pause', who, table.concat(new, ', ') .. (reason ~= '' and ': ' .. reason or ''))
end
mark_pausing(#new > 0)
for _, what in ipairs(new) do
  redis.call('HSET', key, what, digits(now - offset) .. '|' .. who .. '|' .. reason)
end
return answer
