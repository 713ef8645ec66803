#!lua
-- workflow_stage: create steps of a workflow that has not started, and start it after the last of them.
-- KEYS  prefix
-- ARGV  keeping, workflow, title, id of the task that submits it or '', number of its steps, ms to keep it when it has
--       ended, ms if it has failed, 1 if an earlier workflow may have had its id else 0, 1 if nothing is missing after
--       this call else 0, number of steps in this call,
--       n × (arguments of submit_one; their terms begin with the line that lib/staging reads),
--       n × (letter of an edge, place of the predecessor, place of the successor): edges to steps whose predecessors have
--       more than 500 characters in their terms; the others are made from these
-- returns {its state: building until it is started; cancelled also if its steps have yet to be cancelled, 1 if this call
--       has started it else 0}; or {'TAKEN', id} if another task has the id of the workflow or of a step in this call
-- @include base wake record counting submitting index group keeping finish ending workflow staging
local workflow, steps, FIRST, FIELDS, LONGEST = ARGV[2], tonumber(ARGV[10]), 11, 8, 500
local key, ONE_DAY = P .. 'f:' .. workflow, 86400000
local state = redis.call('HGET', key, 'state')
if state and state ~= 'building' then
  return {state, 0}
elseif flow_of(workflow).cancel then  -- nothing would cancel these steps
  return {'cancelled', 0}
elseif not state then
  if redis.call('EXISTS', P .. 't:' .. workflow, P .. 'r:' .. workflow) > 0 then
    return {'TAKEN', workflow}
  end
  for _, suffix in ipairs(KEYS_OF_WORKFLOW) do  -- of an earlier one that was not submitted to its end
    redis.call('DEL', key .. suffix)
  end
  redis.call('HSET', key, 'title', ARGV[3], 'parent', ARGV[4], 'total', ARGV[5], 'kept', ARGV[6], 'kept_failed', ARGV[7],
    'opened', digits(now))
  enter(workflow, 'building')
end
-- If the program dies before it has submitted everything, the walk over all records ends the steps after this time.
redis.call('PEXPIRE', key, ONE_DAY)
local edges, created, rows = {entering = {}, leaving = {}}, {}, {}
for k = 1, steps do
  local i = FIRST + FIELDS * (k - 1)
  rows[k] = {unpack(ARGV, i, i + FIELDS - 1)}
  created[k] = read_step(ARGV[i + FIELDS - 1])
end
local taken = steps > 0 and stage(workflow, created, rows, LONGEST, ARGV[8] == '1')
if taken then
  if not state then  -- nothing of it was there before this call
    redis.call('DEL', key)
    redis.call('ZREM', P .. 'workflows:building', workflow)
  end
  return {'TAKEN', taken}
end
for i = FIRST + FIELDS * steps, #ARGV, 3 do
  note_edge(edges, unpack(ARGV, i, i + 2))
end
write_edges(workflow, edges)
if ARGV[9] == '1' then
  start(workflow)
end
return {redis.call('HGET', key, 'state'), tonumber(ARGV[9])}
