#!lua flags=allow-oom
-- break_lock: take a lock from its holders for an operator, and offer it to the tasks that wait. Another task may
-- start at once, so the holders of a structural lock are voided: their renewal reports the loss, their settle is
-- STALE, and their tasks are requeued without using an attempt or counting a crash. Their other locks stay until
-- they expire, because the old attempts may still run. A limiter is only emptied, because it protects no data: its
-- holders continue, and are counted again when they renew under a configured limit. One call handles a batch, so
-- that many holders do not block Redis; call it again while there are more.
-- KEYS  prefix
-- ARGV  name, last fence (holders that were admitted later are spared, so that a repeated call cannot void a new
--       one), who asks (user@host pid)
-- returns {items or slots that were dropped, holders as rows of lib/sight, ids that were woken, 1 if there are more}
-- @include base wake record rescue limits mutexes locks fitting pauses queues refusal waiting sight events
local name, last_fence, who = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local lock = lock_named(name)
local fence = math.max(tonumber(redis.call('GET', P .. 'fence') or '0'), now)
local dropped, rows, voided, more = 0, {}, {}, 0

local BATCH = 100  -- holders or grants of one call
local PAGE = 500  -- members that are read at once
local LATER = 2000000  -- µs until the tasks of all calls but the last run again

local function is_ours(owner)
  local its_fence = tonumber(string.match(owner, '/(%d+)$'))
  return not its_fence or its_fence <= last_fence
end

-- Void a holder by giving its record a new fence. If Redis stops the script after that, the holder's lease expires
-- and its task is reclaimed.
local function void(owner, id)
  local record = read_record(id)
  if id .. '/' .. (record.gen or '') .. '/' .. (record.fence or '') ~= owner then
    return
  elseif record.stream == 'hold' then
    records.drop({id})
  elseif record.state == 'running' then
    fence = fence + 1
    redis.call('SET', P .. 'fence', digits(fence))
    change(id, {fence = fence})
    redis.call('SREM', P .. 'accused:' .. (record.owner or ''), id)  -- its worker may crash while it runs others
    record.id = id
    voided[#voided + 1] = record
  end
end

-- Requeue the voided tasks after the waiting tasks were woken, because the first task that a worker reads takes the
-- lock. While holders remain to be voided, no waiting task can be woken, so delay the voided tasks until after the
-- last call.
local function run_again()
  local due = more == 1 and now + LATER or now
  for _, record in ipairs(voided) do
    end_of_wait(record.id, record)
    requeue(record.id, due > now and 'delayed' or 'queued', record.stream, tonumber(record.gen), due)  -- fault: robbed-not-requeued
  end
end

-- Drop the pointers of the voided attempts, so that they do not count as running.
local function drop_pointers()
  for _, record in ipairs(voided) do
    local key, entry = pointer_of(record)
    if key then
      drop(P .. key, entry)
    end
  end
end

-- Add the members of a set that this call may take, as rows of member and score, until the batch is full.
local function add_ours(found, set, owner_of)
  local start, members = 0, nil
  repeat
    members = redis.call('ZRANGE', set, start, start + PAGE - 1, 'WITHSCORES')
    for i = 1, #members, 2 do
      if is_ours(owner_of(members[i])) then
        if #found == BATCH then
          more = 1
          return
        end
        found[#found + 1] = {members[i], tonumber(members[i + 1])}
      end
    end
    start = start + PAGE
  until #members < 2 * PAGE
end

-- The holders that lose the lock in this call, as rows of owner and expiry (µs).
local function our_holders()
  local found = {}
  local owner, expiry = nil, nil
  if lock.exclusive then
    owner, expiry = holder(lock.key)
  end
  if owner and is_ours(owner) then
    found[1] = {owner, expiry}
  end
  if lock.leases then
    prune(lock.leases)
    add_ours(found, lock.leases, tostring)
  end
  return found
end

local function break_structural()
  for _, item in ipairs(our_holders()) do
    local owner = item[1]
    rows[#rows + 1] = holder_row(owner, item[2], lock)
    void(owner, id_of(owner))
    release_lock(lock, owner, true)
    if lock.other then
      release_lock(new_lock(lock.other, name, 0, ''), owner, true)
    end
  end
end

-- Remove the slot from the record of its holder. Otherwise the next renewal would miss the slot and end the
-- attempt.
local function forget_slot(id)
  local record = read_record(id)
  if not record.held then
    return
  end
  local of, marks = record.stream ~= 'hold' and record or nil, record.held
  for i, asked in ipairs(parse_locks(record.locks or '', 0, of)) do
    local mark = string.sub(marks, i, i)
    if asked.counted and (mark == 'x' or mark == 'v') and counter_of(asked, mark) == name then
      marks = string.sub(marks, 1, i - 1) .. '-' .. string.sub(marks, i + 1)
    end
  end
  change(id, {held = marks})
end

local function empty_slots()
  for _, item in ipairs(our_holders()) do
    rows[#rows + 1] = holder_row(item[1], item[2], lock)
    rows[#rows][7] = 0
    forget_slot(id_of(item[1]))
    dropped = dropped + (release_lock(lock, item[1], true) and 1 or 0)
  end
end

local function empty_grants()
  local grants = {}
  add_ours(grants, lock.key, function(member) return (string.match(member, '^(.*)|%d+$')) end)
  for _, item in ipairs(grants) do
    redis.call('ZREM', lock.key, item[1])
    dropped = dropped + items_of({item[1]})
  end
  redis.call('DEL', P .. 'sum:' .. name)  -- the next check sums up anew
end

if not lock.limiter then
  break_structural()
elseif lock.windowed then
  empty_grants()
else
  empty_slots()
end
if dropped > 0 or #rows > 0 then
  local ids = {}
  for i = 1, math.min(#rows, 20) do
    ids[i] = rows[i][1]
  end
  log_event('lock-released', who, name .. (lock.limiter and ' emptied of ' .. dropped or '')
    .. (#ids > 0 and ', was held by ' .. table.concat(ids, ' ') or '')
    .. (#rows > #ids and ' and ' .. #rows - #ids .. ' more' or ''))
  give_back({name})
  offer_all()
end
run_again()
drop_pointers()
return {dropped, rows, redis.call('ZRANGEBYSCORE', P .. 'queue:' .. name, '-inf', '(0',
  'LIMIT', 0, 20), more}
