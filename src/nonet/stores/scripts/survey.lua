#!lua flags=no-writes
-- survey: list all tasks that have not ended, at one instant. Only tests may call it: it reads everything.
-- KEYS  prefix
-- ARGV  none
-- returns {µs until something is due (-1: nothing is), n × (id, name, state, whether it has run:
--       1|0) of each task that has not ended}
-- @include base progress each
local left = {}
each_record(function(id, record)
  if record.state and record.stream ~= 'hold' then
    left[id] = record  -- a scan may show one twice
  end
end)
local answer = {digits(next_due())}
for id, record in pairs(left) do
  answer[#answer + 1] = id
  answer[#answer + 1] = record.name or ''
  answer[#answer + 1] = record.state
  answer[#answer + 1] = has_begun(record) and '1' or '0'
end
return answer
