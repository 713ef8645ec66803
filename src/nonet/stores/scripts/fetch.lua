#!lua flags=allow-oom
-- fetch: hand tasks to a worker in strict priority order, within a priority woken tasks first. Take the locks of
-- each task, or park it. A worker that gets fewer tasks than it asked for goes on the stack of idle workers. Of the
-- idle workers of a size one is on duty: it looks for tasks although nothing has woken it.
-- KEYS  prefix
-- ARGV  keeping, worker, size, free slots, looks (entries to examine at most), lock ttl ms,
--       first and longest pause µs before a parked task is checked without being woken, lock aging µs,
--       what the caller has seen (see current_epoch), longest envelope in bytes, how many suspects it can take beside
--       its slots, how many burials, 1 if it has slept until now
-- returns {1 if there may be more (looks ran out), -1 if another idle worker is on duty, else 0; epoch, its sequence,
--       now µs, n × row}; a row is
--       (id, gen, fence, stream key, entry, envelope, locks); of a task that has a tenant also (whose); of a task that
--       lib/fetching hands over also (whose or '', state, attempts used, worker deaths, marks for held_locks() or '');
--       of one that was parked also (for how many µs); of a suspect, a dying task or one with a checkpoint also (µs,
--       error document, reason, generation in which it died, detail, checkpoint, crashes, how suspect it is, 1 if its
--       policy is asked first). Error document to detail belong to dying tasks; detail of a running one says why its
--       envelope is not sent
-- @include now leases plain
-- @defer events beginning begin_epoch
-- @include epoch mutexes
local worker, size = ARGV[2], ARGV[3]
local free, looks, lock_ttl = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local seen, longest = ARGV[10], tonumber(ARGV[11])
local room_for_suspects, room_for_burials = tonumber(ARGV[12] or '0'), tonumber(ARGV[13] or '0')
local taken = {0, current_epoch(seen, lock_ttl)}
taken[4] = digits(now)
local HEAD, DUTY_MS = #taken, 3000  -- an idle worker asks every two seconds

-- A wake-up takes the worker off the stack. If it is still there, nothing has woken it.
local is_unasked, duty = ARGV[14] == '1' and redis.call('ZSCORE', P .. 'idle:' .. size, worker), P .. 'duty:' .. size
if is_unasked then
  local on_duty = redis.call('SET', duty, worker, 'NX', 'GET', 'PX', DUTY_MS)
  if on_duty and on_duty ~= worker then
    taken[1] = -1
    return taken
  elseif on_duty then
    redis.call('PEXPIRE', duty, DUTY_MS)
  end
end

local last_fence, started = math.max(tonumber(marks[4] or '') or 0, now), digits(now)  -- fault: fence-reset
local fence = last_fence
-- Nothing is paused or limited, and no suspects, dying or handed-on tasks wait.
local is_quiet = not is_pausing
  and redis.call('EXISTS', P .. 'limits', P .. 'suspected:' .. size, P .. 'handed:' .. size) == 0

local others, general = nil, nil  -- lib/fetching, once it is needed

local function read(key, count)
  local reply = redis.pcall('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', count,
    'STREAMS', key, '>')
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'NOGROUP', 1, true) then
      error(reply.err)
    end
    -- First use, or Redis was emptied. Start at id 0, so that no earlier entry is skipped.
    redis.call('XGROUP', 'CREATE', key, 'workers', '0', 'MKSTREAM')
    reply = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', count,
      'STREAMS', key, '>')
  end
  return reply and reply[1] and reply[1][2] or {}
end

-- Whose task it is, for figures of tenants: 'SINCE|TENANT'. SINCE (µs) is when it could run, if its pointer was in the
-- list of a tenant; else '': see the id of its entry. nil for a task without a tenant, unless there are shares.
local function whose(tenant, was_listed, gen, due)
  if not (tenant or marks[6]) then
    return nil
  end
  local since = was_listed and (due and due > gen and due or gen) or ''
  return since .. '|' .. (tenant or '')
end

