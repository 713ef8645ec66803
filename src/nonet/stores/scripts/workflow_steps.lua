#!lua flags=no-writes
-- workflow_steps: read how far steps of a workflow are. It changes nothing.
-- KEYS  prefix
-- ARGV  workflow, n × place
-- returns n × how it ended; the state of its record; blocked: its predecessors have not ended; or lost: there is neither
-- @include base
local workflow = ARGV[1]
local places = {unpack(ARGV, 2)}
local answer = {}
for i, ended in ipairs(redis.call('HMGET', P .. 'f:' .. workflow .. ':results', unpack(places))) do
  local record = ended and {} or read_record(workflow .. ':' .. places[i])
  answer[i] = ended and string.match(ended, '^%a*') or record.blocked and 'blocked' or record.state or 'lost'
end
return answer
