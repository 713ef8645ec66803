-- lib/waiting: needs base, wake, record, limits, locks. Parked tasks: in which queues they stand,
-- what refuses them, and who is woken when a lock is given back.
--
-- A task that a structural lock refuses stands in the queues of all its structural locks, so that
-- nobody who came later takes one of them; a task that only a limiter refuses stands in that
-- limiter's queue and reserves no lock. ZSET queue:LOCK is id → rank: the ticket, plus a class for
-- the priority. Who is woken keeps its places until it is admitted, before all others: its score
-- is rank - WOKEN. A waiting writer stands in writers:LOCK too, where readers look.
-- ZSET watch: lock → when to look at its queue if nobody gives it back before.

local CLASS, WOKEN = 100000000000000, 4000000000000000
local RESERVATION = 5000000
local SLOW_LOOK = 30000000
local LOOK_GRID = 500000

local offers_left = 32  -- the rest goes to the watch, so that no release holds up Redis
local to_offer, offered = {}, 0
local woken_sizes = {}  -- of the tasks that this script woke

local CLASSES = {realtime = 0, normal = 1, background = 2}

local function rank_of(ticket, stream, aged)
  local class = aged and 0 or CLASSES[string.match(stream, '^%a*')] or 0
  return tonumber(ticket) + class * CLASS
end

local met = 0  -- those that one script parks come of age in the order in which it read them

