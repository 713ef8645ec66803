#!lua flags=allow-oom
-- resume: end pauses. Checks the tasks that they parked, and wakes idle workers.
-- KEYS  prefix
-- ARGV  who, n × what (see pause)
-- returns n × (1 resumed | 0 it was not paused)
-- @include base wake events pausing resuming
local who, key = ARGV[1], P .. 'paused'
local answer, done = {}, {}
for i = 2, #ARGV do
  local what = ARGV[i]
  local is_paused = redis.call('HEXISTS', key, what) == 1
  answer[#answer + 1] = is_paused and 1 or 0
  done[#done + 1] = is_paused and what or nil
end
if #done > 0 then
  log_event('resume', who, table.concat(done, ', '))
end
for _, what in ipairs(done) do
  redis.call('HDEL', key, what)
end
mark_pausing(false)
-- For all that were asked: if Redis stopped an earlier call in between, they are no longer paused now.
start_again({unpack(ARGV, 2)})
return answer
