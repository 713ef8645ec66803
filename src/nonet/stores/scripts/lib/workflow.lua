-- lib/workflow: needs base, wake, record, submitting, index, group, finish, ending. Workflows: tasks that run in the
-- order of their edges. A workflow never ends, and no step is released, twice: everything here can be repeated.
--
-- HASH f:WORKFLOW: state (building | running | resuming | done | failed | cancelled); cancel (why); failed (a step
-- whose failure no edge took over or passed on); first (the first step whose failure no edge took over); kept,
-- kept_failed (ms).
-- A step has the id WORKFLOW:PLACE. The place of an added step begins with the place of the step that added it and a
-- dot. Keys of a step:
--   t:ID  its record from the beginning: state waiting and field blocked until its predecessors have ended
--   m:ID  SET   places of predecessors that have not ended; * stands for the start of the workflow, which has edges
--               to the steps without predecessors
--   n:ID  LIST  its edges, each a letter (s: on success, f: on failure, a: always) and the place of the successor
--   j:ID  SET   places of the steps that it added and that have not ended: until then its edges wait
--   k:ID  HASH  what its edges need then: edges, failed (the place of the step that has failed it)
--   s:ID  HASH  a step that failed: its specification, so that it can run again; cause (the place of the step that
--               failed first, if this one could not run because of that)
-- A step without code has the name await:EVENT. When its predecessors have ended, @PLACE is its only one, until the event
-- has come or its time is over.
--   f:WORKFLOW:signals  HASH  events that have come: place of the step → who, when (µs) and a result, each in a line
-- A blocked step notes what it must know when its last predecessor has ended: hit (an edge on failure fired), unneeded
-- (the place of a predecessor because of which it need not run).
-- ZSET edges holds ended steps with more edges than one call follows: 'END ID' → edges that were followed.
--
-- How a step ends for its edges: done; failed; taken (it failed, and an edge on failure takes the failure over);
-- unneeded (it could not run, without a failure).

-- A blocked step is in the delayed set with this time, in the year 2200, so that each record is in one place.
local BLOCKED_UNTIL = 7258118400000000
-- How many edges a call follows. An edge that may end a step costs more than one that releases it.
local MOST_EDGES, COST_OF_AN_END = 200, 3  -- fault: edges-per-promotion
local edges_left = MOST_EDGES  -- fault: edges-per-call

local function step_id(workflow, place)
  return workflow .. ':' .. place
end

local function place_of(id)
  return string.match(id, '^.*:(.*)$')
end

-- The place of the step that added this one, or nil.
local function above(place)
  return string.match(place, '^(.*)%.[^.]*$')
end

-- What a call collects, so that many steps need one command: steps that it has released, and keys that are no longer
-- needed.
local released, dropped = {}, {}

local function write_collected()
  if #released > 0 then
    local sizes = {}
    redis.call('ZREM', P .. 'tasks:delayed', unpack(released))
    for _, id in ipairs(released) do
      sizes[released[id]] = (sizes[released[id]] or 0) + 1
    end
    for size, count in pairs(sizes) do
      wake(size, count)
    end
  end
  if #dropped > 0 then
    redis.call('DEL', unpack(dropped))
  end
  released, dropped = {}, {}
end

local ends = {}  -- steps that end without running: {id, how, id of the step because of which, or the result if done}

