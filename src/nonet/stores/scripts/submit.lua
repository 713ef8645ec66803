#!lua
-- submit: create tasks whose ids are not known yet, all of them or none. Fails loudly when memory is full.
-- KEYS  prefix
-- ARGV  result ttl ms, dedup ttl ms, then in runs those that have the same of all but id and envelope:
--       how many, name, stream, due µs or 0, group or '', locks, terms, n × (id, envelope)
-- returns 1 if all are made; else for each 1 made | 0 known | {id of the task that has its unique key}: it
--       is the same | -1 its records are damaged: call again with this one alone, which then says why; or,
--       if none is made, {'IMPOSSIBLE', id, why}: it counts for more than a limiter
--       allows; or {'FULL', scope, how many tasks it has, its ceiling, seconds until it is worth while to
--       try again, places wanted}
-- @include base wake record submitting
-- @defer limits locks impossible_lines
-- @defer limits locks index group finish pauses queues refusal waiting cancel ending replacing replace_older
local ttl, dedup, FIRST, LAST = tonumber(ARGV[1]), tonumber(ARGV[2]), 3, #ARGV
local function replace(id, by)
  replace_older(id, by, ttl, dedup)
end
-- @defer unique claim_key
claim = claim_key
-- @defer unique ceilings find_excess

-- The first task of a run that is not known, if its locks can never be taken.
local function refused(run, past)
  local why = string.find(ARGV[run + 5], 'L|', 1, true) and impossible_lines(ARGV[run + 5])
  for i = run + 7, why and past - 1 or 0, 2 do
    if redis.call('EXISTS', P .. 't:' .. ARGV[i], P .. 'r:' .. ARGV[i]) == 0 then
      return {'IMPOSSIBLE', ARGV[i], why}
    end
  end
end

-- The tasks one by one, as find_excess takes them.
local function all_of(asked, run, past)
  for i = run + 7, past - 1, 2 do
    for _, part in ipairs({ARGV[i], ARGV[run + 1], ARGV[run + 2], ARGV[run + 3], ARGV[run + 4], ARGV[i + 1],
      ARGV[run + 5], ARGV[run + 6]}) do
      asked[#asked + 1] = part
    end
  end
end

local run, asked = FIRST, {}
while run < LAST do
  local past = run + 7 + 2 * ARGV[run]
  local refusal = ARGV[run + 5] ~= '' and refused(run, past)
  if refusal then
    return refusal
  elseif is_capped then
    all_of(asked, run, past)
  end
  run = past
end
local excess = is_capped and find_excess(asked, 1)
if excess then
  return excess
end

local made, are_made, woken, is_alone = {}, true, {}, LAST == FIRST + 8
run = FIRST
while run < LAST do
  local past, name, stream, due = run + 7 + 2 * ARGV[run], ARGV[run + 1], ARGV[run + 2], due_of(ARGV[run + 3])
  local group, lines, terms, known, i = ARGV[run + 4], ARGV[run + 5], ARGV[run + 6], 0, run + 7
  if not is_capped then  -- else what is known would be counted as an end, too
    count_active(stream, name, tonumber(ARGV[run]))
  end
  local function make_all()
    while i < past do
      local new = submit_one(ARGV[i], name, stream, due, group, ARGV[i + 1], lines, terms, not is_capped)
      if new ~= 1 then
        known, are_made = known + 1, false
      end
      made[#made + 1], i = type(new) == 'string' and {new} or new, i + 2
    end
  end
  local problem
  while i < past do
    local fine
    fine, problem = pcall(make_all)
    if not fine then  -- it takes no others along, and is not counted
      known = known + (redis.call('EXISTS', P .. 't:' .. ARGV[i]) == 0 and 1 or 0)
      made[#made + 1], i, are_made = -1, i + 2, false
    end
  end
  if known > 0 and not is_capped then
    count_active(stream, name, -known)
  end
  if not is_capped and tonumber(ARGV[run]) > known then
    count_submitted(stream, tonumber(ARGV[run]) - known)
  end
  if is_alone and problem then
    return redis.error_reply(reason_of(problem))
  end
  if due <= now then
    local size = size_of(stream)
    woken[size] = (woken[size] or 0) + tonumber(ARGV[run]) - known
  end
  run = past
end
for size, count in pairs(woken) do
  wake(size, count)
end
return are_made and 1 or made
