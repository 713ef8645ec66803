#!lua flags=allow-oom
-- promote: do what is due. Delayed tasks go into their streams; parked ones are looked at, and
-- counted as realtime when they have waited for long; the places of woken ones that nobody took
-- are given up; locks whose holder died are offered to those who wait.
-- KEYS  prefix
-- ARGV  leader's term, or '' for a worker that helps out; batch; µs without a promotion after
--       by a leader after which workers help; first and longest pause µs before a parked task is
--       looked at by itself; lock aging µs; µs that it cannot be later than or ''
-- returns {moved, µs until the next is due (0 more now, -1 none), allowed 1|0}
-- @include base wake record limits locks pauses queues refusal waiting
local term, batch = ARGV[1], tonumber(ARGV[2])
local waits = {first = tonumber(ARGV[4]), longest = tonumber(ARGV[5]), aging = tonumber(ARGV[6])}
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
local woken, moved = {}, 0
-- Looks at waiters by themselves and in queues, 30 to 80 µs each, share one budget, of which some is
-- kept for the queues.
offers_left = 80
local reserved = offers_left / 4
math.randomseed(tonumber(clock[2]))

-- delayed and dying: its time has come.
local function move(me)
  local gen = digits(tonumber(me.gen) + 1)
  -- Write first, remove last.
  local pointer = enqueue('tasks', me.id, me.stream, gen)
  redis.call('HSET', P .. 't:' .. me.id, 'state', me.state == 'dying' and me.state or 'queued',
    'gen', gen, 'pointer', pointer)
  local size = size_of(me.stream)
  woken[size] = (woken[size] or 0) + 1
  redis.call('ZREM', due_key, me.id)
end

-- waiting: the safety net below the wake-ups, and aging. The rank of who comes of age changes.
local function look_at(me, waits)
  local of_age = not me.aged and not is_at_pause(me) and now >= me.since + waits.aging
  if of_age then
    me.aged, me.rank = true, rank_of(me.ticket, me.stream, true)
    redis.call('HSET', P .. 't:' .. me.id, 'aged', 1)
  end
  if offer(me, of_age) then
    me.refusals = me.refusals + 1
    redis.call('HSET', P .. 't:' .. me.id, 'refusals', me.refusals, 'since', digits(me.since))
    redis.call('ZADD', due_key, digits(next_look(me, waits)), me.id)
  end
end

-- queued, with places that were kept for it: nobody took it in time.
local function lapse(me)
  leave_queues(me)
  redis.call('HSET', P .. 't:' .. me.id, 'places', '')
  redis.call('ZREM', due_key, me.id)
end

local function look_at_hold(me)
  if me.state == 'held' then
    redis.call('ZREM', due_key, me.id)
  elseif me.state == 'queued' or now - me.seen > 2 * HOLD_ASKS then
    forget_hold(me)  -- whoever waited for it is gone
  else
    look_at(me, HOLD_WAITS)
  end
end

local function act(id)
  local me = read_waiter(id)
  if not me and redis.call('EXISTS', P .. 't:' .. id) == 1 then
    error('the record has no ticket')
  end
  local state = me and me.state
  if state == 'delayed' or state == 'dying' then
    move(me)
  elseif state == 'waiting' or state == 'queued' or state == 'held' then
    offers_left = offers_left - 1
    read_locks(me)
    local look = me.stream == 'hold' and look_at_hold or state == 'queued' and lapse or look_at
    look(me, waits)
  else
    redis.call('ZREM', due_key, id)
  end
  moved = moved + 1
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', due_key, '-inf', digits(now), 'LIMIT', 0, batch)) do
  if offers_left <= reserved then
    break
  end
  -- One broken record or stream must not hold up the others.
  local fine, problem = pcall(act, id)
  if not fine then
    redis.pcall('HSET', P .. 't:' .. id, 'blocker', string.sub(reason_of(problem), 1, 60))
    redis.call('ZADD', due_key, digits(now + 60000000), id)
  end
end
for size, count in pairs(woken) do
  wake(size, count)
end

-- Who was woken and is no more must not keep the others away, nor a writer who only readers see.
local function drop_ghosts(name)
  local queue, writers = P .. 'queue:' .. name, P .. 'writers:' .. name
  local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if first[2] and tonumber(first[2]) < 0
    and redis.call('HGET', P .. 't:' .. string.match(first[1], '^%S+'), 'state') ~= 'queued' then
    redis.call('ZREM', queue, first[1])
  end
  local writer = redis.call('ZRANGE', writers, 0, 0)[1]
  if writer and not redis.call('ZSCORE', queue, writer) then
    redis.call('ZREM', writers, writer)
  end
end

-- What is contended, and was not given back in time.
for _, name in ipairs(redis.call('ZRANGEBYSCORE', P .. 'watch', '-inf', digits(now),
  'LIMIT', 0, batch)) do
  if redis.call('EXISTS', P .. 'queue:' .. name) == 1 then
    redis.call('ZADD', P .. 'watch', digits(now + SLOW_LOOK), name)
    watched[name] = nil
    pcall(drop_ghosts, name)
    give_back({name})
  else
    redis.call('ZREM', P .. 'watch', name)
  end
end
tick_offers = offers_left
offer_all()

local next_due = -1
for _, key in ipairs({due_key, P .. 'watch'}) do
  local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  local pause = head[2] and math.max(0, tonumber(head[2]) - now)
  if pause and (next_due < 0 or pause < next_due) then
    next_due = pause
  end
end
return {moved, next_due, 1}
