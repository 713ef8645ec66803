#!lua flags=allow-oom
-- settle: end deliveries, each once. A repeated settle (its reply was lost) gets the same answer; a settle by a
-- worker that no longer owns the delivery changes nothing.
-- KEYS  prefix
-- ARGV  keeping, lock ttl ms, n × (id, gen, fence, stream key, entry, outcome,
--       document, text, delay µs, started (0 | 1 | 2), m, m × (arguments of submit_one), submitted if done)
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
-- returns OK if all are OK, else n × (OK | STALE (not the owner) | LOST (a lock expired: nothing was changed) |
--       FAILED: call again with this one alone to get the error); HASH counters counts STALE and LOST
-- @include base wake record submitting limits locks index group finish
-- @defer ending workflow load_end_steps
-- @defer ending workflow staging add_steps
-- @defer pauses queues refusal waiting offer_all
-- @defer ending end_cancelled
-- @defer leaving leave_locks
-- @defer handing hand_on
-- @defer limits locks index group finish pauses queues refusal waiting cancel ending replacing replace_older
local lock_ttl, FIRST = tonumber(ARGV[2]), 3
local replace = replace_older
-- @defer unique claim_key
claim = claim_key

end_steps = load_end_steps

local COUNTED = {crash = 'crashes', suspect = 'suspect', on = 'handed'}  -- fields of the record to raise
local MEANT = {crash = 'retry', suspect = 'back', on = 'back'}

