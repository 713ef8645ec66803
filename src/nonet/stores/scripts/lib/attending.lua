-- lib/attending: needs base, wake, record, limits, locks, pauses, queues, refusal, waiting, index, group, finish, cancel, ending, expiry. What a promotion does beside moving delayed tasks.

-- Looks at waiters by themselves and in queues, 30 to 80 µs each, share one budget, of which some is
-- kept for the queues.
offers_left = 80
local reserved = offers_left / 4
math.randomseed(tonumber(clock[2]))

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
    redis.call('ZADD', P .. 'tasks:delayed', digits(next_look(me, waits)), me.id)
  end
end

-- queued, with places that were kept for it: nobody took it in time.
local function lapse(me)
  leave_queues(me)
  redis.call('HSET', P .. 't:' .. me.id, 'places', '')
  redis.call('ZREM', P .. 'tasks:delayed', me.id)
end

local function look_at_hold(me)
  if me.state == 'held' then
    redis.call('ZREM', P .. 'tasks:delayed', me.id)
  elseif me.state == 'queued' or now - me.seen > 2 * HOLD_ASKS then
    forget_hold(me)  -- whoever waited for it is gone
  else
    look_at(me, HOLD_WAITS)
  end
end

local function act_on(id, waits)
  local me = read_waiter(id)
  if not me and redis.call('EXISTS', P .. 't:' .. id) == 1 then
    error('the record has no ticket')
  end
  local state = me and me.state
  if state == 'waiting' or state == 'queued' or state == 'held' then
    offers_left = offers_left - 1
    read_locks(me)
    local look = me.stream == 'hold' and look_at_hold or state == 'queued' and lapse or look_at
    look(me, waits)
  else
    redis.call('ZREM', P .. 'tasks:delayed', id)
  end
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

-- waiters, late, contended: what is due of the sets tasks:delayed, deadlines and watch. keep_away(key, id,
-- problem) puts off what is broken: it must not hold up the others. Returns how many waiters were seen to.
local function attend(waiters, late, contended, waits, ttl, dedup, keep_away)
  local seen = 0
  for _, id in ipairs(waiters) do
    if offers_left <= reserved then
      break
    end
    local fine, problem = pcall(act_on, id, waits)
    if not fine then
      keep_away(P .. 'tasks:delayed', id, problem)
    end
    seen = seen + (fine and 1 or 0)
  end
  -- Also what is paused: who submitted it does not want it any more.
  for _, id in ipairs(late) do
    local fine, problem = pcall(end_early, id, ttl, dedup)
    if not fine then
      keep_away(P .. 'deadlines', id, problem)
    end
  end
  -- What is contended, and was not given back in time.
  for _, name in ipairs(contended) do
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
  return seen
end
