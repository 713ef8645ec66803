#!lua flags=allow-oom
-- fetch: hand tasks to a worker, in strict priority, woken ones first; take their locks or park
-- them. A worker that gets fewer than it asked for is put on the stack of idle workers.
-- KEYS  prefix
-- ARGV  worker, size, free slots, looks (entries to examine at most), lock ttl ms,
--       first and longest pause µs before a parked task is looked at by itself, lock aging µs,
--       epoch and sequence seen, longest envelope in bytes, result ttl ms, dedup ttl ms, µs that it
--       cannot be later than or '', how many suspects it can take beside its slots,
--       and how many burials
-- returns {1 if there may be more (looks ran out) else 0, epoch, its sequence, now µs, n × row}; a row is
--       (id, gen, fence, state, attempts used, worker deaths, stream key, entry, envelope, locks,
--       marks of the limiters that hold or ''), of one that was parked (for how many µs), and of those
--       of which there is more to say (µs, error document, reason, generation in which it died, what it
--       died of, what an earlier attempt has saved, crashes, how suspect it is, 1 if its policy is to be
--       asked first): error document to what it died of only of dying tasks; of a running one that says
--       why its envelope is not sent
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch wake record rescue limits locks pauses queues refusal waiting
-- @defer submitting index group finish cancel ending expiry end_early
-- @defer submitting index group finish ending damage condemning end_if_damaged
-- @defer unread unread
local worker, size = ARGV[1], ARGV[2]
local free, looks, lock_ttl = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local longest, HARD_LIMIT = tonumber(ARGV[10]), 4 * 1048576
local waits = {first = tonumber(ARGV[6]), longest = tonumber(ARGV[7]), aging = tonumber(ARGV[8])}
local ttl, dedup, latest = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local room, graves = tonumber(ARGV[14] or '0'), tonumber(ARGV[15] or '0')
local taken = {0, current_epoch(ARGV[9], lock_ttl)}
taken[4] = digits(now)
math.randomseed(tonumber(clock[2]))
local fence, started = math.max(tonumber(marks[4] or '') or 0, now), digits(now)
local is_flagged = false  -- whether suspects or burials may be unread

local function read(key, count)
  local reply = redis.pcall('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', count,
    'STREAMS', key, '>')
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'NOGROUP', 1, true) then
      error(reply.err)
    end
    -- First use, or Redis was emptied: id 0, so that nothing queued before is skipped.
    redis.call('XGROUP', 'CREATE', key, 'workers', '0', 'MKSTREAM')
    reply = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', count,
      'STREAMS', key, '>')
  end
  return reply and reply[1] and reply[1][2] or {}
end

-- What an earlier attempt saved; nothing, if it is longer than we let anybody save.
local function saved_by(id)
  local saved = redis.call('GETRANGE', P .. 'c:' .. id, 0, longest)
  return #saved <= longest and saved or ''
end

-- How many suspects the worker can take after this one. After two deaths a suspect runs only beside its own
-- group, which halves with each death.
local STRONG, GROUP = 2, 100
local function room_after(record, before)
  if tonumber(record.deaths or '0') < STRONG then
    return before - 1
  end
  local group = size == 'small' and math.floor(GROUP / 2 ^ (tonumber(record.suspect) - 1)) or 1
  return math.min(before, math.max(1, group)) - 1
end

