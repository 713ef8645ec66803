-- lib/waiting: needs base, wake, record, limits, locks, fitting, queues, refusal. Parks tasks that a lock refuses,
-- and wakes waiting tasks when a lock is released.

local offers_left = 32  -- later offers wait for a promotion, so that one release cannot block Redis  -- fault: release-budget
local tick_offers = nil  -- how many offers a promotion has left for queues
local woken_sizes = {}  -- of the tasks that this script woke

-- The places of a refused task. An aged task that is next for a lock keeps its places at the limiters too:
-- otherwise a task that needs a busy lock and a busy limiter would never get both. Only the next one does, so
-- that it keeps at most one slot idle. While it waits for items of a window, which may take long, it keeps
-- places at windows only.
local function places_after(me, refusal)
  local marks = {}
  local everywhere = me.aged and refusal.is_next  -- fault: aged-limiter-places
  for i, lock in ipairs(me.locks) do
    local stands = lock == refusal.lock or not lock.limiter and not refusal.lock.limiter
    if lock.limiter and everywhere and not stands then
      resolve_limit(lock)
      stands = lock.limit and (lock.windowed or not refusal.lock.windowed)
    end
    marks[i] = stands and (lock.mark or 'x') or '-'
  end
  -- Cut the marks at the end: the limiters of its class stand there, and are not always read.
  return (string.gsub(table.concat(marks), '%-+$', ''))
end

-- Put a refused task into its queues, and take it out of those where it no longer waits. It has a new rank if
-- it was woken or has aged.
local function enter_queues(me, refusal, is_new_rank)
  local places = places_after(me, refusal)
  -- Watch first: if Redis stopped the script in between, no script would check the queue.
  watch(refusal.lock.counter, refusal.look)  -- fault: refusal-unwatched
  if places ~= me.places then
    leave_queues(me)  -- fault: mover-keeps-places
  end
  if places ~= me.places or is_new_rank then
    me.places = places
    stand(me, me.rank)
  end
end

