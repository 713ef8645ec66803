-- lib/creating: needs now, records, wake, record, counting, submitting. Creates tasks of all kinds, for submit.

-- ARGV as a list of runs; first and past: where its pairs of id and envelope begin and end.
local function read_runs()
  local runs, at = {}, FIRST_RUN
  while at <= #ARGV do
    local count, name, stream, due, group, locks, terms = unpack(ARGV, at, at + HEAD - 1)
    local first = at + HEAD
    at = first + 2 * count
    runs[#runs + 1] = {count = tonumber(count), name = name, stream = stream, wall = due, group = group,
      locks = locks, terms = terms, first = first, past = at}
  end
  return runs
end

local runs = read_runs()

-- @defer limits mutexes locks impossible_lines
-- @defer limits mutexes locks index group keeping finish fitting pauses queues refusal waiting cancel ending replacing replace_older
local replace = replace_older
-- @defer unique claim_key
claim = claim_key
-- @defer unique submits hashes ceilings find_excess
-- @defer submits charge

-- The refusal of the first unknown task of a run whose locks can never be taken, or nil.
local function impossible(run)
  local why = string.find(run.locks .. '\n', '%d\n') and impossible_lines(run.locks)  -- a line counts items
  for i = run.first, why and run.past - 1 or 0, 2 do
    if redis.call('EXISTS', P .. 't:' .. ARGV[i], P .. 'r:' .. ARGV[i]) == 0 then
      return {'IMPOSSIBLE', ARGV[i], why}
    end
  end
end

-- The first id of a run that a workflow or a step of one has: the task would be mistaken for it. nil if there is none.
local function taken_in(run)
  for i = run.first, run.past - 1, 2 do
    local id = ARGV[i]
    local workflow, place = string.match(id, '^(.*):([%d.]+)$')
    if redis.call('EXISTS', P .. 'f:' .. id) == 1 then
      return {'TAKEN', id, id}
    elseif workflow and redis.call('HEXISTS', P .. 'f:' .. workflow .. ':graph', place) == 1 then
      return {'TAKEN', id, workflow}
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

local function create()
  local asked = {}
  for _, run in ipairs(runs) do
    local refusal = taken_in(run) or run.locks ~= '' and impossible(run)
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

  local function create_run(run)
    local stream, due = run.stream, due_of(run.wall)
    local as, before, uncreated, missing = {name = run.name, tenant = tenant_in(run.terms)}, {}, 0, {}
    for k = run.first + 1, run.past, 2 do
      add_to(before, stream, as, 1, #ARGV[k])
    end
    count_active(before)
    for i = run.first, run.past - 1, 2 do
      local created = submit_one(ARGV[i], run.name, stream, due, run.group, ARGV[i + 1], run.locks, run.terms, true)
      if created ~= 1 then
        uncreated, are_created = uncreated + 1, false
        add_to(missing, stream, as, -1, -#ARGV[i + 1])
      end
      answers[#answers + 1] = type(created) == 'string' and {created} or created
    end
    local created = run.count - uncreated
    count_active(missing, true)
    if created > 0 then
      if is_capped and as.tenant ~= '' then
        charge(as.tenant, created)
      end
      count_submitted(stream, created)
    end
    if due <= now then
      local size = size_of(stream)
      woken[size] = (woken[size] or 0) + created
    end
  end
  for _, run in ipairs(runs) do
    create_run(run)
  end
  for size, count in pairs(woken) do
    wake(size, count)
  end
  return are_created and 1 or answers
end
