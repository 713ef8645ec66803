#!lua
-- workflow_signal: let an event of a workflow come. Its step ends, at once or when its predecessors have ended. Only the
-- first call counts; a repeated one finishes what a cut script has left. Fails when memory is full.
-- KEYS  prefix
-- ARGV  keeping, workflow, place of the step, who, result of the step (a document)
-- returns {who, when µs, document} of the first call; or, if the event can no longer come, the state of the workflow or
--       '', and how the step has ended or ''
-- @include base wake record counting submitting index group keeping finish ending workflow
local workflow, place, by, document = unpack(ARGV, 2, 5)
local key, id, OPEN = P .. 'f:' .. workflow, step_id(workflow, place), {building = true, running = true, resuming = true}

local signal = redis.call('HGET', key .. ':signals', place)
if not signal then
  local flow = flow_of(workflow)
  if not OPEN[flow.state] or flow.cancel or not read_record(id).blocked then
    local ended = redis.call('HGET', key .. ':results', place) or ''
    return {flow.cancel and 'cancelled' or flow.state or '', string.match(ended, '^%a*')}
  end
  signal = by .. '\n' .. digits(now - offset) .. '\n' .. document
  redis.call('HSET', key .. ':signals', place, signal)
end
if redis.call('SISMEMBER', P .. 'm:' .. id, '@' .. place) == 1 then
  follow('@' .. place, 'done', 'a', workflow, place)
  write_collected()
  end_unable()
  end_workflow(workflow)
end
return {string.match(signal, '^([^\n]*)\n([^\n]*)\n(.*)$')}
