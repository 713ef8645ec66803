-- lib/queues: needs base, wake, limits, locks, pauses. Who waits for a lock: queues, ranks, places.
--
-- A task that a structural lock refuses stands in the queues of all its structural locks, so that
-- nobody who came later takes one of them; a task that only a limiter refuses stands in that
-- limiter's queue and reserves no lock. ZSET queue:LOCK is id → rank: the ticket, plus a class for
-- the priority. Who is woken keeps its places until it is admitted, before all others: its score
-- is rank - WOKEN. A waiting writer stands in writers:LOCK too, where readers look.
-- ZSET watch: lock → when to look at its queue if nobody gives it back before.

local CLASS, WOKEN = 100000000000000, 4000000000000000
local SLOW_LOOK = 30000000

local CLASSES = {r = 0, n = 1, b = 2}  -- by the first letter of the priority

local function rank_of(ticket, stream, aged)
  local class = aged and 0 or CLASSES[string.sub(stream, 1, 1)] or 0
  return tonumber(ticket) + class * CLASS
end

local met = 0  -- those that one script parks come of age in the order in which it read them

-- What a refusal needs to know of a task, from fields of its record. places has a mark for each
-- lock: '-', or 'x' (or 'v', at the VO's own counter) where it stands.
local function new_waiter(id, record, locks)
  met = met + 1
  local aged, ticket = record.aged == '1', ticket_of(record)
  return {id = id, locks = locks, aged = aged, stream = record.stream, ticket = ticket,
    rank = rank_of(ticket, record.stream, aged), places = record.places or '',
    state = record.state, gen = record.gen, name = record.name,
    refusals = tonumber(record.refusals or '0'),
    since = tonumber(record.since or '') or now + met, seen = tonumber(record.seen or ''), unfit = record.unfit,
    reserved = tonumber(record.reserved or ''), pointer = record.pointer,
    suspect = record.suspect}
end

local WAITER = {'state', 'gen', 'stream', 'ticket', 'aged', 'places', 'name', 'refusals', 'since',
  'seen', 'unfit', 'reserved', 'pointer', 'suspect'}

-- A parked or woken task by its record, without its locks; nil if there is none.
local function read_waiter(id)
  local record = read_fields(P .. 't:' .. id, WAITER)
  return ticket_of(record) and new_waiter(id, record, {})
end

-- A paused task stands in a queue of its kind alone, as at a limiter that allows none: all of one
-- stream and class are in the same. It is the last of its places, so that the others keep theirs.
local function add_pause(me)
  if #me.places > #me.locks or pause_of(me.stream, me.name) then
    local lock = new_lock('P', 'paused:' .. me.stream .. ':' .. me.name, 0, '')
    lock.limits = true
    me.locks[#me.locks + 1] = lock
  end
end

-- Its locks are read apart: not all need them. A hold has no class whose limits would count; a task
-- may stand at a limit of its class that is no longer set.
local function read_locks(me)
  local lines = redis.call('GET', P .. 'l:' .. me.id) or ''
  if me.stream == 'hold' then
    me.locks = parse_locks(lines, 0, '')
    return
  end
  local is_limited = me.places ~= '' or are_limits_set() or pause_of(me.stream, me.name)
  me.locks = parse_locks(lines, 0, is_limited and me.name or '')
  add_pause(me)
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

local to_offer = {{}, {}}

-- Offer the queues of these locks to those who stand in them, when the script ends; limiters last: whom a
-- mutex refuses no more may wait for one of them, and must stand there before it is offered to others.
local function give_back(names)
  for _, name in ipairs(names) do
    local list = to_offer[string.find(name, '^limiter:') and 2 or 1]
    list[#list + 1] = name
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
