#!lua flags=allow-oom
-- promote: do what is due. Queue delayed tasks; tasks that were handed on only if workers cannot find them by
-- class. Check parked tasks, and count them as realtime when they have waited long enough. Withdraw unused
-- reservations of woken tasks, offer the locks of dead holders, and expire tasks that did not start in time.
-- Follow the edges of workflows that earlier calls have left.
-- KEYS  prefix
-- ARGV  keeping, leader's term, or '' for a worker that helps out; batch; µs without a promotion by a leader after
--       which workers help; first and longest pause µs before a parked task is checked without being
--       woken; lock aging µs; latest possible time µs or ''
-- returns {moved, µs until the next is due (0 more now, -1 none), allowed 1|0}
-- @include base leading progress wake record counting submitting fitting handing
-- @defer limits mutexes locks pauses queues refusal waiting index group keeping finish cancel ending workflow expiry attending attend
-- @defer index group keeping finish ending workflow follow_rest
local term, batch, help_after, latest = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[8]
local waits = {first = tonumber(ARGV[5]), longest = tonumber(ARGV[6]), aging = tonumber(ARGV[7])}
if is_clock_ahead(latest) then
  return {0, -1, 1}
end
if term ~= '' then
  if not leads(term) then  -- fault: deposed-promotes
    return {0, -1, 0}
  end
  redis.call('SET', P .. 'promoted', digits(now))
elseif redis.call('EXISTS', P .. 'tasks:delayed', P .. 'watch', P .. 'deadlines', P .. 'edges') == 0 then
  return {0, -1, 1}
else
  -- Ignore a time in the future: the clock was set back since.
  local ago = now - (tonumber(redis.call('GET', P .. 'promoted') or '') or 0)
  if ago >= 0 and ago < help_after then  -- fault: worker-promotes
    return {0, -1, 0}
  end
end

local due_key = P .. 'tasks:delayed'
local woken, moved, waiters, gone, staying = {}, 0, {}, {}, {}

local function postpone(key, id, problem)
  redis.call('ZADD', key, digits(now + 60000000), id)
  pcall(change, id, {blocker = string.sub(reason_of(problem), 1, 60)})
end

-- Handle a member of one of those sets that has no record.
local function forget(key, id)
  note_unknown(id)
  redis.call('ZREM', key, id)
end

-- Queue a delayed or dying task whose time has come. Its place in the set is removed later, together with the
-- others, after everything was written.
local function move(id, record)
  local state, stream, gen = record.state, record.stream, digits(tonumber(record.gen) + 1)
  local kind = state == 'dying' and 'burials' or record.suspect and 'suspects' or 'tasks'
  local pointer = enqueue(kind, id, stream, gen)  -- fault: removes-first
  change(id, {state = state == 'dying' and state or 'queued', gen = gen, pointer = pointer})
  local size = size_of(stream)
  if not record.unfit or not wake_other(size, record.name or '', record.unfit) then
    woken[size] = (woken[size] or 0) + 1
  end
  gone[#gone + 1] = id
end

-- A task that was handed on is due. Returns whether it stays where workers find it by its class.
local function stays(id, record)
  if record.places or not stays_handed(record) then
    leave_handed(id, record)
    return false
  end
  keep_handed(id, record)
  wake_other(size_of(record.stream), record.name or '', record.unfit)
  staying[#staying + 1], staying[#staying + 2] = digits(now + LONGEST), id
  return true
end

local function act(id)
  local record = read_record(id)
  local state, newer = record.state, record.v and newer_format(record)
  if newer and state == 'queued' then  -- woken by newer code, which manages its reservations
    postpone(due_key, id, newer)
  elseif record.unfit and record.stream and (state == 'waiting' or state == 'dying' and newer)
    and stays(id, record) then
    return
  elseif (state == 'delayed' or state == 'dying' or newer and state == 'waiting') and record.ticket then
    move(id, record)
    moved = moved + 1
  else
    waiters[#waiters + 1] = id
  end
end

local due = redis.call('ZRANGEBYSCORE', due_key, '-inf', digits(now), 'LIMIT', 0, batch)  -- fault: promoted-early
records.load(due)
for _, id in ipairs(due) do
  -- A task that cannot be moved must not stop the others.
  local fine, problem = pcall(act, id)
  if not fine then
    postpone(due_key, id, problem)
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

-- attend() creates many functions: call it only if there is something for it.
local late = redis.call('ZRANGEBYSCORE', P .. 'deadlines', '-inf', digits(now), 'LIMIT', 0, batch)
local contended = redis.call('ZRANGEBYSCORE', P .. 'watch', '-inf', digits(now), 'LIMIT', 0, batch)
if #waiters + #late + #contended > 0 then
  moved = moved + attend(waiters, late, contended, waits, postpone, forget)
end

local is_more = redis.call('EXISTS', P .. 'edges') == 1 and follow_rest()
return {moved, is_more and 0 or next_due(), 1}
