#!lua flags=allow-oom
-- settle: end deliveries, each once. A repeated settle (its reply was lost) gets the same answer; a settle by a
-- worker that no longer owns the delivery changes nothing.
-- KEYS  prefix
-- ARGV  keeping, 'lock ttl ms|latest possible time µs or nothing', n × (id, gen, fence, stream key, entry, outcome, document;
--       unless the outcome is done also text, delay µs, started (0 | 1 | 2), m, m × (arguments of submit_one))
--       started: whether its code was started; 2: the code still runs, and keeps the structural locks
--       outcome: done          end the task with the document as its result
--                commit        as done, and submit these tasks
--                dead          as done, for a failure
--                cancelled | expired  the same, because it was cancelled or not started in time
--                retry         one attempt used: store document and text as its error. If the task was
--                              cancelled meanwhile: end it, with a document made here
--                crash         as retry; the child process that ran it died
--                back          no attempt used: store text as the reason why it waits; or cancelled, too
--                suspect       as back; a process died that ran this task and others, see lib/lost
--                on            as back, for a worker that cannot run it: a worker that may know its class takes
--                              it before the delay has passed, see lib/handing
--                dying         never execute it again: keep the document until it is in SQL
-- returns OK if all are OK, else for each OK | STALE (not the owner) | LOST (a lock expired: nothing was changed) |
--       FAILED: call again with this one alone to get the error; HASH counters counts STALE and LOST
-- @include now leases plain keeping counting mutexes
local ttl, latest = string.match(ARGV[2], '^(%d+)|?(%d*)$')
local lock_ttl, FIRST, SHORT, LONG, OF_A_TASK = tonumber(ttl), 3, 7, 11, 8
leases.check(latest)

-- Where each delivery begins in ARGV, and the ids.
local starts, ids = {}, {}
do
  local at = FIRST
  while at <= #ARGV do
    starts[#starts + 1], ids[#ids + 1] = at, ARGV[at]
    at = at + (ARGV[at + 5] == 'done' and SHORT or LONG + OF_A_TASK * tonumber(ARGV[at + 10]))
  end
end
records.load(ids)

-- What this call ends. It is collected for all deliveries and written at the end: see remove_ended, leave_streams and
-- offer_freed.
local gone, unlocked, counts, ended, steps = {}, {}, {}, {}, {}
local entries, freed, answers, left, met = {}, {}, {}, {}, {}
local others, general = nil, nil  -- lib/settling, once it is needed
local is_alone = #ids == 1  -- an error then goes to the caller

-- Let an error fail only the settlement that caused it.
local function try(step, ...)
  if is_alone then
    return step(...)
  end
  local fine, answer = pcall(step, ...)
  if fine then
    return answer
  end
  return 'FAILED'
end

local function leave_stream(key, entry)
  local of_stream = entries[key] or {}
  of_stream[#of_stream + 1], entries[key] = entry, of_stream
end

-- Do what finish() does for a success that concerns no other task, with deletions and counts collected for all tasks of the
-- call. k: index of its answer.
local function end_plainly(k, id, record, fence, document)
  ended[#ended + 1] = {k = k, id = id, record = record}
  local value = 'done|' .. fence .. '|'
  remember(id, value, document)
  if record.workflow then
    steps[#steps + 1] = {id, record, 'done', value .. document}
  end
  gone[#gone + 1] = id
  add_to(counts, record.stream, record, -1, -counted_bytes(id, record))
end

-- Settle a success of a task that has no field that few tasks have, and no locks but mutexes. Returns whether it did so.
local function settle_plainly(k, id, gen, fence, stream, entry, document)
  local record = records.plain_running(id, gen, fence)
  if not record then
    return false
  end
  if record.locks then
    local mutexes = mutexes_in(record.locks, lock_ttl)
    if not mutexes or not has_mutexes(mutexes, id .. '/' .. gen .. '/' .. fence) then
      return false
    end
    for _, mutex in ipairs(mutexes) do
      unlocked[#unlocked + 1], freed[#freed + 1] = mutex.key, mutex.name  -- fault: plain-mutex-kept
    end
  end
  end_plainly(k, id, record, fence, document)
  leave_stream(P .. stream, entry)
  return true
end

-- Append these successes to the history. A task has a short line, which costs half as much, if the next one has the
-- same class, stream and worker: the line of that task, or of a later one, has these, and the time of the end.
local function list_ended(those)
  local listed = {}
  for i, one in ipairs(those) do
    local a, b = one.record, those[i + 1] and those[i + 1].record
    if b and a.name == b.name and a.owner == b.owner and a.stream == b.stream then
      listed[i] = one.id .. '\t' .. (a.ticket or a.gen) .. '\t' .. (a.started or '')
    else
      listed[i] = line_of(one.id, a, 'done')
    end
  end
  keep_lines('done', listed)
end

local function remove_all(names, mutexes, numbers, those)
  if most_ends > 0 then
    list_ended(those)
  end
  records.drop(names)  -- fault: plain-end-kept
  if #mutexes > 0 then
    redis.call('DEL', unpack(mutexes))
  end
  count_active(numbers)  -- fault: plain-end-uncounted
end

local function remove_ended()
  if #gone == 0 then
    return
  end
  local names, mutexes, numbers, those, last = gone, unlocked, counts, ended, steps
  gone, unlocked, counts, ended, steps = {}, {}, {}, {}, {}
  if #last > 0 then
    general().end_these(last)
  end
  if try(remove_all, names, mutexes, numbers, those) == 'FAILED' then
    for _, one in ipairs(those) do
      answers[one.k] = 'FAILED'
    end
  end
end

-- @defer records wake record submitting limits locks index group finish settling load_settling
function general()
  others = others or load_settling()
  return others
end

-- Entries before their acknowledgement, see drop() in lib/record.
local function leave_streams()
  for key, those in pairs(entries) do
    try(redis.call, 'XDEL', key, unpack(those))
    try(redis.call, 'XACK', key, 'workers', unpack(those))
  end
end

-- Offer the locks that are free now to the tasks that wait for one of them.
local function offer_freed()
  local queues = {}
  for i, name in ipairs(freed) do
    queues[i] = P .. 'queue:' .. name
  end
  for i = 1, #queues, 1000 do
    if redis.call('EXISTS', unpack(queues, i, math.min(i + 999, #queues))) > 0 then
      return general().offer_all(freed, #answers)  -- fault: settle-wakes-none
    end
  end
end

for k, at in ipairs(starts) do
  local id, gen, fence, stream, entry, outcome, document = unpack(ARGV, at, at + SHORT - 1)
  local fine, is_settled = true, false
  if outcome == 'done' and not met[id] then
    fine, is_settled = pcall(settle_plainly, k, id, gen, fence, stream, entry, document)
  end
  if fine and is_settled then
    answers[k], met[id] = 'OK', true
  else
    left[#left + 1] = k
  end
end
if #left > 0 then
  general().settle_rest()
end
remove_ended()
leave_streams()
if others then
  others.release_rest()
end
try(offer_freed)
for _, answer in ipairs(answers) do
  if answer ~= 'OK' then
    return answers
  end
end
return 'OK'
