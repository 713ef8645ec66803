-- lib/creating: needs now, routing, records, wake, record, counting, submitting. Creates tasks of all kinds, for submit.

-- ARGV as a list of runs; first and past: where its pairs of id and envelope begin and end.
local function read_runs()
  local runs, at = {}, FIRST_RUN
  while at <= #ARGV do
    local count, name, stream, due, group, locks, terms = unpack(ARGV, at, at + HEAD - 1)
    local first = at + HEAD
    at = first + 2 * count
    runs[#runs + 1] = {count = tonumber(count), name = name, stream = stream, wall = due, group = group,
      locks = locks, terms = terms, first = first, past = at,
      home = marks[7] and group == '' and elsewhere(terms) or nil}  -- a group is whole in one namespace
  end
  return runs
end

local runs = read_runs()

-- @defer limits mutexes locks impossible_lines
-- @defer limits mutexes locks index group keeping finish fitting pauses queues refusal waiting cancel ending replacing replace_older
local replace = replace_older
-- @defer unique claim_key
claim = claim_key
-- @defer unique submits ceilings find_excess
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

-- Append the tasks of a run as find_excess() takes them.
local function ask_for_all(asked, run)
  for i = run.first, run.past - 1, 2 do
    for _, part in ipairs({ARGV[i], run.name, run.stream, run.wall, run.group, ARGV[i + 1], run.locks, run.terms}) do
      asked[#asked + 1] = part
    end
  end
end

-- Answer for tasks that belong to another namespace. Ids that are known here stay known, so that nothing runs twice.
local function send_on(run, answers)
  for i = run.first, run.past - 1, 2 do
    local is_known = redis.call('EXISTS', P .. 't:' .. ARGV[i], P .. 'r:' .. ARGV[i]) > 0
    answers[#answers + 1] = is_known and 0 or {ARGV[i], run.home}
  end
end

local function create()
  local asked = {}
  for _, run in ipairs(runs) do
    local refusal = not run.home and run.locks ~= '' and impossible(run)
    if refusal then
      return refusal
    elseif is_capped and not run.home then
      ask_for_all(asked, run)
    end
  end
  local excess = is_capped and find_excess(asked, 1)
  if excess then
    return excess
  end

  local answers, are_created, woken = {}, true, {}
  local is_alone = #runs == 1 and runs[1].count == 1

  local function create_run(run)
    local stream, due, i = run.stream, due_of(run.wall), run.first
    local as, before, uncreated, missing = {name = run.name, tenant = tenant_in(run.terms)}, {}, 0, {}
    for k = run.first + 1, run.past, 2 do
      add_to(before, stream, as, 1, #ARGV[k])
    end
    count_active(before)
    local function count_uncreated()
      uncreated = uncreated + 1
      add_to(missing, stream, as, -1, -#ARGV[i + 1])
    end
    local function create_rest()
      while i < run.past do
        local created = submit_one(ARGV[i], run.name, stream, due, run.group, ARGV[i + 1], run.locks, run.terms, true)
        if created ~= 1 then
          count_uncreated()
          are_created = false
        end
        answers[#answers + 1], i = type(created) == 'string' and {created} or created, i + 2
      end
    end
    local problem
    while i < run.past do
      local fine
      fine, problem = pcall(create_rest)
      if not fine then  -- the keys of this task are damaged: skip it
        if redis.call('EXISTS', P .. 't:' .. ARGV[i]) == 0 then
          count_uncreated()
        end
        answers[#answers + 1], i, are_created = -1, i + 2, false
      end
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
    return problem
  end
  for _, run in ipairs(runs) do
    if run.home then
      send_on(run, answers)
      are_created = false
    else
      local problem = create_run(run)
      if problem and is_alone then
        return redis.error_reply(reason_of(problem))
      end
    end
  end
  for size, count in pairs(woken) do
    wake(size, count)
  end
  return are_created and 1 or answers
end
