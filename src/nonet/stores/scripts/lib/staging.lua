-- lib/staging: needs base, wake, record, submitting, workflow. Creates the steps of workflows.

-- The terms of a step begin with a line of words: step, its workflow, the letters of its edges, 1 if it has predecessors
-- on failure, delay µs, then its predecessors, each a letter and a place. '-' stands for an empty word.
local function read_step(terms)
  local line, rest = string.match(terms, '^step ([^\n]*)\n?(.*)$')
  local words = {string.match(line, '^(%S+) (%S+) (%S+) (%S+) ?(.*)$')}
  for i, word in ipairs(words) do
    words[i] = word ~= '-' and word or ''
  end
  return {workflow = words[1], edges = words[2], any = words[3], delay = words[4], after = words[5], terms = rest}
end

local function add_edge(workflow, letter, from, to)
  redis.call('SADD', P .. 'm:' .. step_id(workflow, to), from)
  redis.call('RPUSH', P .. 'n:' .. step_id(workflow, from), letter .. to)
end

-- Create a step unless it is known. It waits until its predecessors have ended; without any, until the workflow
-- starts. The record is written last: until then a repeated call does all of this again.
local function stage(step, id, name, stream, wall, _, envelope, locks)
  local workflow, place = step.workflow, place_of(id)
  local key = P .. 'f:' .. workflow
  if redis.call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) > 0 or redis.call('HEXISTS', key .. ':results', place) == 1 then
    return
  end
  if above(place) then
    redis.call('SADD', P .. 'j:' .. step_id(workflow, above(place)), place)
  elseif step.after == '' then
    add_edge(workflow, 'a', '*', place)
  end
  redis.call('SADD', key .. ':live', place)
  redis.call('HSET', key .. ':graph', place, name .. ' ' .. step.after)
  redis.call('SET', P .. 'b:' .. id, envelope)
  if locks ~= '' then
    redis.call('SET', P .. 'l:' .. id, locks)
  end
  count_active(stream, name, 1)
  count_submitted(stream, 1)
  redis.call('ZADD', P .. 'tasks:delayed', digits(BLOCKED_UNTIL), id)
  local gen = digits(now + submitted)
  submitted = submitted + 1
  local fields = {'state', 'waiting', 'gen', gen, 'ticket', gen, 'name', name, 'stream', stream, 'v', FORMAT,
    'workflow', workflow, 'blocked', 1, 'blocker', string.sub('after ' .. step.after, 1, 60)}
  step.at = wall ~= '0' and wall or ''
  for _, field in ipairs({'edges', 'any', 'hit', 'unneeded', 'delay', 'at', 'terms'}) do
    if step[field] and step[field] ~= '' then
      fields[#fields + 1], fields[#fields + 2] = field, step[field]
    end
  end
  redis.call('HSET', P .. 't:' .. id, unpack(fields))
end

-- Create the steps that a step adds when it is done, and release those without predecessors. record is that of the
-- step; rows: the arguments of submit_one(). Returns false if the workflow was cancelled meanwhile: nothing would cancel
-- these steps.
local function add_steps(id, record, rows)
  local steps, flow = {}, flow_of(record.workflow)
  if not flow.state or flow.cancel then
    return false
  end
  redis.call('HSET', P .. 'k:' .. id, 'edges', record.edges or '')
  for i, row in ipairs(rows) do
    local step = read_step(row[8])
    steps[i] = step
    for letter, from in string.gmatch(step.after, '(%l)(%S+)') do
      add_edge(step.workflow, letter, from, place_of(row[1]))
    end
    stage(step, unpack(row))
  end
  for i, row in ipairs(rows) do
    local record = steps[i].after == '' and read_fields(P .. 't:' .. row[1], STEP) or {}
    if record.blocked then
      release(row[1], record)
    end
  end
  return true
end