local release
do
  -- Let a step without code wait for its event, from when on its timeout counts; end it if the event has come. If Redis
  -- stops the script before the last command, a later call of this one does the rest.
  local function await(id, record, event)
    local place = place_of(id)
    local signal = redis.call('HGET', P .. 'f:' .. record.workflow .. ':signals', place)
    if signal then
      ends[#ends + 1] = {id, 'done', string.match(signal, '^[^\n]*\n[^\n]*\n(.*)$')}
      return
    end
    local start_by = record.start_by or start_by_in(record.terms or '')
    if not record.start_by then
      change(id, {ticket = digits(now), blocker = string.sub('event ' .. event, 1, 60), start_by = start_by or ''})
    end
    if start_by then
      watch_start(id, start_by)
    end
    redis.call('SADD', P .. 'm:' .. id, '@' .. place)
  end

  -- Queue a step whose predecessors have ended. Its delay, and a start_by that is relative, count from now.
  -- write_collected() does the rest.
  function release(id, record)
    local event = string.match(record.name or '', '^await:(.*)$')  -- no class has such a name
    if event then
      return await(id, record, event)
    end
    local gen = digits(now + submitted)
    submitted = submitted + 1
    local due = math.max(due_of(record.at or '0'), record.delay and now + tonumber(record.delay) or 0)
    local start_by = start_by_in(record.terms or '')
    local changes = {gen = gen, ticket = gen, blocker = '', blocked = '', start_by = start_by}
    if due > now then
      change(id, changes, {state = 'delayed', due = due, put = now})
      delay(id, due)
    else
      change(id, changes, {state = 'queued', pointer = enqueue_first(id, record.stream, gen, record.tenant or '')})
      released[#released + 1], released[id] = id, size_of(record.stream)
    end
    if start_by then
      watch_start(id, start_by)
    end
  end
end

-- What is kept of a failed step, beside its envelope b and its locks l.
local KEPT = {'name', 'stream', 'tenant', 'edges', 'delay', 'at', 'terms', 'any', 'hit', 'unneeded', 'cause'}

-- What an edge means for its successor, by the end of the step and the letter of the edge: go; no (an edge on failure
-- whose step did not fail); or how the successor ends, because it cannot run.
local MEANING = {
  done = {s = 'go', f = 'no', a = 'go'},
  failed = {s = 'failed', f = 'go', a = 'go'},
  taken = {s = 'unneeded', f = 'go', a = 'go'},
  unneeded = {s = 'unneeded', f = 'no', a = 'go'},
}

local cause_of, follow
do
  -- Decide about a step whose predecessors have all ended, and none of them failed it.
  local function decide(id, record, workflow, last)
    if record.unneeded or record.any and not record.hit then
      ends[#ends + 1] = {id, 'unneeded', step_id(workflow, record.unneeded or last)}
    else
      release(id, record)
    end
  end

  -- The place of the step that failed first: this one, unless it failed only because of another.
  function cause_of(workflow, place)
    local id = step_id(workflow, place)
    return redis.call('HGET', P .. 's:' .. id, 'cause') or redis.call('HGET', P .. 'k:' .. id, 'failed') or place
  end

  -- Follow one edge. A failure ends its successor at once; otherwise nothing is decided before the last predecessor has
  -- ended, so that the order in which they end does not matter. A blocked step without open predecessors is released,
  -- whether or not this call has removed the last predecessor: if Redis stops a script in between, the repeated call
  -- releases the step.
  function follow(from, how, letter, workflow, place)
    local id, meaning = step_id(workflow, place), MEANING[how][letter]
    local is_plain = meaning == 'go' and letter ~= 'f'  -- it has nothing to note
    if is_plain then
      redis.call('SREM', P .. 'm:' .. id, from)
      if redis.call('EXISTS', P .. 'm:' .. id) == 1 then
        return
      end
    end
    local record = read_record(id)
    local note = meaning == 'unneeded' and meaning or letter == 'f' and meaning == 'go' and 'hit'
    if note then
      record[note] = from
      if record.blocked then
        change(id, {[note] = from})
      elseif redis.call('EXISTS', P .. 's:' .. id) == 1 then  -- it may run again, and knows it then
        redis.call('HSET', P .. 's:' .. id, note, from)
      end
    end
    if not record.blocked then
      return
    end
    if not is_plain then
      redis.call('SREM', P .. 'm:' .. id, from)
    end
    if meaning == 'failed' then
      ends[#ends + 1] = {id, meaning, step_id(workflow, cause_of(workflow, from))}
    elseif is_plain or redis.call('EXISTS', P .. 'm:' .. id) == 0 then
      decide(id, record, workflow, from)
    end
  end
end

-- Read a workflow once in a call.
local flows = {}
local function flow_of(workflow)
  flows[workflow] = flows[workflow]
    or read_fields(P .. 'f:' .. workflow, {'state', 'cancel', 'failed', 'kept', 'kept_failed'})
  return flows[workflow]
end

-- Set the state of a workflow, and list it there: ZSET workflows:STATE holds since when (µs). The old state loses it
-- last, so that it is always listed. The oldest ones in the list leave it when their keys have expired.
local function enter(workflow, state)
  local flow, index, OLDEST = flow_of(workflow), P .. 'workflows:', 5
  redis.call('ZADD', index .. state, digits(now), workflow)
  redis.call('HSET', P .. 'f:' .. workflow, 'state', state, 'since', digits(now))
  if flow.state and flow.state ~= state then
    redis.call('ZREM', index .. flow.state, workflow)
  end
  for _, other in ipairs(redis.call('ZRANGE', index .. state, 0, OLDEST - 1)) do
    if redis.call('EXISTS', P .. 'f:' .. other) == 0 then
      redis.call('ZREM', index .. state, other)
    end
  end
  flow.state = state
end

-- Follow the edges of an ended step from the given one on. Returns whether all were followed. Edges of a cancelled
-- workflow are ignored: its steps are cancelled one by one.
local function follow_edges(id, workflow, place, how, first)
  local page = flow_of(workflow).cancel and {}
    or redis.call('LRANGE', P .. 'n:' .. id, first, first + math.max(0, edges_left))
  local followed = 0
  for _, edge in ipairs(page) do
    if edges_left <= 0 then
      break
    end
    local letter, target = string.match(edge, '^(.)(.*)$')
    edges_left = edges_left - (how == 'done' and letter ~= 'f' and 1 or COST_OF_AN_END)
    followed = followed + 1
    follow(place, how, letter, workflow, target)
  end
  if followed < #page then
    redis.call('ZADD', P .. 'edges', first + followed, how .. ' ' .. id)
    wake_promoter_for(now)
    return false
  end
  if how ~= 'failed' or flow_of(workflow).cancel then  -- a step that failed may run again
    dropped[#dropped + 1] = P .. 'n:' .. id
  end
  return true
end

local KEYS_OF_WORKFLOW = {'', ':results', ':graph', ':failed', ':live', ':signals'}

-- Let the keys of a workflow expire after ms.
local function expire_workflow(key, ms)
  for _, suffix in ipairs(KEYS_OF_WORKFLOW) do
    redis.call('PEXPIRE', key .. suffix, digits(ms))
  end
end

-- End a workflow in which nothing is left to run. Its keys expire; what it kept of failed steps expires with it. The
-- state is written last: until then a repeated call does all of this again.
local function end_workflow(workflow)
  local key, was = P .. 'f:' .. workflow, flow_of(workflow)
  if was.state ~= 'running' and not (was.cancel and was.state == 'building')
    or redis.call('EXISTS', key .. ':live') == 1 then
    return
  end
  local state = was.cancel and 'cancelled' or was.failed and 'failed' or 'done'
  local ms = tonumber(state == 'failed' and was.kept_failed or was.kept) or 86400000
  redis.call('HSET', key, 'ended', digits(now))
  redis.call('SET', P .. 'r:' .. workflow, state .. '|0|', 'PX', digits(ms))
  tell_waiters(workflow)
  expire_workflow(key, ms)
  enter(workflow, state)
  redis.call('HINCRBY', P .. 'counters', 'workflows:' .. state, 1)
end

-- End the steps that cannot run, and those whose event has come. Each may have successors that cannot run either; an inner call leaves them to the
-- outer one, so that a long chain is a loop and not a recursion.
local is_ending = false
local function end_unable()
  while #ends > 0 and not is_ending do
    is_ending = true
    local id, how, cause = unpack(table.remove(ends))
    local record = read_record(id)
    if record.blocked and how == 'done' then
      finish(id, record, 'done', '0', cause)
      drop_pointers(id, record)
    elseif record.blocked then
      local why = 'cancelled: ' .. (how == 'failed' and 'step ' .. cause .. ' failed' or 'not needed after ' .. cause)
      record.ends_as, record.cause = how, place_of(cause)
      -- If Redis stops the script, the walk over all records repeats the end.
      change(id, {ends_as = how, cause = record.cause, why = why})
      finish(id, record, 'cancelled', '0', made_document(record.name or '', 0, why, 'cancelled'))
      redis.call('ZREM', P .. 'tasks:delayed', id)
    end
    is_ending = false
  end
end

local end_all
do
  local close, close_added

  -- Keep a step that failed, so that it can run again.
  local function keep_step(id, record)
    local fields = {'b', records.envelope(id, record, records.length(id, record)), 'l', record.locks or ''}
    for _, name in ipairs(KEPT) do
      if record[name] then
        fields[#fields + 1], fields[#fields + 2] = name, record[name]
      end
    end
    redis.call('HSET', P .. 's:' .. id, unpack(fields))
  end

  local function is_taken_over(edges)
    return string.find(edges or '', 'f', 1, true) ~= nil
  end

  -- A step and all steps that it added have ended: follow its edges, and tell the step that added it.
  function close(id, workflow, edges, how)
    local key, place = P .. 'f:' .. workflow, place_of(id)
    local upper = above(place) and step_id(workflow, above(place))
    if how == 'failed' and is_taken_over(edges) then
      how = 'taken'
    elseif how == 'failed' and not flow_of(workflow).cancel then
      redis.call('SADD', key .. ':failed', place)
      redis.call('HSETNX', key, 'first', place)
      local is_passed_on = string.find(edges, 's', 1, true)
      if not is_passed_on and not upper then
        redis.call('HSETNX', key, 'failed', place)
        flow_of(workflow).failed = place
      elseif not is_passed_on and redis.call('EXISTS', P .. 'k:' .. upper) == 1 then
        -- That step fails, and its failure may be taken over.
        redis.call('HSETNX', P .. 'k:' .. upper, 'failed', cause_of(workflow, place))
      end
    end
    if edges ~= '' then
      follow_edges(id, workflow, place, how, 0)
    end
    if upper then
      redis.call('SREM', P .. 'j:' .. upper, place)
      if not records.has(upper) and redis.call('EXISTS', P .. 'j:' .. upper) == 0 then
        close_added(upper, workflow)
      end
    end
  end

  -- Close a step when the last of the steps that it added has ended. Its join is deleted last: without it the step was
  -- closed, and a repeated call does nothing. After a failure it stays, as the step is closed again when it is resumed;
  -- a cancelled workflow never is.
  function close_added(id, workflow)
    local join = read_fields(P .. 'k:' .. id, {'edges', 'failed'})
    if redis.call('EXISTS', P .. 'k:' .. id) == 1 then
      close(id, workflow, join.edges or '', join.failed and 'failed' or 'done')
      if not join.failed or is_taken_over(join.edges) or flow_of(workflow).cancel then
        redis.call('DEL', P .. 'k:' .. id)
      end
    end
  end

  local function end_one(id, record, state)
    local workflow, how = record.workflow, state == 'done' and 'done' or record.ends_as or 'failed'
    if record.blocked then
      redis.call('DEL', P .. 'm:' .. id)
    end
    if how == 'failed' and not is_taken_over(record.edges) and not flow_of(workflow).cancel then
      keep_step(id, record)
    end
    if not record.adds then
      close(id, workflow, record.edges or '', how)
    elseif redis.call('EXISTS', P .. 'j:' .. id) == 0 then  -- they have ended since a script was cut
      close_added(id, workflow)
    end
  end

  -- End steps. those: {id, record, state, result} of each.
  function end_all(those)
    local results, places = {}, {}  -- by workflow
    for _, one in ipairs(those) do
      local id, workflow = one[1], one[2].workflow
      if flow_of(workflow).state then
        local result, place = results[workflow] or {}, places[workflow] or {}
        place[#place + 1] = place_of(id)
        result[#result + 1], result[#result + 2] = place_of(id), one[4]
        results[workflow], places[workflow] = result, place
      else
        dropped[#dropped + 1], dropped[#dropped + 2] = P .. 'm:' .. id, P .. 'n:' .. id
      end
    end
    for workflow, result in pairs(results) do
      redis.call('HSET', P .. 'f:' .. workflow .. ':results', unpack(result))
    end
    for _, one in ipairs(those) do
      if results[one[2].workflow] then
        end_one(unpack(one))
      end
    end
    write_collected()
    for workflow, place in pairs(places) do
      redis.call('SREM', P .. 'f:' .. workflow .. ':live', unpack(place))
    end
    end_unable()
    for workflow in pairs(places) do
      end_workflow(workflow)
    end
  end
end

-- Start a workflow, or resume it: release the steps without predecessors.
local function start(workflow)
  redis.call('PERSIST', P .. 'f:' .. workflow)
  follow_edges(step_id(workflow, '*'), workflow, '*', 'done', 0)
  write_collected()
  enter(workflow, 'running')
  end_unable()
  end_workflow(workflow)
end

-- Follow edges that earlier calls have left. Returns whether some are left still.
local function follow_rest()
  edges_left = MOST_EDGES
  while edges_left > 0 do
    local first = redis.call('ZRANGE', P .. 'edges', 0, 0, 'WITHSCORES')
    if not first[1] then
      return false
    end
    local how, id = string.match(first[1], '^(%S+) (.*)$')
    local workflow, place = string.match(id, '^(.*):([^:]*)$')
    if follow_edges(id, workflow, place, how, tonumber(first[2])) then
      redis.call('ZREM', P .. 'edges', first[1])
    end
    write_collected()
    end_unable()
    end_workflow(workflow)
  end
  return redis.call('EXISTS', P .. 'edges') == 1
end

end_steps = end_all

-- The first call of end_steps() in scripts that seldom end steps: it defines all of this.
local function load_end_steps(...)
  return end_all(...)
end
