#!lua flags=allow-oom
-- hasten: make delayed tasks due now, including tasks that wait for a retry.
-- KEYS  prefix
-- ARGV  n × id
-- returns n × the state of the task before; '' if it is unknown
-- @include base wake record
local answer = {}
for i, id in ipairs(ARGV) do
  local record = read_record(id)
  local state = record.stream ~= 'hold' and record.state
  if state == 'delayed' then
    change(id, {due = now})
    delay(id, now)
  end
  answer[i] = state or string.match(redis.call('GETRANGE', P .. 'r:' .. id, 0, 63), '^[^|]*')
end
return answer
