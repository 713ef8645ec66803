#!lua flags=allow-oom
-- pause_entries: pause or resume periodic entries.
-- KEYS  prefix
-- ARGV  pause | resume, who, reason, entries …
-- returns the entries that changed
-- @include base events
local verb, who, reason = ARGV[1], ARGV[2], string.sub(ARGV[3], 1, 300)
local key = P .. 'periodic:paused'
local turned = {}
for i = 4, #ARGV do
  local entry = ARGV[i]
  local is_paused = redis.call('HEXISTS', key, entry) == 1
  if is_paused ~= (verb == 'pause') then
    turned[#turned + 1] = entry
    if verb == 'pause' then
      local since = digits(now - offset)
      redis.call('HSET', key, entry, since .. '|' .. who .. '|' .. reason)
    else
      redis.call('HDEL', key, entry)
    end
  end
end
if #turned > 0 then
  log_event('schedule-' .. verb, who, first_texts(turned, ', ') .. (reason ~= '' and ': ' .. reason or ''))
end
return turned
