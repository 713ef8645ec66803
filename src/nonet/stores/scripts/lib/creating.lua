-- lib/creating: needs base, wake, record, counting, submitting. Creates tasks of all kinds, for submit.
-- @defer limits mutexes locks impossible_lines
-- @defer limits mutexes locks index group keeping finish fitting pauses queues refusal waiting cancel ending replacing replace_older
local replace = replace_older
-- @defer unique claim_key
claim = claim_key
-- @defer unique submits hashes ceilings find_excess
-- @defer submits charge

local function read_runs()
  local runs, at, FIRST_RUN, HEAD = {}, nil, 2, 7
  at = FIRST_RUN
  while at <= #ARGV do
    local count, name, stream, wall, group, locks, terms = unpack(ARGV, at, at + HEAD - 1)
    local ids, envelopes = {}, {}
    for i = 1, tonumber(count) do
      ids[i], envelopes[i] = ARGV[at + HEAD + 2 * i - 2], ARGV[at + HEAD + 2 * i - 1]
    end
    at = at + HEAD + 2 * #ids
    -- A task with a unique key may meet another one of the same call: it is a run of its own.
    local is_unique = string.find('\n' .. terms, '\nunique|', 1, true)
    for i = 1, is_unique and #ids or 1 do
      runs[#runs + 1] = {name = name, stream = stream, wall = wall, due = due_of(wall), group = group, locks = locks,
        terms = terms, ids = is_unique and {ids[i]} or ids, envelopes = is_unique and {envelopes[i]} or envelopes}
    end
  end
  return runs
end

-- The first id that a workflow or a step of one has: the task would be mistaken for it. nil if there is none.
local function taken_in(ids)
  for _, id in ipairs(ids) do
    local workflow, place = string.match(id, '^(.*):([%d.]+)$')
    if redis.call('EXISTS', P .. 'f:' .. id) == 1 then
      return {'TAKEN', id, id}
    elseif workflow and redis.call('HEXISTS', P .. 'f:' .. workflow .. ':graph', place) == 1 then
      return {'TAKEN', id, workflow}
    end
  end
end

-- The refusal of the first unknown task of a run whose locks can never be taken, or nil.
local function impossible(run)
  local why = string.find(run.locks .. '\n', '%d\n') and impossible_lines(run.locks)  -- a line counts items
  for _, id in ipairs(why and run.ids or {}) do
    if not records.is_known(id) then
      return {'IMPOSSIBLE', id, why}
    end
  end
end

-- The refusal of tasks that would exceed a ceiling, or nil.
local function excess_in(runs)
  local asked = {}
  for _, run in ipairs(runs) do
    for i, id in ipairs(run.ids) do
      for _, part in ipairs({id, run.name, run.stream, run.wall, run.group, run.envelopes[i], run.locks, run.terms}) do
        asked[#asked + 1] = part
      end
    end
  end
  return find_excess(asked, 1)
end

local function create()
  local runs = read_runs()
  for _, run in ipairs(runs) do
    run.are_new = are_new(run.ids)
    local refusal = not run.are_new and taken_in(run.ids) or run.locks ~= '' and impossible(run)
    if refusal then
      return refusal
    end
  end
  local excess = is_capped and excess_in(runs)
  if excess then
    return excess
  end

  local answers, are_created, woken = {}, true, {}
  for _, run in ipairs(runs) do
    local those, created = submit_run(run, run.are_new)
    for _, answer in ipairs(those) do
      answers[#answers + 1], are_created = type(answer) == 'string' and {answer} or answer, are_created and answer == 1
    end
    local tenant = is_capped and created > 0 and tenant_in(run.terms)
    if tenant and tenant ~= '' then
      charge(tenant, created)
    end
    if run.due <= now then
      local size = size_of(run.stream)
      woken[size] = (woken[size] or 0) + created
    end
  end
  for size, count in pairs(woken) do
    wake(size, count)
  end
  return are_created and 1 or answers
end
