#!lua flags=allow-oom
-- break_lock: take a lock from those who hold it, on the word of an operator, and offer it to those
-- who wait. Somebody else may start at once, so whoever held a mutex or a side of a reader/writer
-- lock is voided: its renewal says that it is lost, its settle is STALE, and its task is queued
-- again without using an attempt or counting a death. Its other locks stay until they expire: the
-- old attempt may still be at work. A limiter is only emptied: a slot is not safety, and whoever
-- runs goes on, uncounted until it renews under a configured limit.
-- KEYS  prefix
-- ARGV  name, last fence (who was admitted later is left alone, so that a repeat voids nobody
--       who came after), who asks (user@host pid)
-- returns {items or slots that were dropped, holders, ids that were woken}; a holder is a row of
--       lib/sight, whose last field says whether it was voided
-- @include base wake record rescue limits locks queues refusal waiting sight events
local name, last_fence, who = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local lock = lock_named(name)
local fence = math.max(tonumber(redis.call('GET', P .. 'fence') or '0'), now)
local dropped, rows, voided = 0, {}, {}

local function is_ours(owner)
  local its_fence = tonumber(string.match(owner, '/(%d+)$'))
  return not its_fence or its_fence <= last_fence
end

-- The old worker must not be handed what it thinks it runs: it no longer owns the pending entry.
local function drop_pointer(worker, stream, id, gen)
  local aged = 'woken:realtime:' .. size_of(stream)
  for _, name in ipairs({'tasks:' .. stream, 'woken:' .. stream, aged}) do
    local pending = redis.pcall('XPENDING', P .. name, 'workers', '-', '+', 10000, worker)
    for _, item in ipairs(pending.err and {} or pending) do
      local found = redis.call('XRANGE', P .. name, item[1], item[1])[1]
      if found and found[2][2] == id and found[2][4] == gen then
        return drop(P .. name, item[1])
      end
    end
  end
end

local FIELDS = {'gen', 'fence', 'state', 'stream', 'owner'}

-- From here on the holder is nobody. A new fence voids it; if this script is cut, its lease runs
-- out, and the task is reclaimed.
local function void(owner, id)
  local record = read_fields(P .. 't:' .. id, FIELDS)
  if id .. '/' .. (record.gen or '') .. '/' .. (record.fence or '') ~= owner then
    return
  elseif record.stream == 'hold' then
    redis.call('DEL', P .. 't:' .. id, P .. 'l:' .. id)
  elseif record.state == 'running' then
    fence = fence + 1
    redis.call('SET', P .. 'fence', digits(fence))
    redis.call('HSET', P .. 't:' .. id, 'fence', digits(fence))
    record.id = id
    voided[#voided + 1] = record
  end
end

-- After those who waited were woken: who is read first takes the lock.
local function run_again(record)
  requeue(record.id, 'queued', record.stream, tonumber(record.gen), now)
  drop_pointer(record.owner or '', record.stream, record.id, record.gen)
end

local function break_structural()
  for _, item in ipairs(owners_of(lock, 1000000)) do
    local owner = item[1]
    if is_ours(owner) then
      rows[#rows + 1] = holder_row(owner, item[2])
      void(owner, id_of(owner))
      release_lock(lock, owner, true)
      if lock.readers then
        release_lock(new_lock('R', name, 0, ''), owner, true)
      end
    end
  end
end

-- Its holder neither renews nor gives back the slot any more; else its loss would end the attempt.
local function forget_slot(id)
  local record = read_fields(P .. 't:' .. id, {'held', 'name', 'stream'})
  if not record.held then
    return
  end
  local task, marks = record.stream ~= 'hold' and record.name or '', record.held
  for i, asked in ipairs(parse_locks(redis.call('GET', P .. 'l:' .. id) or '', 0, task)) do
    local mark = string.sub(marks, i, i)
    if asked.kind == 'C' and (mark == 'x' or mark == 'v') and counter_of(asked, mark) == name then
      marks = string.sub(marks, 1, i - 1) .. '-' .. string.sub(marks, i + 1)
    end
  end
  redis.call('HSET', P .. 't:' .. id, 'held', marks)
end

local function empty_slots()
  for _, item in ipairs(owners_of(lock, 1000000)) do
    if is_ours(item[1]) then
      rows[#rows + 1] = holder_row(item[1], item[2])
      rows[#rows][7] = 0
      forget_slot(id_of(item[1]))
      dropped = dropped + (release_lock(lock, item[1], true) and 1 or 0)
    end
  end
end

local function empty_grants()
  for _, member in ipairs(redis.call('ZRANGE', lock.key, 0, -1)) do
    if is_ours((string.match(member, '^(.*)|%d+$'))) then
      dropped = dropped + (redis.call('ZREM', lock.key, member) == 1 and items_of({member}) or 0)
    end
  end
  redis.call('DEL', P .. 'sum:' .. name)  -- counted anew by the next check
end

if lock.kind == 'C' then
  empty_slots()
elseif lock.kind == 'L' then
  empty_grants()
else
  break_structural()
end
if dropped > 0 or #rows > 0 then
  local ids = {}
  for i = 1, math.min(#rows, 20) do
    ids[i] = rows[i][1]
  end
  log_event('lock-released', who, name .. (lock.limits and ' emptied of ' .. dropped or '')
    .. (#ids > 0 and ', was held by ' .. table.concat(ids, ' ') or ''))
  give_back({name})
  offer_all()
end
for _, record in ipairs(voided) do
  run_again(record)
end
return {dropped, rows, redis.call('ZRANGEBYSCORE', P .. 'queue:' .. name, '-inf', '(0',
  'LIMIT', 0, 20)}
