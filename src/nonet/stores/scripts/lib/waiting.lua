-- lib/waiting: needs base, wake, record, limits, locks, queues, refusal. Parks what a lock refuses, and
-- wakes those who can run when it is given back.

local RESERVATION = 5000000
local LOOK_GRID = 500000

local offers_left = 32  -- the rest goes to the watch, so that no release holds up Redis
local tick_offers = nil  -- all that a promotion has for queues
local woken_sizes = {}  -- of the tasks that this script woke

-- Where a refused task stands. An aged one that is the next for what others hold keeps its places
-- at the limiters too: else a task that needs a busy lock and a busy limiter would never get both.
-- Only the next, so that what it keeps idle is one place; and for tokens, which may take long to
-- come back, it keeps tokens alone.
local function places_after(me, refusal)
  local marks = {}
  local everywhere = me.aged and refusal.is_next
  for i, lock in ipairs(me.locks) do
    local stands = lock == refusal.lock or not lock.limits and not refusal.lock.limits
    if lock.limits and everywhere and not stands then
      resolve_limit(lock)
      stands = lock.limit and (lock.kind == 'L' or refusal.lock.kind ~= 'L')
    end
    marks[i] = stands and (lock.mark or 'x') or '-'
  end
  -- Without the limiters of its class, which are not always there.
  return (string.gsub(table.concat(marks), '%-+$', ''))
end

-- Let a refused task stand in its queues, and leave those where it no longer waits. Its rank there
-- is new if it was woken or has come of age.
local function enter_queues(me, refusal, is_new_rank)
  local places = places_after(me, refusal)
  -- First: a place that nobody looks at would stay if the script was cut.
  watch(refusal.lock.counter, refusal.look)
  if places ~= me.places then
    leave_queues(me)
  end
  if places ~= me.places or is_new_rank then
    me.places = places
    stand(me, me.rank)
  end
end

-- Whether a task stands where all of its kind wait for a resume.
local function is_at_pause(me)
  local last = #me.locks
  return last > 0 and me.locks[last].kind == 'P' and place_of(me, last) ~= nil
end

-- Time at a pause does not count: who comes to stand there, or leaves, begins to age anew. Else all
-- that a long pause held up would count as realtime when it ends. Returns whether it did so.
local function age_by_pause(me, refusal)
  local is_paused = refusal ~= nil and refusal.lock.kind == 'P'
  if is_at_pause(me) == is_paused then
    return false
  end
  me.aged, me.since, me.rank = false, now, rank_of(me.ticket, me.stream, false)
  return true
end

-- When a task comes of age; never, if it has.
local function aging_time(me, waits)
  return me.aged and math.huge or me.since + waits.aging
end

-- When to look at one waiter by itself: later with each refusal in a row, and when it is of age.
local function next_look(me, waits)
  local pause = math.min(waits.longest, waits.first * 2 ^ math.min(me.refusals - 1, 20))
  -- Spread, so that tasks refused together are not looked at together; but on a grid, so that one
  -- script looks at many. The time of aging is on no grid, and may have passed: see is_of_age.
  local at = math.ceil((now + pause * (0.5 + math.random())) / LOOK_GRID) * LOOK_GRID
  return is_at_pause(me) and at or math.min(at, aging_time(me, waits))
end

-- Park a task that a lock refused: no slot, no attempt used, its ticket kept.
local function park(me, refusal, waits)
  me.refusals = me.refusals + 1
  age_by_pause(me, refusal)
  enter_queues(me, refusal, true)
  redis.call('HSET', P .. 't:' .. me.id, 'state', 'waiting', 'ticket', me.ticket, 'places', me.places,
    'aged', me.aged and 1 or 0, 'since', digits(me.since), 'refusals', me.refusals,
    'blocker', string.sub(refusal.lock.counter, 1, 60))
  redis.call('ZADD', P .. 'tasks:delayed', digits(next_look(me, waits)), me.id)
end

-- The marks of the limiters that hold for a task now; '' if none does.
local function held_marks(me)
  local marks = {}
  for i, lock in ipairs(me.locks) do
    marks[i] = (not lock.limits or lock.limit) and (lock.mark or 'x') or '-'
  end
  return table.concat(marks)
end

-- Take all locks of a task that nothing refuses. Returns the marks for held_locks().
local function take_locks(me, owner)
  local is_limited = false
  for _, lock in ipairs(me.locks) do
    if not lock.limits or lock.limit then
      is_limited = is_limited or lock.limits
      write_lock(lock, owner)
      local lasts = lock.contended and (lock.kind == 'L' and lock.window or lock.ttl) * 1000
      if lasts and lasts < SLOW_LOOK then  -- else those who wait have set a watch
        watch(lock.counter, now + lasts)
      end
    end
  end
  return is_limited and held_marks(me) or ''
end

-- Take an admitted task out of its queues: its locks now keep the others away. Write NOT_WAITING
-- into its record, too.
local NOT_WAITING = {'places', '', 'aged', '', 'since', '', 'refusals', '', 'blocker', '', 'reserved', ''}
local function leave_as_admitted(me)
  each_place(me, function(queue, member)
    redis.call('ZREM', queue, member)
  end)
  redis.call('ZREM', P .. 'tasks:delayed', me.id)
end

-- Send a waiter on its way, into a stream, and keep its places if there is a worker to come for it.
local function wake_task(me, gen)
  local size = size_of(me.stream)
  local is_ahead = me.aged and not me.suspect
  me.pointer = enqueue(me.suspect and 'suspects' or 'woken', me.id,
    is_ahead and 'realtime:' .. size or me.stream, gen)
  woken_sizes[size] = true
  local is_coming = me.unfit and wake_other(size, me.name or '', me.unfit)
  if not is_coming and not wake(size, 1) and not is_served(size) then
    leave_queues(me)
  end