-- What a refusal needs to know of a task, from fields of its record. places has a mark for each
-- lock: '-', or 'x' (or 'v', at the VO's own counter) where it stands.
local function new_waiter(id, record, locks)
  met = met + 1
  local aged = record.aged == '1'
  return {id = id, locks = locks, aged = aged, stream = record.stream, ticket = record.ticket,
    rank = rank_of(record.ticket, record.stream, aged), places = record.places or '',
    state = record.state, gen = record.gen, name = record.name,
    refusals = tonumber(record.refusals or '0'),
    since = tonumber(record.since or '') or now + met, seen = tonumber(record.seen or '')}
end

local WAITER = {'state', 'gen', 'stream', 'ticket', 'aged', 'places', 'name', 'refusals', 'since',
  'seen'}

-- A parked or woken task by its record, without its locks; nil if there is none.
local function read_waiter(id)
  local record = read_fields(P .. 't:' .. id, WAITER)
  return record.ticket and new_waiter(id, record, {})
end

-- Its locks are read apart: not all need them. A hold has no class whose limits would count.
local function read_locks(me)
  local lines = redis.call('GET', P .. 'l:' .. me.id) or ''
  -- Where it stands may be at a limit that is no longer set.
  if lines ~= '' or me.places ~= '' or are_limits_set() then
    me.locks = parse_locks(lines, 0, me.stream ~= 'hold' and me.name or '')
  end
end

local function load_waiter(id)
  local me = read_waiter(id)
  if me then
    read_locks(me)
  end
  return me
end

local function place_of(me, i)
  local mark = string.sub(me.places, i, i)
  return (mark == 'x' or mark == 'v') and mark or nil
end

local function member_of(me, lock)
  return lock.kind == 'L' and me.id .. ' ' .. lock.items or me.id
end

-- Call visit(queue, member, name of the lock) for every queue in which a task stands.
local function each_place(me, visit)
  for i, lock in ipairs(me.locks) do
    local mark = place_of(me, i)
    if mark then
      local name = lock.limits and counter_of(lock, mark) or lock.name
      visit(P .. 'queue:' .. name, member_of(me, lock), name)
      if lock.kind == 'W' then
        visit(P .. 'writers:' .. name, me.id, name)
      end
    end
  end
end

local function stand(me, score)
  each_place(me, function(queue, member)
    redis.call('ZADD', queue, digits(score), member)
  end)
end

-- Look at the queue of a lock at a time, at the latest; never later than after a slow look.
local watched = {}  -- by this script: many wait for the same
local function watch(name, at)
  at = math.min(at, now + SLOW_LOOK)
  if at < (watched[name] or math.huge) then
    redis.call('ZADD', P .. 'watch', 'LT', digits(at), name)
    watched[name] = at
    wake_promoter_for(at)
  end
end

-- Offer the queues of these locks to those who stand in them, when the script ends.
local function give_back(names)
  for _, name in ipairs(names) do
    to_offer[#to_offer + 1] = name
  end
end

-- Leave every queue. Who stood behind may be able to run now.
local function leave_queues(me)
  each_place(me, function(queue, member, name)
    redis.call('ZREM', queue, member)
    give_back({name})
  end)
  me.places = ''
end

-- Whether somebody of a lower rank stands in a queue, and whether anybody else does.
local function is_overtaking(queue, me)
  local first = redis.call('ZRANGE', queue, 0, 1, 'WITHSCORES')
  local contended = false
  for i = 1, #first, 2 do
    if first[i] ~= me.id then
      contended = true
      local score = tonumber(first[i + 1])
      if (score < 0 and score + WOKEN or score) < me.rank then
        return true, true
      end
    end
  end
  if first[4] and tonumber(first[4]) < 0 then
    -- The woken stand first; one of a lower rank may wait behind them.
    local below = redis.call('ZRANGEBYSCORE', queue, 0, '(' .. digits(me.rank), 'LIMIT', 0, 1)
    return below[1] ~= nil, contended
  end
  return false, contended
end

-- How much of a limiter those of a lower rank wait for; more than `free` need not be counted.
local function reserved(lock, me, free)
  local queue, sum = P .. 'queue:' .. lock.counter, 0
  lock.contended = redis.call('EXISTS', queue) == 1
  if not lock.contended then
    return 0
  end
  for _, range in ipairs({{'-inf', '(' .. digits(me.rank - WOKEN)}, {0, '(' .. digits(me.rank)}}) do
    if lock.kind == 'C' then
      sum = sum + redis.call('ZCOUNT', queue, range[1], range[2])
    else
      -- Each waits for one item at least.
      sum = sum + items_of(redis.call('ZRANGEBYSCORE', queue, range[1], range[2],
        'LIMIT', 0, math.max(0, free) + 1))
    end
  end
  return sum
end

-- What refuses a task now: nil, or the lock, whether its holders do (held; else those who came
-- before), whether an aged task is the next to get it, when to look again, and whether it can never
-- be granted.
local function refusal_of(me)
  for _, lock in ipairs(me.locks) do
    if not lock.limits then
      local expiry = held_until(lock)
      local queue = P .. (lock.kind == 'R' and 'writers:' or 'queue:') .. lock.name
      if expiry then
        local is_next = me.aged and not is_overtaking(queue, me)
        return {lock = lock, held = true, is_next = is_next, look = expiry}
      end
      local overtaking, contended = is_overtaking(queue, me)
      if overtaking then
        return {lock = lock, look = now + SLOW_LOOK}
      end
      lock.contended = contended
    end
  end
  for _, lock in ipairs(me.locks) do
    if lock.limits then
      resolve_limit(lock)
      if lock.limit and lock.items > lock.limit then
        return {lock = lock, impossible = true}
      elseif lock.limit then
        local free = free_places(lock)
        local before = reserved(lock, me, free)
        if lock.items + before > free then
          return {lock = lock, held = lock.items > free, is_next = before == 0,
            look = first_free(lock) or now + SLOW_LOOK}
        end
      end
    end
  end
  return nil
end

-- Where a refused task stands. An aged one that is the next for what others hold keeps its places
-- at the limiters too: else a task that needs a busy lock and a busy limiter would never get both.
-- Only the next, so that what it keeps idle is one place; and not while tokens must come back.
local function places_after(me, refusal)
  local marks = {}
  local everywhere = me.aged and refusal.is_next and refusal.lock.kind ~= 'L'
  for i, lock in ipairs(me.locks) do
    local stands = lock == refusal.lock or not lock.limits and not refusal.lock.limits
    if lock.limits and everywhere and not stands then
      resolve_limit(lock)
      stands = lock.limit
    end
    marks[i] = stands and (lock.mark or 'x') or '-'
  end
  return table.concat(marks)
end

-- Let a refused task stand in its queues, and leave those where it no longer waits. Its rank there
-- is new if it was woken or has come of age.
local function enter_queues(me, refusal, is_new_rank)
  local places = places_after(me, refusal)
  if places ~= me.places then
    leave_queues(me)
  end
  if places ~= me.places or is_new_rank then
    me.places = places
    stand(me, me.rank)
  end
  watch(refusal.lock.counter, refusal.look)
end

-- When to look at one waiter by itself: later with each refusal in a row, and when it is of age.
local function next_look(me, waits)
  local pause = math.min(waits.longest, waits.first * 2 ^ math.min(me.refusals - 1, 20))
  -- Spread, so that tasks refused together are not looked at together; but on a grid, so that one
  -- script looks at many. Nobody comes of age before an older one, so that is on no grid.
  local at = math.ceil((now + pause * (0.5 + math.random())) / LOOK_GRID) * LOOK_GRID
  if not me.aged then
    at = math.min(at, math.max(now, me.since + waits.aging))
  end
  return at
end

-- Park a task that a lock refused: no slot, no attempt used, its ticket kept.
local function park(me, refusal, waits)
  me.refusals = me.refusals + 1
  enter_queues(me, refusal, true)
  redis.call('HSET', P .. 't:' .. me.id, 'state', 'waiting', 'places', me.places,
    'aged', me.aged and 1 or 0, 'since', digits(me.since), 'refusals', me.refusals,
    'blocker', string.sub(refusal.lock.counter, 1, 60))
  redis.call('ZADD', P .. 'tasks:delayed', digits(next_look(me, waits)), me.id)
end

-- The marks of the limiters that hold for a task now; '' if none does.
local function held_marks(me)
  local marks, any = {}, false
  for i, lock in ipairs(me.locks) do
    local taken = not lock.limits or lock.limit ~= nil
    any = any or (lock.limits and taken)
    marks[i] = taken and (lock.mark or 'x') or '-'
  end
  return any and table.concat(marks) or ''
end

-- Take all locks of a task that nothing refuses. Returns the marks for held_locks().
local function take_locks(me, owner)
  for _, lock in ipairs(me.locks) do
    if not lock.limits or lock.limit then
      write_lock(lock, owner)
      local lasts = (lock.kind == 'L' and lock.window or lock.ttl) * 1000
      if lock.contended and lasts < SLOW_LOOK then  -- else those who wait have set a watch
        watch(lock.counter, now + lasts)
      end
    end
  end
  return held_marks(me)
end

-- Take an admitted task out of its queues: its locks now keep the others away. Write NOT_WAITING
-- into its record, too.
local NOT_WAITING = {'places', '', 'aged', '', 'since', '', 'refusals', '', 'blocker', ''}
local function leave_as_admitted(me)
  each_place(me, function(queue, member)
    redis.call('ZREM', queue, member)
  end)
  redis.call('ZREM', P .. 'tasks:delayed', me.id)
end

-- Send a waiter on its way: into a stream, or tell the program that waits for a hold.
local function wake_waiter(me)
  local gen = digits(tonumber(me.gen) + 1)
  if me.stream == 'hold' then
    redis.call('RPUSH', P .. 'wake:' .. me.id, '1')
    redis.call('PEXPIRE', P .. 'wake:' .. me.id, 10000)
  else
    enqueue('woken', me.id, me.aged and 'realtime:' .. size_of(me.stream) or me.stream, gen)
  end
  redis.call('HSET', P .. 't:' .. me.id, 'state', 'queued', 'gen', gen)
  if me.places ~= '' then
    stand(me, me.rank - WOKEN)
    redis.call('ZADD', P .. 'tasks:delayed', digits(now + RESERVATION), me.id)
  else
    redis.call('ZREM', P .. 'tasks:delayed', me.id)
  end
  if me.stream ~= 'hold' then
    wake(size_of(me.stream), 1)
    woken_sizes[size_of(me.stream)] = true
  end
end

-- Wake a waiter if nothing refuses it; else let it stand where it waits now. Returns the refusal.
local function offer(me, is_new_rank)
  local refusal = refusal_of(me)
  if not refusal or refusal.impossible then  -- what can never be granted dies when it is fetched
    wake_waiter(me)
    return nil
  end
  local before = me.places
  enter_queues(me, refusal, is_new_rank)
  if me.places ~= before then
    redis.call('HSET', P .. 't:' .. me.id, 'places', me.places,
      'blocker', string.sub(refusal.lock.counter, 1, 60))
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

-- Offer a lock to its queue: to the first if it is exclusive, else to as many as can run.
local function offer_queue(name)
  local queue, skip = P .. 'queue:' .. name, 0
  while offers_left > 0 do
    local member = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', skip, 1)[1]
    if not member then
      return
    end
    offers_left = offers_left - 1
    local me = load_waiter(string.match(member, '^%S+'))
    local lock = me and me.state == 'waiting' and standing_at(me, name)
    if not lock then  -- left over from a record that is gone
      redis.call('ZREM', queue, member)
      redis.call('ZREM', P .. 'writers:' .. name, member)
    else
      local refusal = offer(me)
      if lock.exclusive and (not refusal or standing_at(me, name)) then
        return
      elseif refusal and refusal.lock.counter == name then
        return
      elseif refusal and standing_at(me, name) then
        skip = skip + 1  -- another lock refuses it, and it does not keep away those behind it
      end
    end
  end
  watch(name, now)
end

-- A program that waits for a hold asks again within this time; else it is gone.
local HOLD_ASKS = 5000000

-- Stop waiting for a hold.
local function forget_hold(me)
  leave_queues(me)
  redis.call('ZREM', P .. 'tasks:delayed', me.id)
  redis.call('DEL', P .. 't:' .. me.id, P .. 'l:' .. me.id, P .. 'wake:' .. me.id)
end

-- Offer all that was given back in this script, and these.
local function offer_all(names)
  give_back(names or {})
  while offered < #to_offer do
    offered = offered + 1
    if offers_left <= 0 then
      watch(to_offer[offered], now)
    elseif not pcall(offer_queue, to_offer[offered]) then
      -- One broken queue must not undo the end of a task; those in it are looked at by themselves.
      pcall(watch, to_offer[offered], now + SLOW_LOOK)
    end
  end
end