-- The deliveries to settle, and the locks of each task. (MGET treats a key of a wrong type as missing.)
local deliveries, lines_of = {}, {}
do
  local at, keys, FIELDS, FIELDS_OF_A_TASK = FIRST, {}, 11, 8
  while at <= #ARGV do
    local id, gen, fence, stream, entry, outcome, document, text, delay, started, count = unpack(ARGV, at, at + 10)
    deliveries[#deliveries + 1] = {id = id, gen = gen, fence = fence, stream = stream, entry = entry,
      outcome = MEANT[outcome] or outcome, counted = COUNTED[outcome], document = document,
      text = string.sub(text, 1, 60), delay = tonumber(delay), is_started = started ~= '0',
      still_runs = started == '2', follower = at + FIELDS, followers = tonumber(count)}
    keys[#keys + 1] = P .. 'l:' .. id
    at = at + FIELDS + FIELDS_OF_A_TASK * count
  end
  lines_of = redis.call('MGET', unpack(keys))
end
local is_alone = #deliveries == 1

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

-- Deletions, collected for all deliveries and made after everything was written: see remove_ended, leave_streams
-- and release_all.
local gone, counts, ended, steps = {}, {}, {}, {}
local entries, releases, answers = {}, {}, {}

-- The answer for a delivery that the caller does not own, or has settled before.
local function answer_again(delivery, record)
  local stored = redis.call('GETRANGE', P .. 'r:' .. delivery.id, 0, 63)
  if record.settled == delivery.fence or string.match(stored, '^%a+|(%d+)[ |]') == delivery.fence then
    return 'OK'
  end
  redis.call('HINCRBY', P .. 'counters', 'settle:stale', 1)
  return 'STALE'
end

-- Whether a task has nothing but its record, its envelope and its locks, and perhaps a workflow: it was delivered once,
-- and no client waits for it.
local function is_plain(record)
  return not record.settled and record.state == 'running'
    and not (record.group or record.opens or record.waited or record.unique or record.saved
      or record.suspect or record.letter)
end

-- Do what finish() does, with deletions and counts collected for all tasks of the call. k: index of its answer.
local function end_plainly(k, delivery, record)
  local id = delivery.id
  delivery.record = record
  ended[#ended + 1] = k
  local value = 'done|' .. delivery.fence .. '|'
  remember(id, value, delivery.document)
  if record.workflow then
    steps[#steps + 1] = {id, record, 'done', value .. delivery.document}
  end
  for _, kind in ipairs({'t:', 'l:', 'b:'}) do
    gone[#gone + 1] = P .. kind .. id
  end
  if record.stream then
    local of_stream = counts[record.stream] or {}
    local name = record.name or ''
    of_stream[name] = (of_stream[name] or 0) + 1
    counts[record.stream] = of_stream
  end
end

-- Append these successes to the history. A task has a short line, which costs half as much, if the next one has the
-- same class, stream and worker: the line of that task, or of a later one, has these, and the time of the end.
local function list_ended(those)
  local listed, one = {}, deliveries[those[1]]
  for i = 1, #those do
    local next = deliveries[those[i + 1]]
    local a, b = one.record, next and next.record
    if b and a.name == b.name and a.owner == b.owner and a.stream == b.stream then
      listed[i] = one.id .. '\t' .. (a.ticket or a.gen) .. '\t' .. (a.started or '')
    else
      listed[i] = line_of(one.id, a, 'done')
    end
    one = next
  end
  keep_lines('done', listed, most_ends)
end

-- End these steps of workflows. A damaged workflow must not prevent the end of its steps, nor harm others.
local function end_these(those)
  if #those == 0 or pcall(end_steps, those) then
    return
  end
  for _, one in ipairs(those) do
    if not pcall(end_steps, {one}) then
      redis.call('HINCRBY', P .. 'counters', 'finish:broken', 1)
    end
  end
  pcall(end_steps, {})  -- what those that failed have collected
end

local function remove_all(keys, numbers, those)
  if most_ends > 0 then
    list_ended(those)
  end
  redis.call('DEL', unpack(keys))
  for stream, names in pairs(numbers) do
    for name, number in pairs(names) do
      count_active(stream, name, -number)
    end
  end
end

local function remove_ended()
  if #gone == 0 then
    return
  end
  local keys, numbers, those, last = gone, counts, ended, steps
  gone, counts, ended, steps = {}, {}, {}, {}
  end_these(last)
  if try(remove_all, keys, numbers, those) == 'FAILED' then
    for _, k in ipairs(those) do
      answers[k] = 'FAILED'
    end
  end
end

-- Entries before their acknowledgement, see drop() in lib/record.
local function leave_streams()
  for key, those in pairs(entries) do
    try(redis.call, 'XDEL', key, unpack(those))
    try(redis.call, 'XACK', key, 'workers', unpack(those))
  end
end

local function release_all()
  local names = {}
  for _, one in ipairs(releases) do
    local freed = try(release_locks, one.locks, one.owner, one.started, one.is_held)
    for _, name in ipairs(type(freed) == 'table' and freed or {}) do
      names[#names + 1] = name
    end
  end
  if is_wanted(names) then
    offer_all(names, #deliveries)
  end
end

local function submit_follower(id, name, stream, wall, ...)
  local due = due_of(wall)
  if submit_one(id, name, stream, due, ...) == 1 and due <= now then
    wake(size_of(stream), 1)
  end
end

-- Submit the tasks that follow a task that is done; add those that are steps to its workflow.
local function submit_followers(delivery, record)
  local steps = {}
  for i = delivery.follower, delivery.follower + 8 * delivery.followers - 1, 8 do
    if string.find(ARGV[i + 7], '^step ') then
      steps[#steps + 1] = {unpack(ARGV, i, i + 7)}
    else
      submit_follower(unpack(ARGV, i, i + 7))
    end
  end
  if #steps > 0 then
    record.adds = add_steps(delivery.id, record, steps)
  end
end

-- Queue the task again, after the delay.
local function put_back(delivery, record, stream)
  local id, fence, delay, counted = delivery.id, delivery.fence, delivery.delay, delivery.counted
  local key = P .. 't:' .. id
  if delivery.outcome == 'retry' then
    redis.call('HSET', key, 'settled', fence, 'attempt', tonumber(record.attempt or '0') + 1,
      'error', delivery.text)
    redis.call('RPUSH', P .. 'h:' .. id, delivery.document)
    redis.call('LTRIM', P .. 'h:' .. id, -20, -1)
    -- The attempt ended and its process survived, or the policy allowed another attempt after a crash.
    if not counted then
      redis.call('HDEL', key, record.judge and 'judge' or 'suspect')
    end
  else
    redis.call('HSET', key, 'settled', fence, 'blocker', delivery.text)
  end
  if counted == 'handed' then
    record.stream = stream
    delay = hand_on(id, record, record.owner or '', delay)
  elseif counted then
    redis.call('HINCRBY', key, counted, 1)
  end
  local state = record.state == 'dying' and 'dying' or delivery.outcome == 'retry' and 'delayed' or 'waiting'
  if delivery.is_started then
    end_of_wait(id, record)
  end
  requeue(id, state, stream, tonumber(delivery.gen), now + delay)
  if record.state == 'running' and not delivery.is_started then
    wait_on(id, record)
  end
end

-- Write what a settlement by the owner changes. Returns whether the delivery is over.
local function write(k, delivery, record)
  local id, outcome = delivery.id, delivery.outcome
  if outcome == 'dying' then
    -- The worker keeps the delivery while it writes to SQL.
    redis.call('SET', P .. 'e:' .. id, delivery.document)
    redis.call('HSET', P .. 't:' .. id, 'state', 'dying', 'died', delivery.gen)
    return false
  elseif outcome == 'retry' or outcome == 'back' then
    if record.cancel and record.state == 'running' then
      end_cancelled(id, record, delivery.fence)
    else
      -- A damaged record may lack its stream: use the one that the delivery was read from.
      put_back(delivery, record, record.stream or string.match(delivery.stream, '^%a+:(.*)$'))
    end
  elseif outcome == 'done' and delivery.followers == 0 and is_plain(record) then
    end_plainly(k, delivery, record)
  else
    if outcome == 'done' then
      submit_followers(delivery, record)
    end
    finish(id, record, outcome, delivery.fence, delivery.document)
    if record.reason == 'capacity' then  -- the leader may be about to end it
      redis.call('ZREM', P .. 'expired', id)
    end
  end
  return true
end

local function settle(k, delivery, lines)
  local id, fence = delivery.id, delivery.fence
  local record = read_record(id)
  if record.gen ~= delivery.gen or record.fence ~= fence then
    return answer_again(delivery, record)
  end
  local locks, owner, is_held = nil, nil, delivery.outcome == 'done'
  if lines or record.held then
    locks = held_locks(lines or '', lock_ttl, record.name or '', record.held or '')
    owner = id .. '/' .. delivery.gen .. '/' .. fence
    if is_held and lost_lock(locks, owner) then
      redis.call('HINCRBY', P .. 'counters', 'settle:lost', 1)
      return 'LOST'
    end
    if delivery.still_runs then
      leave_locks(id, record, owner, fence, locks, lock_ttl)
    end
  end
  if record.suspect then
    redis.call('SREM', P .. 'accused:' .. (record.owner or ''), id)
  end
  if write(k, delivery, record) then
    local key = P .. delivery.stream
    entries[key] = entries[key] or {}
    table.insert(entries[key], delivery.entry)
  end
  if locks then
    releases[#releases + 1] = {locks = locks, owner = owner, started = delivery.is_started,
      is_held = is_held}
  end
  return 'OK'
end

local met = {}
for k, delivery in ipairs(deliveries) do
  if met[delivery.id] then  -- a repetition must see what the first settlement did
    remove_ended()
  end
  met[delivery.id] = true
  answers[k] = try(settle, k, delivery, lines_of[k])
end
remove_ended()
leave_streams()
try(release_all)
for _, answer in ipairs(answers) do
  if answer ~= 'OK' then
    return answers
  end
end
return 'OK'
