#!lua
-- submit: create the tasks whose ids are not known, all of them or none. Fails when memory is full.
-- KEYS  prefix
-- ARGV  keeping, runs of tasks that differ only in id and envelope:
--       number, name, stream, due µs (see due_of), group or '', locks, terms, number × (id, envelope)
-- returns 1 if all were created; else for each task 1 created | 0 known | {id of the task that holds its unique
--       key} | -1 its keys are damaged: submit it alone to get the error. If none was created:
--       {'IMPOSSIBLE', id, why}: it asks a limiter for more than its limit; or {'FULL', scope, active tasks,
--       ceiling, seconds after which a retry makes sense, places wanted}
-- @include base
local FIRST_RUN = 2
-- @defer wake wake

-- Most calls create one task that may start now, without a group, locks and terms. Create it here, because to define
-- what all others need would take longer than that. A task that cannot be appended under its own entry id goes the
-- general way, like all others.
local count, name, stream, due, group, locks, terms, id, envelope = unpack(ARGV, FIRST_RUN)
if #ARGV == FIRST_RUN + 8 and due == '0' and group .. locks .. terms == '' and not is_capped then
  if redis.call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) > 0 then
    return {0}
  end
  local gen = digits(now)
  local entry = string.sub(gen, 1, -4) .. '-' .. tonumber(string.sub(gen, -3))
  redis.call('SET', P .. 'b:' .. id, envelope)
  if type(redis.pcall('XADD', P .. 'tasks:' .. stream, entry, 'id', id, 'gen', gen)) == 'string' then
    redis.call('HINCRBY', P .. 'active', stream .. '|' .. name, 1)
    redis.call('HSET', P .. 't:' .. id, 'state', 'queued', 'gen', gen, 'name', name, 'stream', stream)
    if marks[5] then
      redis.call('HINCRBY', P .. 'counters', 'submitted:' .. stream, 1)
    end
    local size = string.match(stream, '[^:]*$')
    if redis.pcall('ZCARD', P .. 'idle:' .. size) ~= 0 then
      wake(size, 1)
    end
    return 1
  end
end

-- @include wake record submitting
-- @defer limits locks impossible_lines
-- @defer limits locks index group finish pauses queues refusal waiting cancel ending replacing replace_older
local replace = replace_older
-- @defer unique claim_key
claim = claim_key
-- @defer unique ceilings find_excess

-- ARGV as a list of runs; first and past: where its pairs of id and envelope begin and end.
local function read_runs()
  local runs, at = {}, FIRST_RUN
  while at <= #ARGV do
    local count, name, stream, due, group, locks, terms = unpack(ARGV, at, at + 6)
    local first = at + 7
    at = first + 2 * count
    runs[#runs + 1] = {count = tonumber(count), name = name, stream = stream, wall = due, group = group,
      locks = locks, terms = terms, first = first, past = at}
  end
  return runs
end

-- The refusal of the first unknown task of a run whose locks can never be taken, or nil.
local function impossible(run)
  local why = string.find(run.locks .. '\n', '%d\n') and impossible_lines(run.locks)  -- a line counts items
  for i = run.first, why and run.past - 1 or 0, 2 do
    if redis.call('EXISTS', P .. 't:' .. ARGV[i], P .. 'r:' .. ARGV[i]) == 0 then
      return {'IMPOSSIBLE', ARGV[i], why}
    end
  end
end

-- Append the tasks of a run as find_excess() takes them.
local function ask_for_all(asked, run)
  for i = run.first, run.past - 1, 2 do
    for _, part in ipairs({ARGV[i], run.name, run.stream, run.wall, run.group, ARGV[i + 1], run.locks, run.terms}) do
      asked[#asked + 1] = part
    end
  end
end

local runs, asked = read_runs(), {}
for _, run in ipairs(runs) do
  local refusal = run.locks ~= '' and impossible(run)
  if refusal then
    return refusal
  elseif is_capped then
    ask_for_all(asked, run)
  end
end
local excess = is_capped and find_excess(asked, 1)
if excess then
  return excess
end

local answers, are_created, woken = {}, true, {}
local is_alone = #runs == 1 and runs[1].count == 1

for _, run in ipairs(runs) do
  local stream, due, uncreated, i = run.stream, due_of(run.wall), 0, run.first
  count_active(stream, run.name, run.count)
  local function create_rest()
    while i < run.past do
      local created = submit_one(ARGV[i], run.name, stream, due, run.group, ARGV[i + 1], run.locks, run.terms, true)
      if created ~= 1 then
        uncreated, are_created = uncreated + 1, false
      end
      answers[#answers + 1], i = type(created) == 'string' and {created} or created, i + 2
    end
  end
  local problem
  while i < run.past do
    local fine
    fine, problem = pcall(create_rest)
    if not fine then  -- the keys of this task are damaged: skip it
      uncreated = uncreated + (redis.call('EXISTS', P .. 't:' .. ARGV[i]) == 0 and 1 or 0)
      answers[#answers + 1], i, are_created = -1, i + 2, false
    end
  end
  local created = run.count - uncreated
  if uncreated > 0 then
    count_active(stream, run.name, -uncreated, true)
  end
  if created > 0 then
    count_submitted(stream, created)
  end
  if is_alone and problem then
    return redis.error_reply(reason_of(problem))
  end
  if due <= now then
    local size = size_of(stream)
    woken[size] = (woken[size] or 0) + created
  end
end
for size, count in pairs(woken) do
  wake(size, count)
end
return are_created and 1 or answers
