#!lua flags=allow-oom
-- settle: end deliveries, each once. Repeating a settle (a lost reply) answers as the first time;
-- one by a worker that no longer owns the delivery changes nothing.
-- KEYS  prefix
-- ARGV  result ttl ms, dedup ttl ms, lock ttl ms, n × (id, gen, fence, stream key, entry, outcome,
--       document, text, delay µs, begun (0 | 1 | 2), m, m × (what submit takes): submitted if it is done)
--       begun: whether its code was started; 2: it goes on, and keeps the structural locks
--       outcome: done | dead   end the task with the document as its result
--                cancelled | expired  the same, because somebody asked for it, or nobody started it
--                retry         one attempt used: keep document and text as its error; or cancelled, if
--                              that was asked for meanwhile, and then with a document made here
--                crash         same, and the child process died in which it ran
--                back          no attempt used: keep text as what it waits for; or cancelled, too
--                suspect       same, and a process that served others, too, died with it: see lib/lost
--                on            as back, for a worker that cannot run it: one that may know it takes it
--                              before the delay has passed, see lib/handing
--                dying         never execute again: keep the document until it is in SQL
-- returns OK if all are, else n × (OK | STALE (not the owner) | LOST (a lock ran out: nothing was
--       changed) | FAILED: call again with this one alone, which then says why); HASH counters counts
--       STALE and LOST
-- @include base wake record submitting limits locks index group finish
-- @defer pauses queues refusal waiting offer_all
-- @defer ending end_cancelled
-- @defer leaving leave_locks
-- @defer handing hand_on
-- @defer limits locks index group finish pauses queues refusal waiting cancel ending replacing replace_older
local ttl, dedup, lock_ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local function replace(id, by)
  replace_older(id, by, ttl, dedup)
end
-- @defer unique claim_key
claim = claim_key

