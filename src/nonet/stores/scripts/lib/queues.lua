-- lib/queues: needs base, wake, limits, locks, pauses. The tasks that wait for a lock: queues, ranks, places.
--
-- A task that a structural lock refuses stands in the queues of all its structural locks, so that no task
-- that came later takes one of them. A task that only a limiter refuses stands in the queue of that limiter,
-- and reserves no lock. ZSET queue:LOCK is id → rank. The rank is the ticket, plus a class for the priority. At a limiter
-- tenants with fair shares take turns instead, see lib/lines.
-- A woken task keeps its places until it is admitted, before all others: its score is rank - WOKEN. A waiting
-- writer also stands in writers:LOCK, which readers check.
-- ZSET watch: lock → when to check its queue at the latest, if no holder releases it before.

local CLASS, WOKEN = 100000000000000, 4000000000000000
local SLOW_LOOK = 30000000

local rank_of
do
  local classes = {}
  for i, priority in ipairs(PRIORITIES) do
    classes[priority] = i - 1
  end

  -- The rank of a task. Aged tasks, and holds, count as of the highest priority.
  function rank_of(ticket, stream, aged)
    local class = aged and 0 or classes[string.match(stream, '^%a+')] or 0
    return tonumber(ticket) + class * CLASS
  end
end

-- The scores in a queue of the tasks before one: woken tasks, then waiting ones, of a lower rank.
local function ranges_before(me)
  return {{'-inf', '(' .. digits(me.rank - WOKEN)}, {0, '(' .. digits(me.rank)}}  -- fault: limiter-woken-passed
end

-- The queue that a task must not overtake to get a lock: a reader overtakes waiting readers.
local function queue_before(lock)
  return P .. (lock.shared and 'writers:' or 'queue:') .. lock.counter  -- fault: readers-pass-writers
end

local lines  -- of tenants, at limiters; nil if there are no fair shares
if marks[6] then
-- @defer shares lines load_lines
  lines = load_lines()
end

local met = 0  -- the tasks that one script parks age in the order in which it read them

-- A task that asks for locks, from the fields of its record. places has a mark for each lock: 'x' where the
-- task stands ('v' at the VO's own counter), '-' where it does not.
local function new_waiter(id, record, locks)
  met = met + 1
  local aged, ticket = record.aged == '1', ticket_of(record)
  return {id = id, locks = locks, aged = aged, stream = record.stream, ticket = ticket,
    rank = rank_of(ticket, record.stream, aged), places = record.places or '',  -- fault: rank-random
    state = record.state, gen = record.gen, name = record.name,
    refusals = tonumber(record.refusals or '0'),
    since = tonumber(record.since or '') or now + met, seen = tonumber(record.seen or ''), unfit = record.unfit,
    reserved = tonumber(record.reserved or ''), pointer = record.pointer, tenant = record.tenant,
    suspect = record.suspect, lines = record.locks or '', client = record.client}
end

-- A parked or woken task by its record, without its locks; nil if it has no record.
local function read_waiter(id)
  local record = read_record(id)
  return ticket_of(record) and new_waiter(id, record, {})
end

-- A paused task waits as if at a limiter of 0, in one queue for its stream and class. Append this place last, so
-- that the marks of the other places keep their positions.
local function add_pause(me)
  me.pause = pause_of(me)
  if #me.places > #me.locks or me.pause then
    local name = KINDS[PAUSE].prefix .. ':' .. me.stream .. ':' .. me.name
    me.locks[#me.locks + 1] = new_lock(PAUSE, name, 0, '')
  end
end

-- Read the locks of a task, which not every caller needs. The limiters of its class and tenant are among them if a
-- limit is set, or if the task may still stand at one that was set. Holds have no class.
local function read_locks(me)
  if me.stream == 'hold' then
    me.locks = parse_locks(me.lines, 0)
    return
  end
  local is_limited = me.places ~= '' or are_limits_set() or pause_of(me)  -- fault: last-limit-unset
  me.locks = parse_locks(me.lines, 0, is_limited and me or nil)
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

-- Call visit(queue, member, name of the lock) for every queue in which a task stands.
local function each_place(me, visit)
  for i, lock in ipairs(me.locks) do
    local mark = place_of(me, i)
    if mark then
      local name = lock.limiter and counter_of(lock, mark) or lock.name
      visit(P .. 'queue:' .. name, lock.windowed and me.id .. ' ' .. lock.items or me.id, name)
      if lock.writer then
        visit(P .. 'writers:' .. name, me.id, name)
      end
    end
  end
end

-- Stand in every queue with this score: the rank, or rank - WOKEN.
local function stand(me, score)
  each_place(me, function(queue, member, name)
    if lines and score < 0 then
      lines.leave(name, me, member, true)
    elseif lines then
      lines.enter(name, me, member)
    end
    redis.call('ZADD', queue, digits(score), member)
  end)
end

-- Have the queue of a lock checked at `at`, or after SLOW_LOOK if that is earlier.
local watched = {}  -- by this script, which often parks many tasks at one lock
local function watch(name, at)
  at = math.min(at, now + SLOW_LOOK)
  if at < (watched[name] or math.huge) then
    redis.call('ZADD', P .. 'watch', 'LT', digits(at), name)
    watched[name] = at
    wake_promoter_for(at)
  end
end

local to_offer = {{}, {}}

-- Offer these locks to their queues when the script ends, limiters last: a task that a mutex no longer refuses may
-- wait for a limiter next, and must join the limiter's queue before the limiter is offered to others.
local function give_back(names)
  for _, name in ipairs(names) do
    local list = to_offer[string.find(name, '^limiter:') and 2 or 1]
    list[#list + 1] = name
  end
end

-- Leave every queue. The tasks behind may be able to run now.
local function leave_queues(me)
  each_place(me, function(queue, member, name)
    if lines then
      lines.leave(name, me, member)
    end
    redis.call('ZREM', queue, member)
    give_back({name})  -- fault: leaver-offers-none
  end)
  me.places = ''
end
