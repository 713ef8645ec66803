#!lua flags=allow-oom
-- settle: end deliveries, each once. A repeated settle (its reply was lost) gets the same answer; a settle by a
-- worker that no longer owns the delivery changes nothing.
-- KEYS  prefix
-- ARGV  keeping, 'lock ttl ms|latest possible time µs or nothing', n, n × (id, gen, fence, stream key, entry, document) of tasks that are done and submit
--       nothing, then for all others
--       id, gen, fence, stream key, entry, outcome, document, text, delay µs, started (0 | 1 | 2), m,
--       m × (arguments of submit_one), submitted if done
--       started: whether its code was started; 2: the code still runs, and keeps the structural locks
--       outcome: done | dead   end the task with the document as its result
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
-- @include base keeping counting mutexes
local ttl, latest = string.match(ARGV[2], '^(%d+)|?(%d*)$')
local lock_ttl, number, FIRST, FIELDS = tonumber(ttl), tonumber(ARGV[3]), 4, 6
leases.check(latest)
local FIRST_OTHER = FIRST + number * FIELDS

-- What this call ends. It is collected for all deliveries and written at the end: see remove_ended, leave_streams and
-- offer_freed.
local gone, counts, ended, steps = {}, {}, {}, {}
local entries, freed, answers, left, met = {}, {}, {}, {}, {}
local others, general = nil, nil  -- lib/settling, once it is needed
-- Whether there is one delivery: an error then goes to the caller.
local is_alone = number == 1 and #ARGV < FIRST_OTHER or number == 0 and #ARGV == FIRST + 10 + 8 * ARGV[FIRST + 10]

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

-- Whether a task has nothing but its record, its envelope and its locks, and perhaps a workflow: it was delivered once,
-- and no client waits for it.
local function is_plain(record)
  return not record.settled and record.state == 'running'  -- fault: retried-ends-plainly
    and not (record.group or record.opens or record.waited or record.unique or record.saved
      or record.suspect or record.letter)
end

-- Do what finish() does, with deletions and counts collected for all tasks of the call. k: index of its answer.
local function end_plainly(k, id, record, fence, document)
  ended[#ended + 1] = {k = k, id = id, record = record}
  local value = 'done|' .. fence .. '|'
  remember(id, value, document)
  if record.workflow then
    steps[#steps + 1] = {id, record, 'done', value .. document}
  end
  local at = #gone
  gone[at + 1], gone[at + 2], gone[at + 3] = P .. 't:' .. id, P .. 'l:' .. id, P .. 'b:' .. id  -- fault: plain-locks-kept
  if record.stream then
    add_to(counts, record.stream, record, -1, -counted_bytes(id))
  end
end

-- Settle a success that needs nothing else, with no locks but mutexes. Returns whether it did so.
local function settle_plainly(k, id, gen, fence, stream, entry, document, lines)
  local record = read_record(id)
  if record.gen ~= gen or record.fence ~= fence or record.held or not is_plain(record) then  -- fault: plain-fence-unchecked
    return false
  end
  local mutexes = mutexes_in(lines or '', lock_ttl)
  if not mutexes or not has_mutexes(mutexes, id .. '/' .. gen .. '/' .. fence) then
    return false
  end
  end_plainly(k, id, record, fence, document)
  for _, mutex in ipairs(mutexes) do
    gone[#gone + 1], freed[#freed + 1] = mutex.key, mutex.name  -- fault: plain-mutex-kept
  end
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

local function remove_all(keys, numbers, those)
  if most_ends > 0 then
    list_ended(those)
  end
  redis.call('DEL', unpack(keys))  -- fault: plain-end-kept
  count_active(numbers)  -- fault: plain-end-uncounted
end

local function remove_ended()
  if #gone == 0 then
    return
  end
  local keys, numbers, those, last = gone, counts, ended, steps
  gone, counts, ended, steps = {}, {}, {}, {}
  if #last > 0 then
    general().end_these(last)
  end
  if try(remove_all, keys, numbers, those) == 'FAILED' then
    for _, one in ipairs(those) do
      answers[one.k] = 'FAILED'
    end
  end
end

-- @defer wake record submitting limits locks index group finish settling load_settling
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

do
  -- The locks of each task.
  local keys = {}
  for k = 1, number do
    keys[k] = P .. 'l:' .. ARGV[FIRST + (k - 1) * FIELDS]
  end
  local lines_of = number > 0 and redis.call('MGET', unpack(keys)) or {}
  for k = 1, number do
    local at = FIRST + (k - 1) * FIELDS
    local id, gen, fence, stream, entry, document = unpack(ARGV, at, at + FIELDS - 1)
    local fine, is_settled = true, false
    if not met[id] then
      fine, is_settled = pcall(settle_plainly, k, id, gen, fence, stream, entry, document, lines_of[k])
    end
    if fine and is_settled then
      answers[k], met[id] = 'OK', true
    else
      left[#left + 1] = k
    end
  end
end
if #left > 0 or FIRST_OTHER <= #ARGV then
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
