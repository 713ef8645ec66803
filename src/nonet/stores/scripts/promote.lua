#!lua flags=allow-oom
-- promote: do what is due. Delayed tasks go into their streams; those that were handed on only where a
-- worker may come for them there; parked ones are looked at, and
-- counted as realtime when they have waited for long; the places of woken ones that nobody took
-- are given up; locks whose holder died are offered to those who wait; what nobody has started in time
-- expires.
-- KEYS  prefix
-- ARGV  leader's term, or '' for a worker that helps out; batch; µs without a promotion after
--       by a leader after which workers help; first and longest pause µs before a parked task is
--       looked at by itself; lock aging µs; µs that it cannot be later than or ''; result ttl ms,
--       dedup ttl ms
-- returns {moved, µs until the next is due (0 more now, -1 none), allowed 1|0}
-- @include base wake record submitting handing
-- @defer limits locks pauses queues refusal waiting index group finish cancel ending expiry attending attend
-- @defer rescue index group finish ending damage condemning end_if_damaged
local term, batch = ARGV[1], tonumber(ARGV[2])
-- Somebody set the clock, and the leader has not put it right yet.
if now > (tonumber(ARGV[7]) or now) then
  return {0, -1, 1}
end
if term ~= '' then
  local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
  if leader[1] ~= term or tonumber(leader[2]) <= now then
    return {0, -1, 0}
  end
  redis.call('SET', P .. 'promoted', digits(now))
else
  -- A time ahead of ours: the clock was set back since, and tells nothing.
  local ago = now - (tonumber(redis.call('GET', P .. 'promoted') or '') or 0)
  if ago >= 0 and ago < tonumber(ARGV[3]) then
    return {0, -1, 0}
  end
end

local due_key = P .. 'tasks:delayed'
local woken, moved, waiters, gone, staying = {}, 0, {}, {}, {}

local ttl, dedup = tonumber(ARGV[8]), tonumber(ARGV[9])

local function keep_away(key, id, problem)
  if end_if_damaged(id, ttl, dedup) then
    return
  end
  redis.call('HSET', P .. 't:' .. id, 'blocker', string.sub(reason_of(problem), 1, 60))
  redis.call('ZADD', key, digits(now + 60000000), id)
end

-- Of a member of one of those sets that has no record.
local function forget(key, id)
  end_if_damaged(id, ttl, dedup)
  redis.call('ZREM', key, id)
end

-- delayed and dying: its time has come. Nothing else is read of most tasks; the places in the set are
-- left together, after everything was written.
local function move(id, record)
  local state, stream, gen = record.state, record.stream, digits(tonumber(record.gen) + 1)
  -- Write first, remove last.
  local kind = state == 'dying' and 'burials' or record.suspect and 'suspects' or 'tasks'
  local pointer = enqueue(kind, id, stream, gen)
  redis.call('HSET', P .. 't:' .. id, 'state', state == 'dying' and state or 'queued',
    'gen', gen, 'pointer', pointer)
  local size = size_of(stream)
  if not record.unfit or not wake_other(size, record.name or '', record.unfit) then
    woken[size] = (woken[size] or 0) + 1
  end
  gone[#gone + 1] = id
end

-- A task that was handed on is due. Returns whether it stays where workers find it by its class.
local function rests_on(id, record)
  if record.places or not stays_handed(record) then
    leave_handed(id, record)
    return false
  end
  keep_handed(id, record)
  wake_other(size_of(record.stream), record.name or '', record.unfit)
  staying[#staying + 1], staying[#staying + 2] = digits(now + LONGEST), id
  return true
end

local FIELDS = {'state', 'gen', 'stream', 'ticket', 'v', 'unfit', 'suspect', 'name', 'places'}

local function act(id)
  local record = read_fields(P .. 't:' .. id, FIELDS)
  local state, newer = record.state, record.v and newer_format(record)
  if newer and state == 'queued' then  -- woken by newer code, which sees to its places
    keep_away(due_key, id, newer)
  elseif record.unfit and record.stream and (state == 'waiting' or state == 'dying' and newer)
    and rests_on(id, record) then
    return
  elseif (state == 'delayed' or state == 'dying' or newer and state == 'waiting') and record.ticket then
    move(id, record)
    moved = moved + 1
  else
    waiters[#waiters + 1] = id
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', due_key, '-inf', digits(now), 'LIMIT', 0, batch)) do
  -- One broken record or stream must not hold up the others.
  local fine, problem = pcall(act, id)
  if not fine then
    keep_away(due_key, id, problem)
  end
end
if #gone > 0 then
  redis.call('ZREM', due_key, unpack(gone))
end
if #staying > 0 then
  redis.call('ZADD', due_key, unpack(staying))
end
for size, count in pairs(woken) do
  wake(size, count)
end

-- All else sets up its many functions only if there is something for it.
local late = redis.call('ZRANGEBYSCORE', P .. 'deadlines', '-inf', digits(now), 'LIMIT', 0, batch)
local contended = redis.call('ZRANGEBYSCORE', P .. 'watch', '-inf', digits(now), 'LIMIT', 0, batch)
if #waiters + #late + #contended > 0 then
  local waits = {first = tonumber(ARGV[4]), longest = tonumber(ARGV[5]), aging = tonumber(ARGV[6])}
  moved = moved + attend(waiters, late, contended, waits, ttl, dedup, keep_away, forget)
end

local next_due = -1
for _, key in ipairs({due_key, P .. 'watch', P .. 'deadlines'}) do
  local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  local pause = head[2] and math.max(0, tonumber(head[2]) - now)
  if pause and (next_due < 0 or pause < next_due) then
    next_due = pause
  end
end
return {moved, next_due, 1}
