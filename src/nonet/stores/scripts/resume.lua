#!lua flags=allow-oom
-- resume: start again what was paused. Who waits for it is looked at, and idle workers are woken.
-- KEYS  prefix
-- ARGV  who, n × what (see pause)
-- returns n × (1 resumed | 0 it was not paused)
-- @include base wake events pausing resuming
local who, key = ARGV[1], pauses_in('paused')
local answer, done = {}, {}
for i = 2, #ARGV do
  local is_paused = redis.call('HEXISTS', key, ARGV[i]) == 1
  answer[#answer + 1] = is_paused and 1 or 0
  done[#done + 1] = is_paused and ARGV[i] or nil
end
if #done > 0 then
  log_event('resume', who, table.concat(done, ', '))
end
for _, what in ipairs(done) do
  redis.call('HDEL', key, what)
end
mark_pausing(false)
start_again({unpack(ARGV, 2)})  -- also of what was not paused: a script that was cut is repeated
return answer
