#!lua flags=allow-oom
-- resume: start again what was paused. Who waits for it is looked at, and idle workers are woken.
-- KEYS  prefix
-- ARGV  who, n × what (see pause)
-- returns n × (1 resumed | 0 it was not paused)
-- @include base wake events
local MOST_WORKERS = 1000
local who, answer, done = ARGV[1], {}, {}
for i = 2, #ARGV do
  local is_paused = redis.call('HEXISTS', P .. 'paused', ARGV[i]) == 1
  answer[#answer + 1] = is_paused and 1 or 0
  done[#done + 1] = is_paused and ARGV[i] or nil
end
if #done > 0 then
  log_event('resume', who, table.concat(done, ', '))
end
for _, what in ipairs(done) do
  redis.call('HDEL', P .. 'paused', what)
end

-- Also of what was not paused: a script that was cut is repeated.
local function is_meant(stream, name)
  for i = 2, #ARGV do
    local kind, of = string.match(ARGV[i], '^(%a+):?(.*)$')
    if kind == 'all' or kind == 'stream' and of == stream
      or kind == 'task' and (of == name or of == string.match(name, '[^:]*$')) then
      return true
    end
  end
  return false
end

-- Those that were read while they were paused stand in queues of their own. (Whoever is paused by
-- something else, too, is refused again.)
local is_found = false
for _, name in ipairs(redis.call('ZRANGE', P .. 'watch', 0, -1)) do
  local stream, class = string.match(name, '^paused:(%a+:%a+):(.*)$')
  if stream and is_meant(stream, class) then
    redis.call('ZADD', P .. 'watch', digits(now), name)
    is_found = true
  end
end
if is_found then
  wake_promoter_for(now)
end
for _, size in ipairs({'small', 'medium', 'large'}) do
  local is_wanted = false
  for _, priority in ipairs({'realtime', 'normal', 'background'}) do
    is_wanted = is_wanted or is_meant(priority .. ':' .. size, '')
  end
  if is_wanted then
    wake(size, MOST_WORKERS)
  end
end
return answer
