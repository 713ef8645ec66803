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
-- @defer wake wake
local FIRST_RUN = 2

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

local runs = read_runs()
-- @defer wake record counting submitting creating create

-- Whether tasks of a run may start now, have neither a group nor terms, and ask no rate limiter (whose line ends in a
-- number of items).
local function is_plain(run)
  return run.wall == '0' and run.group == '' and run.terms == '' and run.stream == runs[1].stream
    and not string.find(run.locks .. '\n', '%d\n')
end

-- The keys that must not exist for these tasks, and what to store for them; nil if an id comes twice.
local function keys_of_all()
  local absent, stored, met = {}, {}, {}
  for _, run in ipairs(runs) do
    for i = run.first, run.past - 1, 2 do
      local id = ARGV[i]
      if met[id] then
        return nil
      end
      met[id] = true
      absent[#absent + 1], absent[#absent + 2] = P .. 't:' .. id, P .. 'r:' .. id
      stored[#stored + 1], stored[#stored + 2] = P .. 'b:' .. id, ARGV[i + 1]
      if run.locks ~= '' then
        stored[#stored + 1], stored[#stored + 2] = P .. 'l:' .. id, run.locks
      end
    end
  end
  return absent, stored
end

-- Create tasks that are new and plain: most calls have only such. Returns whether it did so.
local function create_plainly()
  for _, run in ipairs(runs) do
    if not is_plain(run) then
      return false
    end
  end
  local absent, stored = keys_of_all()
  if not absent or redis.call('EXISTS', unpack(absent)) > 0 then
    return false
  end
  redis.call('MSET', unpack(stored))
  local stream, gen, created = runs[1].stream, digits(now), 0
  local function append(id)
    -- The entry id is made of the gen, see first_entry() in lib/record.
    local entry = string.sub(gen, 1, -4) .. '-' .. tonumber(string.sub(gen, -3))
    return redis.pcall('XADD', P .. 'tasks:' .. stream, entry, 'id', id, 'gen', gen)
  end
  -- If the stream already has a later entry, the tasks need other entries. If the first has none, all the others fit.
  if type(append(ARGV[runs[1].first])) == 'table' then
    return false
  end
  for _, run in ipairs(runs) do
    redis.call('HINCRBY', P .. 'active', stream .. '|' .. run.name, run.count)
    for i = run.first, run.past - 1, 2 do
      if created > 0 then
        gen = digits(now + created)
        append(ARGV[i])
      end
      redis.call('HSET', P .. 't:' .. ARGV[i], 'state', 'queued', 'gen', gen, 'name', run.name, 'stream', stream)
      created = created + 1
    end
  end
  if marks[5] then
    redis.call('HINCRBY', P .. 'counters', 'submitted:' .. stream, created)
  end
  local size = string.match(stream, '[^:]*$')
  if redis.pcall('ZCARD', P .. 'idle:' .. size) ~= 0 then
    wake(size, created)
  end
  return true
end

return not is_capped and create_plainly() and 1 or create()