-- Whether a task stands in the queue of its pause.
local function is_at_pause(me)
  local last = me.locks[#me.locks]
  return last ~= nil and last.pause == true and place_of(me, #me.locks) ~= nil
end

-- Restart the aging of a task that enters or leaves the queue of a pause. If the pause counted, all tasks that
-- it held up would be aged when it ends. Returns whether it did so.
local function age_by_pause(me, refusal)
  local is_paused = refusal ~= nil and refusal.lock.pause == true
  if is_at_pause(me) == is_paused then
    return false
  end
  me.aged, me.since, me.rank = false, now, rank_of(me.ticket, me.stream, false)
  return true
end

-- When a task ages; never, if it has aged already.
local function aging_time(me, waits)
  return me.aged and math.huge or me.since + waits.aging
end

-- When to check one waiting task by itself: later with each refusal in a row, and when it ages.
local function next_look(me, waits)
  local LOOK_GRID = 500000  -- µs
  local pause = math.min(waits.longest, waits.first * 2 ^ math.min(me.refusals - 1, 20))
  -- Random, so that tasks that were refused together are not checked together; rounded to a grid, so that one
  -- script checks many. The time of aging is exact, and may have passed: see is_of_age.
  local at = math.ceil((now + pause * (0.5 + math.random())) / LOOK_GRID) * LOOK_GRID
  return is_at_pause(me) and at or math.min(at, aging_time(me, waits))
end

-- Park a task that a lock refused. It holds no slot, has used no attempt, and keeps its ticket.
local function park(me, refusal, waits)
  me.refusals = me.refusals + 1
  age_by_pause(me, refusal)
  enter_queues(me, refusal, true)  -- fault: refused-keeps-rank
  change(me.id, {state = 'waiting', ticket = me.ticket, places = me.places, aged = me.aged and 1, since = me.since,
    refusals = me.refusals, blocker = string.sub(refusal.lock.counter, 1, 60)})
  redis.call('ZADD', P .. 'tasks:delayed', digits(next_look(me, waits)), me.id)
end

-- One mark for each lock of a task: where it is counted, or '-' for a limiter that is off.
local function held_marks(me)
  local marks = {}
  for i, lock in ipairs(me.locks) do
    marks[i] = (not lock.limiter or lock.limit) and (lock.mark or 'x') or '-'
  end
  return table.concat(marks)
end

-- Take all locks of a task that nothing refuses. Returns the marks for held_locks(), '' without limiters.
local function take_locks(me, owner)
  local is_limited = false
  for _, lock in ipairs(me.locks) do
    if not lock.limiter or lock.limit then
      is_limited = is_limited or lock.limiter
      write_lock(lock, owner)
      local lasts = lock.contended and (lock.windowed and lock.window or lock.ttl) * 1000
      if lasts and lasts < SLOW_LOOK then  -- otherwise the waiting tasks have set a watch  -- fault: grant-unwatched
        watch(lock.counter, now + lasts)
      end
    end
  end
  return is_limited and held_marks(me) or ''
end

-- Take an admitted task out of its queues. Write NOT_WAITING into its record, too.
local NOT_WAITING = {places = '', aged = '', since = '', refusals = '', blocker = '', reserved = ''}
local function leave_as_admitted(me)
  each_place(me, function(queue, member)
    redis.call('ZREM', queue, member)  -- fault: admitted-keeps-places
  end)
  redis.call('ZREM', P .. 'tasks:delayed', me.id)
end

local wake_waiter
do
  local RESERVATION = 5000000  -- µs

  -- Put a waiting task into a stream. It keeps its places if a worker is there to fetch it.
  local function wake_task(me, gen)
    local size = size_of(me.stream)
    local is_ahead = me.aged and not me.suspect
    me.pointer = enqueue(me.suspect and 'suspects' or 'woken', me.id,
      is_ahead and PRIORITIES[1] .. ':' .. size or me.stream, gen)
    woken_sizes[size] = true
    local is_coming = me.unfit and wake_other(size, me.name or '', me.unfit)
    if not is_coming and not wake(size, 1) and not is_served(size) then
      leave_queues(me)
    end
  end

  -- Wake the program that waits for a hold.
  local function wake_hold(me)
    local list = P .. 'wake:' .. (me.client or '')
    redis.call('RPUSH', list, me.id)
    redis.call('PEXPIRE', list, 10000)
  end

  function wake_waiter(me)
    local gen = digits(tonumber(me.gen) + 1)  -- fault: woken-keeps-generation
    local has_waited = me.places ~= ''  -- otherwise a worker handed it back, and it waited for no lock
    local wake_it = me.stream == 'hold' and wake_hold or wake_task
    wake_it(me, gen)
    leave_handed(me.id, me)
    local ends = has_waited and digits(now + RESERVATION) or ''
    change(me.id, {state = 'queued', gen = gen, places = me.places, pointer = me.pointer or '', aged = me.aged and 1,
      since = me.since, reserved = ends})
    if me.places ~= '' then
      stand(me, me.rank - WOKEN)  -- fault: woken-keeps-rank
      -- LT keeps an earlier check, which may be the one at which the task ages.
      redis.call('ZADD', P .. 'tasks:delayed', 'LT', ends, me.id)  -- fault: wake-forgets-aging
    elseif me.aged or not has_waited then
      redis.call('ZREM', P .. 'tasks:delayed', me.id)
    end
  end
end

-- Wake a waiting task if nothing refuses it; otherwise update its places. Returns the refusal.
local function offer(me, is_new_rank)
  local refusal = refusal_of(me)
  local is_anew = age_by_pause(me, refusal)
  if not refusal or refusal.impossible then  -- the fetch ends a task whose locks can never be granted
    wake_waiter(me)
    return nil
  end
  local before = me.places
  enter_queues(me, refusal, is_new_rank)
  if me.places ~= before then
    change(me.id, {places = me.places, blocker = string.sub(refusal.lock.counter, 1, 60)},
      is_anew and {aged = '', since = now} or nil)
  end
  return refusal
end

-- Take a task that cannot be checked out of its queues, so that it does not block the tasks behind. It is tried again in
-- a minute, and its status shows why.
local function put_aside(id, problem)
  local fine, me = pcall(load_waiter, id)
  if fine and me then
    leave_queues(me)
  end
  return pcall(set_aside, id, problem)
end

-- A program that waits for a hold asks again within this time (µs).
local HOLD_ASKS = 5000000
-- A hold has the highest priority from the beginning. Once aged it also keeps its places at limiters.
local HOLD_WAITS = {first = HOLD_ASKS, longest = HOLD_ASKS, aging = HOLD_ASKS}

-- Stop waiting for a hold.
local function forget_hold(me)
  leave_queues(me)
  redis.call('ZREM', P .. 'tasks:delayed', me.id)
  records.drop({me.id})
end

local offer_all
do
  -- The lock of this name at which a task stands, or nil.
  local function standing_at(me, name)
    for i, lock in ipairs(me.locks) do
      local mark = place_of(me, i)
      if mark and (lock.limiter and counter_of(lock, mark) or lock.name) == name then
        return lock
      end
    end
    return nil
  end

  -- Remove a task from a queue in which it does not wait.
  local function strike_out(name, member, tenant)
    if tenant then
      lines.leave(name, {tenant = tenant, stream = 'hold'}, member)
    end
    redis.call('ZREM', P .. 'queue:' .. name, member)
    redis.call('ZREM', P .. 'writers:' .. name, member)
  end

  -- Offer a lock to a task in its queue. Returns whether the task was woken, whether the tasks behind it cannot
  -- run either, and whether it stays in the queue. tenant: whose turn it is; is_first: it is the first to be offered it.
  local function offer_place(name, member, tenant, is_first)
    local me = load_waiter(string.match(member, '^%S*'))
    local lock = me and me.state == 'waiting' and standing_at(me, name)
    if not lock then  -- its record is gone, or says that it no longer waits here
      strike_out(name, member, tenant)
      return false, false, false
    end
    me.next_at = is_first and name
    local refusal = offer(me)
    if not refusal then
      return true, lock.exclusive, false  -- fault: release-wakes-one
    end
    local stays = standing_at(me, name) ~= nil
    return false, refusal.lock.counter == name or lock.exclusive and stays, stays  -- fault: refused-stops-others
  end

  -- The next task in a queue, and its tenant if tenants take turns there. passed: those that stay although they were
  -- offered the lock; of: the number of each tenant.
  local function next_in(name, passed)
    if lines then
      return lines.next_of(name, passed)
    end
    return redis.call('ZRANGEBYSCORE', P .. 'queue:' .. name, 0, '+inf', 'LIMIT', passed.all, 1)[1]
  end

  -- Offer a lock to its queue: to the first task if it is exclusive, else to as many as can run.
  local function offer_queue(name)
    local passed, is_useful = {all = 0, of = {}}, false
    local had_all = offers_left == tick_offers  -- fault: budget-rest
    while offers_left > 0 do
      local member, tenant = next_in(name, passed)
      if not member then
        return
      end
      offers_left = offers_left - 1
      local fine, is_woken, is_over, stays = pcall(offer_place, name, member, tenant, tenant and passed.all == 0)
      if not fine then
        strike_out(name, member, tenant)
        put_aside(string.match(member, '^%S*'), is_woken)
      elseif is_over then
        return
      elseif stays then  -- another lock refuses it: the tasks behind it may run
        passed.all = passed.all + 1
        passed.of[tenant or ''] = (passed.of[tenant or ''] or 0) + 1
      end
      is_useful = is_useful or fine and is_woken
    end
    -- Continue at the next promotion. If a whole promotion woke none of them, other locks refuse them all:
    -- check the queue less often.
    watch(name, had_all and not is_useful and now + SLOW_LOOK or now)  -- fault: budget-drops-queue
  end

  local offered = {0, 0}
  local function next_offer()
    for i, names in ipairs(to_offer) do
      if offered[i] < #names then
        offered[i] = offered[i] + 1
        return names[offered[i]]
      end
    end
  end

  -- Offer these locks, and all that this script released before. count: how many deliveries it ended.
  function offer_all(names, count)
    give_back(names or {})
    offers_left = math.max(offers_left, count or 0)
    for name in next_offer do
      if offers_left <= 0 then
        watch(name, now)  -- fault: budget-drops-queues
      else
        offer_queue(name)
      end
    end
  end
end
