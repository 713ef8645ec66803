#!lua
-- workflow_stage: create steps of workflows that have not started, and start each after the last of them. A call has
-- only a part of a large workflow.
-- KEYS  prefix
-- ARGV  keeping, n × (workflow, title, id of the task that submits it or '', number of its steps, ms to keep it when it
--       has ended, ms if it has failed, 1 if an earlier workflow may have had its id else 0, 1 if nothing is missing after
--       this part else 0, number of steps in this part, number of edges in this part,
--       steps × (arguments of submit_one; their terms begin with the line that lib/staging reads),
--       edges × (letter of an edge, place of the predecessor, place of the successor): edges to steps whose predecessors
--       have more than 500 characters in their terms; the others are made from these)
-- returns n × {its state: building until it is started; cancelled also if its steps have yet to be cancelled, 1 if this
--       call has started it else 0}; at the end perhaps {'TAKEN', id}: another task has the id of the workflow or of a
--       step, and nothing of this part and of those behind it was created
-- @include base wake record counting submitting index group keeping finish ending workflow staging
local HEAD, FIELDS, EDGE, LONGEST, ONE_DAY = 10, 8, 3, 500, 86400000

-- Begin a workflow. Returns false if a task has its id.
local function begin(workflow, title, parent, total, kept, kept_failed)
  local key = P .. 'f:' .. workflow
  if records.is_known(workflow) then
    return false
  end
  for _, suffix in ipairs(KEYS_OF_WORKFLOW) do  -- of an earlier workflow that was never completely submitted
    redis.call('DEL', key .. suffix)
  end
  redis.call('HSET', key, 'title', title, 'parent', parent, 'total', total, 'kept', kept, 'kept_failed', kept_failed,
    'opened', digits(now))
  enter(workflow, 'building')
  return true
end

-- Forget a workflow of which nothing but its beginning was created.
local function forget(workflow)
  redis.call('DEL', P .. 'f:' .. workflow)
  redis.call('ZREM', P .. 'workflows:building', workflow)
  flow_of(workflow).state = nil
end

-- Create the steps and edges of a part, from ARGV[first] on. Returns nil, or the id of a step that another task has.
local function create(workflow, is_used, first, steps, edges)
  local those, created, rows = {entering = {}, leaving = {}}, {}, {}
  for k = 1, steps do
    local i = first + FIELDS * (k - 1)
    rows[k] = {unpack(ARGV, i, i + FIELDS - 1)}
    created[k] = read_step(ARGV[i + FIELDS - 1])
  end
  local taken = steps > 0 and stage(workflow, created, rows, LONGEST, is_used)
  if taken then
    return taken
  end
  first = first + FIELDS * steps
  for i = first, first + EDGE * (edges - 1), EDGE do
    note_edge(those, unpack(ARGV, i, i + EDGE - 1))
  end
  write_edges(workflow, those)
end

local function stage_part(at, steps, edges)
  local workflow, title, parent, total, kept, kept_failed, is_used, is_last = unpack(ARGV, at, at + HEAD - 1)
  local key = P .. 'f:' .. workflow
  local state = redis.call('HGET', key, 'state')
  if state and state ~= 'building' then
    return {state, 0}
  elseif flow_of(workflow).cancel then  -- nothing would cancel these steps
    return {'cancelled', 0}
  elseif not state and not begin(workflow, title, parent, total, kept, kept_failed) then
    return {'TAKEN', workflow}
  end
  -- If the program dies before it has submitted everything, the walk over all records ends the steps after this time.
  redis.call('PEXPIRE', key, ONE_DAY)
  local taken = create(workflow, is_used == '1', at + HEAD, steps, edges)
  if taken then
    if not state then
      forget(workflow)
    end
    return {'TAKEN', taken}
  end
  if is_last == '1' then
    start(workflow)
  end
  return {redis.call('HGET', key, 'state'), tonumber(is_last)}
end

local answers, at = {}, 2
while at <= #ARGV do
  local steps, edges = tonumber(ARGV[at + 8]), tonumber(ARGV[at + 9])
  local answer = stage_part(at, steps, edges)
  answers[#answers + 1] = answer
  if answer[1] == 'TAKEN' then
    break
  end
  at = at + HEAD + FIELDS * steps + EDGE * edges
end
return answers