-- Where each settlement begins in ARGV, and the locks of each task. (MGET takes a key of another type
-- for a missing one.)
local places, lines_of = {}, {}
do
  local i, keys = 4, {}
  while i <= #ARGV do
    places[#places + 1] = i
    keys[#keys + 1] = P .. 'l:' .. ARGV[i]
    i = i + 11 + 8 * tonumber(ARGV[i + 10])
  end
  lines_of = redis.call('MGET', unpack(keys))
end
local is_alone = #places == 1

-- Nobody's settlement may take along those that came with it.
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

-- What all of them leave is removed together, after everything was written: see remove_ended,
-- leave_streams and release_all.
local gone, counts, ended = {}, {}, {}
local entries, releases, answers = {}, {}, {}

local COUNTED = {crash = 'crashes', suspect = 'suspect', on = 'handed'}
local MEANT = {crash = 'retry', suspect = 'back', on = 'back'}

-- One that is not the caller's, or no more.
local function answer_again(id, fence, record)
  local ended = redis.call('GETRANGE', P .. 'r:' .. id, 0, 63)
  if record.settled == fence or string.match(ended, '^%a+|(%d+)[ |]') == fence then
    return 'OK'
  end
  redis.call('HINCRBY', P .. 'counters', 'settle:stale', 1)
  return 'STALE'
end

-- Whether nothing but the record, its envelope and its locks can be there: it was delivered once, and
-- nobody waits for it.
local function is_plain(record)
  return not record.settled and record.state == 'running'
    and not (record.group or record.opens or record.waited or record.unique or record.saved
      or record.suspect or record.letter)
end

-- As finish() does, for many at once.
local function end_plainly(k, id, record, fence, document)
  ended[#ended + 1] = k
  remember(id, 'done|' .. fence .. '|', document, ttl, dedup)
  gone[#gone + 1] = P .. 't:' .. id
  gone[#gone + 1] = P .. 'l:' .. id  -- also of another type, of which no lines were read
  if not record.b then
    gone[#gone + 1] = P .. 'b:' .. id
  end
  if record.stream then
    local of_stream = counts[record.stream] or {}
    local name = record.name or ''
    of_stream[name] = (of_stream[name] or 0) + 1
    counts[record.stream] = of_stream
  end
end

local function remove_all(keys, numbers)
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
  local keys, numbers, those = gone, counts, ended
  gone, counts, ended = {}, {}, {}
  if try(remove_all, keys, numbers) == 'FAILED' then
    for _, k in ipairs(those) do
      answers[k] = 'FAILED'
    end
  end
end

-- Entries before their acknowledgement, see drop() in lib/rescue.
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
    offer_all(names, #places)
  end
end

-- Submit what follows a task that is done.
local function submit_next(first, count)
  for i = first, first + 8 * count - 1, 8 do
    local stream, due = ARGV[i + 2], due_of(ARGV[i + 3])
    local made = submit_one(ARGV[i], ARGV[i + 1], stream, due, ARGV[i + 4], ARGV[i + 5],
      ARGV[i + 6], ARGV[i + 7])
    if made == 1 and due <= now then
      wake(size_of(stream), 1)
    end
  end
end

-- It is delivered again, after the delay (µs). counted: the field to raise (crashes, suspect, handed), or nil.
local function put_back(i, record, stream, outcome, counted)
  local id, gen, fence, delay = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 8])
  local key, text, started = P .. 't:' .. id, string.sub(ARGV[i + 7], 1, 60), ARGV[i + 9] ~= '0'
  if outcome == 'retry' then
    redis.call('HSET', key, 'settled', fence, 'attempt', tonumber(record.attempt or '0') + 1,
      'error', text)
    redis.call('RPUSH', P .. 'h:' .. id, ARGV[i + 6])
    redis.call('LTRIM', P .. 'h:' .. id, -20, -1)
    -- The attempt has ended, and its process lived; or the policy has allowed one more after a crash.
    if not counted then
      redis.call('HDEL', key, record.judge and 'judge' or 'suspect')
    end
  else
    redis.call('HSET', key, 'settled', fence, 'blocker', text)
  end
  if counted == 'handed' then
    record.stream = stream
    delay = hand_on(id, record, record.owner or '', delay)
  elseif counted then
    redis.call('HINCRBY', key, counted, 1)
  end
  local state = record.state == 'dying' and 'dying' or outcome == 'retry' and 'delayed' or 'waiting'
  if started then
    end_of_wait(id, record)
  end
  requeue(id, state, stream, tonumber(gen), now + delay)
  if record.state == 'running' and not started then
    wait_on(id, record)
  end
end

-- All that is written of a settlement that is the owner's; returns whether the delivery is over.
local function write(k, i, record, outcome, counted, lines)
  local id, gen, fence, document = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 6]
  local count = tonumber(ARGV[i + 10])
  if outcome == 'dying' then
    -- The worker keeps the delivery while it writes to SQL.
    redis.call('SET', P .. 'e:' .. id, document)
    redis.call('HSET', P .. 't:' .. id, 'state', 'dying', 'died', gen)
    return false
  elseif outcome == 'retry' or outcome == 'back' then
    if record.cancel and record.state == 'running' then
      end_cancelled(id, record, fence, ttl, dedup)
    else
      -- A record may have lost fields (foul play, a cut script): its stream is where it was read.
      local stream = record.stream or string.match(ARGV[i + 3], '^%a+:(.*)$')
      put_back(i, record, stream, outcome, counted)
    end
  elseif outcome == 'done' and count == 0 and is_plain(record) then
    end_plainly(k, id, record, fence, document)
  else
    if outcome == 'done' then
      submit_next(i + 11, count)
    end
    finish(id, record, outcome, fence, document, ttl, dedup)
    if record.reason == 'capacity' then  -- the leader may be about to end it
      redis.call('ZREM', P .. 'expired', id)
    end
  end
  return true
end

local function settle(k, i, lines)
  local id, gen, fence = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local outcome = MEANT[ARGV[i + 5]] or ARGV[i + 5]
  local record = read_record(id)
  record.is_whole = true
  if record.gen ~= gen or record.fence ~= fence then
    return answer_again(id, fence, record)
  end
  local locks, owner, is_held = nil, nil, outcome == 'done'
  if lines or record.held then
    locks = held_locks(lines or '', lock_ttl, record.name or '', record.held or '')
    owner = id .. '/' .. gen .. '/' .. fence
    if is_held and lost_lock(locks, owner) then
      redis.call('HINCRBY', P .. 'counters', 'settle:lost', 1)
      return 'LOST'
    end
    if ARGV[i + 9] == '2' then
      leave_locks(id, record, owner, fence, locks, lock_ttl)
    end
  end
  if record.suspect then
    redis.call('SREM', P .. 'accused:' .. (record.owner or ''), id)
  end
  if write(k, i, record, outcome, COUNTED[ARGV[i + 5]], lines) then
    local key = P .. ARGV[i + 3]
    entries[key] = entries[key] or {}
    table.insert(entries[key], ARGV[i + 4])
  end
  if locks then
    releases[#releases + 1] = {locks = locks, owner = owner, started = ARGV[i + 9] ~= '0',
      is_held = is_held}
  end
  return 'OK'
end

local met = {}
for k, i in ipairs(places) do
  if met[ARGV[i]] then  -- a repetition, which is to see what the first one did
    remove_ended()
  end
  met[ARGV[i]] = true
  answers[k] = try(settle, k, i, lines_of[k])
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
