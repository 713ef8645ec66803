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

local function append(lists, key, value)
  local list = lists[key]
  if list then
    list[#list + 1] = value
  else
    lists[key] = {value}
  end
end

-- Note an edge; write_edges() creates it. edges: entering, by place: the places before it; leaving, by place: edges.
local function note_edge(edges, letter, from, to)
  append(edges.entering, to, from)
  append(edges.leaving, from, letter .. to)
end

-- Note the edges to a step. The start of the workflow has an edge to steps without predecessors.
local function note_edges_to(edges, step, place)
  for letter, from in string.gmatch(step.after, '(%l)(%S+)') do
    note_edge(edges, letter, from, place)
  end
  if step.after == '' and not above(place) then
    note_edge(edges, 'a', '*', place)
  end
end

local function write_edges(workflow, edges)
  for to, those in pairs(edges.entering) do
    redis.call('SADD', P .. 'm:' .. step_id(workflow, to), unpack(those))
  end
  for from, those in pairs(edges.leaving) do
    redis.call('RPUSH', P .. 'n:' .. step_id(workflow, from), unpack(those))
  end
end

local STAGED = {'tenant', 'edges', 'any', 'hit', 'unneeded', 'delay', 'at', 'terms'}

-- Remove what an earlier workflow of the same id may have left of these steps.
local function forget_steps(workflow, places)
  local keys = {}
  for _, place in ipairs(places) do
    for _, kind in ipairs({'r:', 'n:', 'm:', 'j:', 'k:', 's:'}) do
      keys[#keys + 1] = P .. kind .. step_id(workflow, place)
    end
  end
  redis.call('DEL', unpack(keys))
end

-- Create steps of one workflow unless they are known. They wait until their predecessors have ended; without any, until
-- the workflow starts. Records are written last: until then a repeated call does all of this again.
-- rows: the arguments of submit_one() for each. longest: create the edges to steps whose predecessors have at most so
-- many characters; nil: the steps are created again, and have their edges. is_used: something may be left of earlier
-- steps with their ids. Returns nil, or the id of a step that another task has: then nothing was created.
local function stage(workflow, steps, rows, longest, is_used)
  local key, places, added = P .. 'f:' .. workflow, {}, {}
  for i, row in ipairs(rows) do
    places[i] = place_of(row[1])
  end
  local known = redis.call('HMGET', key .. ':results', unpack(places))
  local live, graph, blocked, numbers, submits, uppers = {}, {}, {}, {}, {}, {}
  local edges = {entering = {}, leaving = {}}
  for i, row in ipairs(rows) do
    local id, name, stream, place = row[1], row[2], row[3], places[i]
    local there = known[i] and {workflow = workflow} or read_record(id)
    if there.state and there.workflow ~= workflow then
      return id
    elseif not there.workflow then
      local tenant = steps[i].tenant or tenant_in(steps[i].terms or '')
      add_to(numbers, stream, {name = name, tenant = tenant}, 1, #row[6])
      submits[stream] = (submits[stream] or 0) + 1
      added[#added + 1], live[#live + 1] = i, place
      graph[#graph + 1], graph[#graph + 2] = place, name .. ' ' .. steps[i].after
      blocked[#blocked + 1], blocked[#blocked + 2] = digits(BLOCKED_UNTIL), id
      if above(place) then
        append(uppers, above(place), place)
      end
      if longest and #steps[i].after <= longest then
        note_edges_to(edges, steps[i], place)
      end
    end
  end
  if #added == 0 then
    return nil
  end
  if is_used then
    forget_steps(workflow, live)
  end
  if longest then
    write_edges(workflow, edges)
  end
  for upper, those in pairs(uppers) do
    redis.call('SADD', P .. 'j:' .. step_id(workflow, upper), unpack(those))
  end
  redis.call('SADD', key .. ':live', unpack(live))
  redis.call('HSET', key .. ':graph', unpack(graph))
  redis.call('ZADD', P .. 'tasks:delayed', unpack(blocked))
  count_active(numbers)
  for stream, number in pairs(submits) do
    count_submitted(stream, number)
  end
  for _, i in ipairs(added) do
    local step, id, name, stream, wall, _, envelope, locks = steps[i], unpack(rows[i], 1, 7)
    local gen = digits(now + submitted)
    submitted = submitted + 1
    local record = {state = 'waiting', gen = gen, ticket = gen, name = name, stream = stream, locks = given(locks),
      workflow = workflow, blocked = 1, blocker = string.sub('after ' .. step.after, 1, 60)}
    step.at, step.tenant = wall ~= '0' and wall or '', step.tenant or tenant_in(step.terms or '')
    for _, field in ipairs(STAGED) do
      record[field] = given(step[field])
    end
    records.put(id, record, envelope)
  end
  records.write_all()
end

-- Create the steps that a step adds when it is done, and release those without predecessors. record is that of the
-- step; rows: the arguments of submit_one(). Returns false if the workflow was cancelled meanwhile: nothing would cancel
-- these steps.
local function add_steps(id, record, rows)
  local workflow, steps, flow = record.workflow, {}, flow_of(record.workflow)
  if not flow.state or flow.cancel then
    return false
  end
  redis.call('HSET', P .. 'k:' .. id, 'edges', record.edges or '')
  for i, row in ipairs(rows) do
    steps[i] = read_step(row[8])
  end
  stage(workflow, steps, rows, math.huge, true)
  for i, row in ipairs(rows) do
    local record = steps[i].after == '' and read_record(row[1]) or {}
    if record.blocked then
      release(row[1], record)
    end
  end
  write_collected()
  return true
end