end

-- Tell the program that waits for a hold.
local function wake_hold(me)
  local list = P .. 'wake:' .. (redis.call('HGET', P .. 't:' .. me.id, 'client') or '')
  redis.call('RPUSH', list, me.id)
  redis.call('PEXPIRE', list, 10000)
end

local function wake_waiter(me)
  local gen = digits(tonumber(me.gen) + 1)
  local has_waited = me.places ~= ''  -- else it was handed back, and waited for no lock
  local wake_it = me.stream == 'hold' and wake_hold or wake_task
  wake_it(me, gen)
  leave_handed(me.id, me)
  local ends = has_waited and digits(now + RESERVATION) or ''
  redis.call('HSET', P .. 't:' .. me.id, 'state', 'queued', 'gen', gen, 'places', me.places,
    'pointer', me.pointer or '', 'aged', me.aged and 1 or 0, 'since', digits(me.since), 'reserved', ends)
  if me.places ~= '' then
    stand(me, me.rank - WOKEN)
    -- Keep an earlier look: it may be the one at which the task comes of age.
    redis.call('ZADD', P .. 'tasks:delayed', 'LT', ends, me.id)
  elseif me.aged or not has_waited then
    redis.call('ZREM', P .. 'tasks:delayed', me.id)
  end
end

-- Wake a waiter if nothing refuses it; else let it stand where it waits now. Returns the refusal.
local function offer(me, is_new_rank)
  local refusal = refusal_of(me)
  local is_anew = age_by_pause(me, refusal)
  if not refusal or refusal.impossible then  -- what can never be granted dies when it is fetched
    wake_waiter(me)
    return nil
  end
  local before = me.places
  enter_queues(me, refusal, is_new_rank)
  if me.places ~= before then
    redis.call('HSET', P .. 't:' .. me.id, 'places', me.places,
      'blocker', string.sub(refusal.lock.counter, 1, 60),
      unpack(is_anew and {'aged', 0, 'since', digits(now)} or {}))
  end
  return refusal
end

-- The lock of this name at which a task stands, or nil.
local function standing_at(me, name)
  for i, lock in ipairs(me.locks) do
    local mark = place_of(me, i)
    if mark and (lock.limits and counter_of(lock, mark) or lock.name) == name then
      return lock
    end
  end
  return nil
end

-- Let what cannot be looked at leave every queue that can be left, so that it keeps nobody away;
-- it is tried again in a minute, and operators see why.
local function put_aside(id, problem)
  local fine, me = pcall(load_waiter, id)
  for i, lock in ipairs(fine and me and me.locks or {}) do
    pcall(leave_queues, {id = id, locks = {lock}, places = place_of(me, i) or ''})
  end
  return pcall(set_aside, id, problem)
end

-- Offer a lock to one who stands in its queue. Returns whether it was woken, whether those behind it
-- can run neither, and whether it stays there.
local function offer_place(name, queue, member)
  local me = load_waiter(string.match(member, '^%S+'))
  local lock = me and me.state == 'waiting' and standing_at(me, name)
  if not lock then  -- left over from a record that is gone
    redis.call('ZREM', queue, member)
    redis.call('ZREM', P .. 'writers:' .. name, member)
    return false, false, false
  end
  local refusal = offer(me)
  if not refusal then
    return true, lock.exclusive, false
  end
  local stays = standing_at(me, name) ~= nil
  return false, refusal.lock.counter == name or lock.exclusive and stays, stays
end

-- Offer a lock to its queue: to the first if it is exclusive, else to as many as can run.
local function offer_queue(name)
  local queue, skip, is_useful = P .. 'queue:' .. name, 0, false
  local had_all = offers_left == tick_offers
  while offers_left > 0 do
    local member = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', skip, 1)[1]
    if not member then
      return
    end
    offers_left = offers_left - 1
    local fine, is_woken, is_over, stays = pcall(offer_place, name, queue, member)
    if not fine then
      redis.call('ZREM', queue, member)
      redis.call('ZREM', P .. 'writers:' .. name, member)
      put_aside(string.match(member, '^%S+'), is_woken)
    elseif is_over then
      return
    else
      is_useful = is_useful or is_woken
      skip = skip + (stays and 1 or 0)  -- another lock refuses it: those behind it may run
    end
  end
  -- Go on with the next promotion; but not over and over where other locks refuse all of them.
  watch(name, had_all and not is_useful and now + SLOW_LOOK or now)
end

-- A program that waits for a hold asks again within this time; else it is gone.
local HOLD_ASKS = 5000000
-- It has the highest priority from the beginning; of age it keeps its places at limiters, too.
local HOLD_WAITS = {first = HOLD_ASKS, longest = HOLD_ASKS, aging = HOLD_ASKS}

-- Stop waiting for a hold.
local function forget_hold(me)
  leave_queues(me)
  redis.call('ZREM', P .. 'tasks:delayed', me.id)
  redis.call('DEL', P .. 't:' .. me.id, P .. 'l:' .. me.id)
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

-- Offer all that was given back in this script, and these. count: of deliveries that ended in it.
local function offer_all(names, count)
  give_back(names or {})
  offers_left = math.max(offers_left, count or 0)
  for name in next_offer do
    if offers_left <= 0 then
      watch(name, now)
    elseif not pcall(offer_queue, name) then
      -- One broken queue must not undo the end of a task; those in it are looked at by themselves.
      pcall(watch, name, now + SLOW_LOOK)
    end
  end
end