local function hand_over(pointer, record, state, held, lines, document)
  -- However long it is, neither we nor a worker have to hold all of it.
  local key, most = P .. 'b:' .. pointer.id, state == 'running' and longest or HARD_LIMIT
  local envelope = pointer.envelope or envelope_of(pointer.id, record)
    or redis.call('GETRANGE', key, 0, most)
  if state == 'running' and math.max(#envelope, #lines) > longest then
    record.detail = string.format('message of %d bytes exceeds %d',
      (record.b and #envelope or redis.call('STRLEN', key)) + #lines, longest)
    envelope, lines = '', ''
  end
  local text = digits(fence)
  if record.since or record.held or held ~= '' then
    redis.call('HSET', pointer.record, 'state', state, 'owner', worker, 'fence', text, 'started',
      started, 'held', held, unpack(record.since and NOT_WAITING or {}))
  else
    redis.call('HSET', pointer.record, 'state', state, 'owner', worker, 'fence', text, 'started',
      started)
  end
  if record.unique and string.sub(record.unique, 1, 1) == 's' then  -- until_start
    give_key_up(pointer.id, record.unique)
  end
  if record.start_by then  -- while a worker has it, it does not expire; see end_of_wait and wait_on
    redis.call('ZREM', P .. 'deadlines', pointer.id)
  end
  local row = {pointer.id, pointer.gen, text, state, record.attempt or '0', record.deaths or '0',
    pointer.stream, pointer.entry, envelope, lines, held}
  local is_long = state == 'dying' or record.detail or record.saved or record.crashes or record.suspect
  if is_long or record.since then
    row[#row + 1] = digits(math.max(0, now - (tonumber(record.since or '') or now)))
  end
  if is_long then
    for _, told in ipairs({document, record.reason or '', record.died or '', record.detail or '',
      record.saved and saved_by(pointer.id) or '', record.crashes or '0', record.suspect or '0',
      record.judge or '0'}) do
      row[#row + 1] = told
    end
  end
  taken[#taken + 1] = row
  if state == 'dying' then
    graves = graves - 1
  elseif pointer.kind == 'suspects' then
    room = room_after(record, room)
  else
    free = free - 1
  end
end

local function hand_over_dying(pointer, record)
  fence = fence + 1
  local why = read_fields(pointer.record, {'reason', 'died', 'detail'})
  record.reason, record.died, record.detail = why.reason, why.died, why.detail
  hand_over(pointer, record, 'dying', '', '',
    redis.call('GETRANGE', P .. 'e:' .. pointer.id, 0, HARD_LIMIT))
end

-- What is dying is handed over from streams of its own, and takes no slot: this fetch reads them last. The
-- version before has queued it among the others.
local function bury(pointer, record)
  if pointer.kind == 'burials' then
    return hand_over_dying(pointer, record)
  end
  requeue(pointer.id, 'dying', record.stream, tonumber(pointer.gen), now)
  is_flagged = true
  drop(pointer.key, pointer.entry)
end

-- A task that asks a limiter for more than its limit would wait for ever.
local function refuse_for_ever(pointer, record, me, lock)
  leave_as_admitted(me)
  each_place(me, function(_, _, name) give_back({name}) end)
  redis.call('HSET', P .. 't:' .. pointer.id, 'reason', 'limit-impossible', 'died', pointer.gen,
    'detail', why_impossible(lock), unpack(NOT_WAITING))
  bury(pointer, record)
end

-- The locks of a task; most pages have none at all. With them comes the envelope of one that was woken:
-- it is not refused again.
-- (MGET takes a key of another type for a missing one; GET complains.)
local function read_lines(pointer, was_parked)
  if pointer.is_free then
    return ''
  end
  local key = P .. 'l:' .. pointer.id
  if was_parked then
    local both = redis.call('MGET', key, P .. 'b:' .. pointer.id)
    pointer.envelope = both[2] or nil
    if both[1] then
      return both[1]
    end
  end
  return redis.call('GET', key) or ''
end

local function deliver(pointer, record)
  local id, lines = pointer.id, read_lines(pointer, record.since and not record.b)
  local is_paused = pause_of(record.stream, record.name)
  if lines == '' and not record.since and not are_limits_set() and not is_paused then
    fence = fence + 1
    return hand_over(pointer, record, 'running', '', '', '')
  end
  local task = (record.places or is_paused or are_limits_set()) and record.name or ''
  local me = new_waiter(id, record, parse_locks(lines, lock_ttl, task))
  add_pause(me)
  local refusal = refusal_of(me)
  if refusal and refusal.impossible then
    return refuse_for_ever(pointer, record, me, refusal.lock)
  elseif refusal then
    -- Of a paused class thousands may follow each other; no call may hold Redis up for long.
    looks = looks - (is_paused and 2 or 0)
    park(me, refusal, waits)
    return drop(pointer.key, pointer.entry)
  end
  fence = fence + 1
  local held = take_locks(me, id .. '/' .. pointer.gen .. '/' .. digits(fence))
  if record.since or record.places then
    leave_as_admitted(me)
  end
  hand_over(pointer, record, 'running', held, lines, '')
end

local examine
do
-- @defer handing hand_on
  local FIRST_REST = 5000000

  -- Somebody has cancelled it while it ran, or it is too late to start it. A clock that was set forward,
  -- which the leader has not put right yet, lets nothing expire.
  local function is_over(record)
    local deadline = tonumber(string.match(record.start_by or '', '^%d+') or '')
    return record.cancel or deadline and deadline <= now and now <= (latest or now)
  end

  -- Newer code has written it: as it is it waits for a worker that can read it.
  local function let_newer_wait(pointer, record, why)
    local rest = hand_on(pointer.id, record, worker, FIRST_REST)
    redis.call('HSET', pointer.record, 'blocker', why)
    if record.state == 'queued' then
      redis.call('HSET', pointer.record, 'ticket', record.ticket, 'state', 'waiting')
    end
    delay(pointer.id, now + rest)
    drop(pointer.key, pointer.entry)
  end

  function examine(source, entry, fields)
    local key = source.key
    looks = looks - 1
    if #fields ~= 4 or fields[1] ~= 'id' or fields[3] ~= 'gen' then
      return quarantine(key, entry, fields, 'not a task pointer')
    end
    local pointer = {id = fields[2], gen = fields[4], key = key, entry = entry, kind = source.kind,
      stream = source.stream, is_free = source.is_free, record = P .. 't:' .. fields[2]}
    local record = read_record(fields[2])
    -- What a running task died of is said here, if at all; its record may say so of an earlier end.
    record.reason, record.died, record.detail = nil, nil, nil
    local is_in_hands = record.state == 'dying' and record.owner  -- by another pointer, of a cut script
    if not record.gen then
      end_if_damaged(pointer.id, ttl, dedup, key, entry)
    end
    if record.gen ~= pointer.gen or is_in_hands
      or (record.state ~= 'queued' and record.state ~= 'dying') then
      drop(key, entry)
    elseif record.v and newer_format(record) then
      let_newer_wait(pointer, record, newer_format(record))
    elseif record.state == 'dying' then
      bury(pointer, record)
    elseif is_over(record) then
      end_early(pointer.id, ttl, dedup)
      is_flagged = true
      drop(key, entry)
    else
      deliver(pointer, record)
    end
  end
end

-- Whether no task among these entries has locks: asked once for all, of keys of any type.
local function are_free(entries)
  if #entries < 2 then  -- a task that came alone is asked for by itself: most of those woken have locks
    return false
  end
  local keys = {}
  for _, item in ipairs(entries) do
    local fields = item[2]
    if fields[2] then
      keys[#keys + 1] = P .. 'l:' .. fields[2]
    end
  end
  -- More are not unpacked at once: each is then asked for by itself.
  return #keys > 0 and #keys <= 1000 and redis.call('EXISTS', unpack(keys)) == 0
end

-- A delivery failed half way: free what it took before, each lock and place that can be freed.
local function give_up(key, entry, fields, problem)
  local id, gen = fields[2], fields[4]
  local owner = id .. '/' .. gen .. '/' .. digits(fence)
  local fine, me = pcall(load_waiter, id)
  for _, lock in ipairs(fine and me and me.locks or {}) do
    if lock.limits then
      pcall(resolve_limit, lock)
    end
    local freed, names = pcall(release_locks, {lock}, owner, false)
    give_back(freed and names or {})
  end
  if end_if_damaged(id, ttl, dedup, key, entry) or put_aside(id, problem) then
    drop(key, entry)
  else
    quarantine(key, entry, fields, problem)
  end
end

-- What is woken is read nevertheless, and parked: those of age are among the ones of realtime, and
-- whoever keeps a place at a lock has to give it up.
local function is_skipped(kind, priority)
  if kind == 'burials' then  -- nothing of it is executed
    return false
  end
  local pauses = read_pauses()
  return pauses.all or kind ~= 'woken' and pauses['stream:' .. priority .. ':' .. size]
end

-- Read a stream until there is nothing more, or no more is wanted.
local function read_stream(kind, priority)
  local key = P .. kind .. ':' .. priority .. ':' .. size
  local function most()  -- each suspect says how many may follow
    return kind == 'burials' and graves or kind == 'suspects' and math.min(1, room) or free
  end
  while looks > 0 and most() > 0 and not is_skipped(kind, priority) do
    local wanted = math.min(most(), looks)
    local entries = read(key, wanted)
    local source = {key = key, stream = string.sub(key, #P + 1), is_free = are_free(entries),
      kind = kind}
    for _, item in ipairs(entries) do
      -- One broken record must not take along those that were read with it.
      local fine, problem = pcall(examine, source, item[1], item[2])
      if not fine then
        give_up(key, item[1], item[2], problem)
      end
    end
    if #entries < wanted then
      break
    end
  end
end

local function is_unread(kind, priority)
  return unread(P .. kind .. ':' .. priority .. ':' .. size) > 0
end

local has_suspects, are_left, take_handed = false, false, nil
do
-- @defer handing handed_for
  local suspected, handed = P .. 'suspected:' .. size, P .. 'handed:' .. size
  if redis.call('EXISTS', suspected, handed) > 0 then
    has_suspects, take_handed = redis.call('EXISTS', suspected) == 1, handed_for(worker, size)
  end
end
is_flagged = is_flagged or has_suspects

-- Read a stream, and then what was handed on and this worker may be able to run: it is queued there and read in
-- one step, so that no worker that cannot run it reads it first.
local function read_with_handed(kind, priority)
  repeat
    read_stream(kind, priority)
    local most = is_skipped(kind, priority) and 0 or math.min(kind == 'suspects' and room or free, looks)
  until not take_handed or take_handed(kind .. ':' .. priority, most) == 0
end

for _, priority in ipairs({'realtime', 'normal', 'background'}) do
  read_with_handed('woken', priority)
  read_stream('tasks', priority)
  if has_suspects or take_handed then
    -- A fetch without free slots has not read the ordinary streams. Work that waits there goes first.
    if free <= 0 and (is_unread('woken', priority)
      or not is_skipped('tasks', priority) and is_unread('tasks', priority)) then
      room = 0
    end
    read_with_handed('suspects', priority)
    are_left = are_left or is_unread('suspects', priority)
  end
end
if is_flagged then
  for _, priority in ipairs({'realtime', 'normal', 'background'}) do
    read_stream('burials', priority)
    are_left = are_left or is_unread('burials', priority)
  end
  if not are_left then
    redis.call('DEL', P .. 'suspected:' .. size)
  end
end
offer_all()
redis.call('SET', P .. 'fence', digits(fence))
if free > 0 and (looks <= 0 or woken_sizes[size]) then
  taken[1] = 1
elseif free > 0 then
  -- Who only looked, and found nothing, keeps its place: else each poll would be the most recent one,
  -- and a trickle would keep all workers busy in turn instead of one.
  local got_some = #taken > 4
  redis.call('ZADD', P .. 'idle:' .. size, unpack(got_some and {digits(now), worker} or {'NX', digits(now), worker}))
else
  redis.call('ZREM', P .. 'idle:' .. size, worker)
end
return taken
