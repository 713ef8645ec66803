-- lib/handing: needs base, wake, record, fitting. Tasks that a worker has handed on, because it does not know their
-- class or is too old for it. Such a task waits in the delayed set. A worker that may be able to run it finds
-- it by its class with its next fetch; the promotion only extends the TTL of the keys by which it is found.

-- The field unfit of a record lists, separated by commas, the knowledge_of() of each worker that could not run the
-- task; '-' if none of them knew its class.
local MANY, LONGEST = 3, 60000000
local TOO_MANY = '+'

local function is_listed(unfit, knows)
  return string.find(',' .. unfit .. ',', ',' .. knows .. ',', 1, true) ~= nil
end

-- Add the knowledge of one more worker to unfit. A task with too many versions goes through the streams instead,
-- with growing pauses.
local function add_unfit(unfit, knows)
  if not unfit or unfit == '-' then
    return knows or '-'
  elseif unfit == TOO_MANY or not knows or is_listed(unfit, knows) then
    return unfit
  end
  return #unfit + #knows < 250 and unfit .. ',' .. knows or TOO_MANY
end

local keep_handed
do
  local ONE_DAY, kept = '86400000', {}

  -- Let workers find a task by its class. Call this before its record says that it waits: workers skip tasks that
  -- do not wait yet. Each promotion that checks the task extends the TTL of these keys.
  function keep_handed(id, record)
    if record.places or record.unfit == TOO_MANY then
      return
    end
    local size, group = handed_group(record)
    local groups, members = P .. 'handed:' .. size, P .. 'unfit:' .. size .. ':' .. group
    redis.call('ZADD', members, ticket_of(record), id)
    if not kept[members] then
      kept[members] = true
      redis.call('SADD', groups, group)
      redis.call('PEXPIRE', members, ONE_DAY)
      redis.call('PEXPIRE', groups, ONE_DAY)
    end
  end
end

-- Record that a worker cannot run a task. first: the first pause in µs, unless another worker takes the task
-- before. Returns the pause for this time.
local function hand_on(id, record, worker, first)
  local class, times = record.name or '', records.raise(id, 'handed')
  record.ticket, record.unfit = ticket_of(record), add_unfit(record.unfit, knowledge_of(worker, class))
  change(id, {unfit = record.unfit})
  keep_handed(id, record)
  wake_other(size_of(record.stream), class, record.unfit)
  return times <= MANY and first or math.min(first * 2 ^ (times - MANY), LONGEST)
end

local handed_for
do
  local MOST_GROUPS, PAGE = 100, 100

  -- At most MOST_GROUPS, chosen at random.
  local function groups_for(worker, size)
    local found = {}
    for _, group in ipairs(redis.call('SRANDMEMBER', P .. 'handed:' .. size, MOST_GROUPS)) do
      local source, class, unfit = string.match(group, '^(%a+:%a+):(.*)|([^|]*)$')
      if source and does_fit(worker, class, unfit) then
        found[source] = found[source] or {}
        table.insert(found[source], {name = group, unfit = unfit,
          members = P .. 'unfit:' .. size .. ':' .. group})
      end
    end
    return found
  end

  -- The tasks of some groups, the oldest first.
  local function first_of(groups, size, most)
    local found = {}
    for _, group in ipairs(groups) do
      local page = redis.call('ZRANGE', group.members, 0, math.max(most, PAGE) - 1, 'WITHSCORES')
      for i = 1, #page, 2 do
        found[#found + 1] = {id = page[i], ticket = tonumber(page[i + 1]), group = group}
      end
      if #page == 0 then
        redis.call('SREM', P .. 'handed:' .. size, group.name)
      end
    end
    table.sort(found, function(a, b) return a.ticket < b.ticket end)
    return found
  end

  -- Queue a task again. Returns false if it does not wait there any more.
  local function queue(id, unfit)
    local record = read_record(id)
    local is_dying = record.state == 'dying'
    if record.unfit ~= unfit or record.places or record.owner
      or record.state ~= 'waiting' and not is_dying then
      return false
    end
    local gen = digits(tonumber(record.gen) + 1)
    local kind = record.suspect and not is_dying and 'suspects' or 'woken'
    local pointer = enqueue(kind, id, record.stream, gen)
    change(id, {state = is_dying and 'dying' or 'queued', gen = gen, pointer = pointer})
    redis.call('ZREM', P .. 'tasks:delayed', id)
    return true
  end

  -- Find the tasks that were handed on and that a worker may be able to run. Returns a function that queues up
  -- to `most` of them for a source ('woken' or 'suspects', and the priority) and returns how many; nil if there
  -- are none.
  function handed_for(worker, size)
    local groups = groups_for(worker, size)
    return next(groups) and function(source, most)
      local taken = 0
      for _, each in ipairs(most > 0 and first_of(groups[source] or {}, size, most) or {}) do
        if taken == most then
          break
        end
        local fine, is_queued = pcall(queue, each.id, each.group.unfit)
        taken = taken + (fine and is_queued and 1 or 0)
        redis.call('ZREM', each.group.members, each.id)
      end
      return taken
    end
  end
end

local stays_handed
do
  local advertised = {}

  -- What the live workers of a size know.
  local function knowledge_in(size)
    local found = {}
    for _, worker in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers', digits(now), '+inf')) do
      if string.match(worker, '^%a+') == size then
        found[redis.call('HGET', P .. 'w:' .. worker, 'knows') or ''] = true
      end
    end
    return found
  end

  -- Whether some workers of a size are alive, and all of them advertise their classes.
  local function all_advertise(size)
    local found = knowledge_in(size)
    for knows in pairs(found) do
      if redis.call('EXISTS', P .. 'names:' .. knows) == 0 then
        return false
      end
    end
    return next(found) ~= nil
  end

  -- Whether a task that was handed on and is due stays in these groups, where workers find it by its class.
  function stays_handed(record)
    local size = size_of(record.stream)
    if advertised[size] == nil then
      advertised[size] = all_advertise(size)
    end
    return advertised[size] and record.unfit ~= TOO_MANY
  end
end
