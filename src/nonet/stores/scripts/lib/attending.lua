-- lib/attending: needs base, wake, record, limits, locks, pauses, queues, refusal, waiting, index, group, finish,
--       cancel, ending, expiry.
-- What a promotion does beside moving delayed tasks: checks waiting tasks, ends late ones, offers contended locks.

-- Checks of single tasks and offers to queues take 30 to 80 µs each. They share one budget, of which a quarter is
-- reserved for the queues.
offers_left = 80  -- fault: tick-budget
local reserved = offers_left / 4
math.randomseed(tonumber(clock[2]))

-- Whether a task ages at a check that was due at `due`. Do not compare with now: at a late check a task would age
-- too early, and pass an older one whose check is still to come.
local function is_of_age(me, due, waits)
  return not is_at_pause(me) and due >= aging_time(me, waits)  -- fault: late-check-ages
end

local function age(me)
  me.aged, me.rank = true, rank_of(me.ticket, me.stream, true)
  change(me.id, {aged = 1})
end

-- Check a waiting task: it may have aged, and a wake-up may have been lost.
local function look_at(me, due, waits)
  local of_age = is_of_age(me, due, waits)
  if of_age then
    age(me)
  end
  if offer(me, of_age) then  -- fault: aged-keeps-rank
    me.refusals = me.refusals + 1
    change(me.id, {refusals = me.refusals, since = me.since})
    redis.call('ZADD', P .. 'tasks:delayed', digits(next_look(me, waits)), me.id)
  end
end

-- Move a woken task that has aged to the stream of the highest priority, like tasks that age in a queue. In the
-- stream of its own priority, younger tasks that age later would pass it.
local function move_forward(me)
  local size, name, entry = size_of(me.stream), pointer_of(me)
  local first = PRIORITIES[1] .. ':' .. size
  if name ~= 'woken:' .. first and me.stream ~= first and not me.suspect then  -- fault: aged-keeps-stream
    local gen = digits(tonumber(me.gen) + 1)
    change(me.id, {gen = gen, pointer = enqueue('woken', me.id, first, gen)})
    if name then  -- else its pointer is in a list, and void now
      redis.call('XDEL', P .. name, entry)
    end
    wake(size, 1)
  end
  stand(me, me.rank - WOKEN)  -- fault: woken-keeps-rank
end

-- The earliest next check of a woken task that this tick has checked. If it is due already, checks that are due
-- later wait for the next tick, because checks are made in the order of their times.
local again = math.huge

-- Check a woken task that no worker has read yet. It ages like a waiting one, even after its reservation has
-- lapsed. (A queued task that was never woken is due only because Redis stopped a script.)
local function look_at_woken(me, due, waits)
  local was_woken, ends = me.reserved ~= nil, me.reserved or 0
  if was_woken and is_of_age(me, due, waits) then  -- fault: woken-never-ages
    age(me)
    move_forward(me)
  elseif me.places ~= '' and now >= ends then
    leave_queues(me)  -- fault: reservation-kept
    change(me.id, {places = ''})
  end
  local next_look = math.min(aging_time(me, waits), me.places ~= '' and ends or math.huge)  -- fault: lapsed-never-ages
  if was_woken and next_look < math.huge then
    again = math.min(again, next_look)
    redis.call('ZADD', P .. 'tasks:delayed', digits(next_look), me.id)
  else
    redis.call('ZREM', P .. 'tasks:delayed', me.id)
  end
end

local function look_at_hold(me, due)
  if me.state == 'held' then
    redis.call('ZREM', P .. 'tasks:delayed', me.id)
  elseif me.state == 'queued' and now < (me.reserved or 0) then
    redis.call('ZADD', P .. 'tasks:delayed', digits(me.reserved), me.id)
  elseif me.state == 'queued' or now - me.seen > 2 * HOLD_ASKS then
    forget_hold(me)  -- the program that asked for it has exited
  else
    look_at(me, due, HOLD_WAITS)
  end
end

local function act_on(id, waits, forget)
  local me = read_waiter(id)
  if not me then
    return forget(P .. 'tasks:delayed', id)
  end
  local state = me.state
  if state == 'waiting' or state == 'queued' or state == 'held' then
    offers_left = offers_left - 1
    read_locks(me)
    local look = me.stream == 'hold' and look_at_hold or state == 'queued' and look_at_woken or look_at
    look(me, tonumber(redis.call('ZSCORE', P .. 'tasks:delayed', id)), waits)
  else
    redis.call('ZREM', P .. 'tasks:delayed', id)
  end
end

-- Remove stale members from a queue, because they would block the others: woken tasks that are no longer queued,
-- and writers that are in writers:LOCK alone.
local function drop_ghosts(name)
  local queue, writers = P .. 'queue:' .. name, P .. 'writers:' .. name
  local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if first[2] and tonumber(first[2]) < 0
    and read_record(string.match(first[1], '^%S*')).state ~= 'queued' then
    redis.call('ZREM', queue, first[1])
  end
  local writer = redis.call('ZRANGE', writers, 0, 0)[1]
  if writer and not redis.call('ZSCORE', queue, writer) then
    redis.call('ZREM', writers, writer)
  end
end

-- waiters, late, contended: the due members of the sets tasks:delayed, deadlines and watch. keep_away(key, id,
-- problem) postpones a task that fails, so that it does not block the others; forget(key, id) removes an id
-- that has no record. Returns how many waiting tasks were checked.
local function attend(waiters, late, contended, waits, keep_away, forget)
  local seen = 0
  for _, id in ipairs(waiters) do
    local is_overtaken = again <= now and again < tonumber(redis.call('ZSCORE', P .. 'tasks:delayed', id) or 0)
    if offers_left <= reserved or is_overtaken then
      break
    end
    local fine, problem = pcall(act_on, id, waits, forget)
    if not fine then
      keep_away(P .. 'tasks:delayed', id, problem)
    end
    seen = seen + (fine and 1 or 0)
  end
  -- Paused tasks expire too: their submitters no longer want them.
  for _, id in ipairs(late) do
    local fine, problem = pcall(end_early, id)
    if not fine then
      keep_away(P .. 'deadlines', id, problem)
    end
  end
  -- Contended locks that were not released in time.
  for _, name in ipairs(contended) do
    if redis.call('EXISTS', P .. 'queue:' .. name) == 1 then
      redis.call('ZADD', P .. 'watch', digits(now + SLOW_LOOK), name)
      watched[name] = nil
      drop_ghosts(name)
      give_back({name})
    else
      redis.call('ZREM', P .. 'watch', name)
    end
  end
  tick_offers = offers_left
  offer_all()
  return seen
end