-- Hand over a task that waits for its first attempt. Returns false for a task that needs more, or needs a lock that is
-- not a free mutex.
local function hand_over_plain(source, entry, fields)
  local id, gen = fields[2], fields[4]
  if #fields ~= 4 or fields[1] ~= 'id' or fields[3] ~= 'gen' then
    return false
  end
  local pointer, rest, tenant, lines, envelope = records.plain_queued(id, gen)
  if not pointer or math.max(#envelope, lines and #lines or 0) > longest then
    return false
  end
  local text = digits(fence + 1)
  if lines then
    local mutexes = mutexes_in(lines, lock_ttl)
    -- lib/locks caches what it reads of locks: once it is loaded, it must take them.
    if not mutexes or others or not take_mutexes(mutexes, id .. '/' .. gen .. '/' .. text) then
      return false
    end
  end
  fence, free, looks = fence + 1, free - 1, looks - 1
  local was_listed = pointer == IN_LIST
  records.begin(id, gen, text, started, worker, was_listed and source.stream .. ' ' .. entry or pointer, rest)
  taken[#taken + 1] = {id, gen, text, source.stream, entry, envelope, lines or '',
    whose(tenant ~= '' and tenant or nil, was_listed, gen)}
  return true
end

-- How many more entries of a stream may be taken. Suspects one by one: each limits how many may follow.
local function most(kind)
  return kind == 'burials' and room_for_burials or kind == 'suspects' and math.min(1, room_for_suspects) or free
end

-- Read a stream until it is empty or the worker has enough.
local function read_stream(kind, priority)
  local stream = kind .. ':' .. priority .. ':' .. size
  local key = P .. stream
  while looks > 0 and most(kind) > 0 and not (others and others.is_skipped(kind, priority)) do
    local wanted = math.min(most(kind), looks)  -- fault: slots-exceeded
    local entries, ids = read(key, wanted), {}
    local source = {key = key, stream = stream, kind = kind}
    for i, item in ipairs(entries) do
      ids[i] = item[2][2] or ''
    end
    records.load(ids)
    for _, item in ipairs(entries) do
      local is_taken = is_quiet and kind == 'tasks' and hand_over_plain(source, item[1], item[2])
      -- An entry that fails must not fail those that were read with it.
      local fine, problem = true, nil
      if not is_taken then
        fine, problem = pcall(general().examine, source, item[1], item[2])
      end
      if not fine then
        others.give_up(key, item[1], item[2], problem)
      end
    end
    records.write_all()
    if #entries < wanted then
      break
    end
  end
end

-- @defer records wake record rescue limits locks fitting pauses queues refusal waiting fetching load_fetching
function general()
  others = others or load_fetching()
  return others
end

if not is_quiet then
  general()
end

-- @defer sharing hand_out
-- Let the tenants of a priority take turns, until the worker has enough.
local function read_shares(priority)
  local stream = priority .. ':' .. size
  local function read()
    local before = #taken
    read_stream('woken', priority)
    read_stream('tasks', priority)
    return taken, before + 1
  end
  repeat
    local wanted = math.min(free, looks)
  until wanted <= 0 or others and others.is_skipped('tasks', priority) or not hand_out(stream, wanted, read)
end

for _, priority in ipairs(PRIORITIES) do
  local read_woken = others and others.read_with_handed or read_stream
  read_woken('woken', priority)
  read_stream('tasks', priority)
  if marks[6] then  -- fault: lists-unread
    read_shares(priority)
  end
  if others then
    others.read_suspects(priority)
  end
end
local are_more = looks <= 0
if others then
  others.read_burials()
  are_more = others.offer_rest() or are_more
end
if is_unasked and #taken > HEAD then
  redis.call('DEL', duty)  -- a wake-up was lost: the next idle worker looks, too
end
if fence > last_fence then
  redis.call('SET', P .. 'fence', digits(fence))
end
if free > 0 and are_more then
  taken[1] = 1
elseif free > 0 then
  -- Keep the position of a worker that found nothing. If that moved it to the top of the stack, a trickle of tasks
  -- would rotate through all workers instead of keeping one busy.
  local got_some = #taken > HEAD
  redis.call('ZADD', P .. 'idle:' .. size, unpack(got_some and {digits(now), worker} or {'NX', digits(now), worker}))
else
  redis.call('ZREM', P .. 'idle:' .. size, worker)
end
return taken
