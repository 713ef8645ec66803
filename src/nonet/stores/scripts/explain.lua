#!lua flags=no-writes
-- explain: read why a task does not run, or where it runs, as facts of one instant. It changes nothing.
-- KEYS  prefix
-- ARGV  id, how many holders to name, how many entries of a stream to read to find its position
-- returns {n × (name, value)}, empty if the id is unknown. The value of 'holders' is rows of lib/sight. The value of
--       'peers' is a row for each live worker of its size: worker, what it reports of itself, why it takes no
--       tasks or '', what it knows or '', 1 if it knows the class, version of the class, how many deliveries it has. The
--       value of 'before', for a step of a workflow that waits for others, is {id, class, state} of the first of them; the value of 'root' is
--       the same for the last step of that chain; 'event' names the event that a step without code waits for
-- @include base reading wake streams unread deliveries record limits mutexes locks pauses queues refusal sight followed
local id, most, looks = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local facts = {}

local function add(name, value)
  if value ~= nil and value ~= '' then
    facts[#facts + 1] = name
    facts[#facts + 1] = type(value) == 'number' and digits(value) or value
  end
end

local function add_worker(worker)
  add('worker', worker)
  add('info', redis.call('HGET', P .. 'w:' .. worker, 'info') or '')
  add('alive_until', redis.call('ZSCORE', P .. 'workers', worker) or '')
end

-- What live workers report: whether they take tasks, and whether they know the class; and how much they have to do.
local function add_peers(workers, class)
  local rows, MOST = {}, 100
  for i = 1, math.min(#workers, MOST) do
    local report = read_fields(P .. 'w:' .. workers[i], {'info', 'off', 'knows'})
    local names = P .. 'names:' .. (report.knows or '')
    local version = redis.call('HGET', names, class)
    local _, running = tasks_of(workers[i], 0)
    rows[i] = {workers[i], report.info or '', report.off or '',
      redis.call('EXISTS', names) == 1 and report.knows or '', version and 1 or 0, version or '', running}
  end
  add('peers', rows)
end

-- Count the workers that could take a task of this size, and the daemons that could move one that is due.
local function add_workers(size, class)
  local peers = {}
  local of_size, idle = 0, 0
  local all = redis.call('ZRANGEBYSCORE', P .. 'workers', digits(now), '+inf')
  for _, worker in ipairs(all) do
    if string.match(worker, '^%a+') == size then
      of_size = of_size + 1
      peers[of_size] = worker
      idle = idle + (redis.call('ZSCORE', P .. 'idle:' .. size, worker) and 1 or 0)
    end
  end
  local leads = (tonumber(redis.call('HGET', P .. 'leader', 'expiry') or '') or 0) > now
  add('workers', of_size)
  add('idle', idle)
  add('promoters', #all + (leads and 1 or 0))
  add_peers(peers, class)
end

-- How many entries from `start` on are before the entry of the task; nil if it is not among the first.
local function place_in(key, start, gen)
  for i, entry in ipairs(redis.call('XRANGE', key, start, '+', 'COUNT', looks)) do
    local fields = entry[2]
    if fields[2] == id and fields[4] == gen then
      return i - 1
    end
  end
  return nil
end

-- The place of a task in the list of its tenant: how many of its tenant go before it, how many other tenants have tasks
-- whose turn comes before its own, and with how many tasks. Returns whether it was found, and whether it may be behind
-- the first of a list.
local function add_turn(me, stream)
  local name, shares = me.tenant or '', P .. 'shares:' .. stream
  local time, before, is_deep = tonumber(redis.call('ZSCORE', shares, name) or ''), 0, false
  local pointer = id .. ' ' .. me.gen
  for _, kind in ipairs({'woken', 'tasks'}) do
    local list = P .. 'share:' .. kind .. ':' .. stream .. ':' .. name
    local place = time and redis.call('LPOS', list, pointer, 'MAXLEN', looks)
    if place then
      before = before + place
      local flat, others, turns = redis.call('ZRANGE', shares, 0, 99, 'WITHSCORES'), 0, 0
      local weights = redis.call('HMGET', P .. 'weights', 'default', name)
      local own = time + before / (tonumber(weights[2] or '') or tonumber(weights[1] or '1'))
      for i = 1, #flat, 2 do
        local weight = tonumber(redis.call('HGET', P .. 'weights', flat[i]) or '') or tonumber(weights[1] or '1')
        local first = flat[i] ~= name and math.ceil((own - tonumber(flat[i + 1])) * weight) or 0
        if first > 0 then
          local tasks = P .. 'share:tasks:' .. stream .. ':' .. flat[i]
          local woken = P .. 'share:woken:' .. stream .. ':' .. flat[i]
          others = others + 1
          turns = turns + math.min(first, redis.call('LLEN', tasks) + redis.call('LLEN', woken))
        end
      end
      add('ahead', before)
      add('tenant', name)
      add('others', others)
      add('turns', turns)
      add('each', tonumber(redis.call('HGET', P .. 'pace', stream .. ' each') or ''))
      add('place', 'list')
      return true
    end
    local length = redis.call('LLEN', list)
    before, is_deep = before + length, is_deep or length > looks
  end
  return false, is_deep
end

-- How many tasks the workers of its size read before it. For a dying task count only the burials, which are read
-- separately.
local function add_place(me)
  for _, stream in ipairs(me.pointer == IN_LIST and {PRIORITIES[1] .. ':' .. size_of(me.stream), me.stream} or {}) do
    local is_found, is_deep = add_turn(me, stream)
    if is_found then
      return
    elseif is_deep and stream == me.stream then
      add('ahead', looks)
      return add('place', 'beyond')
    end
  end
  local own, size = string.match(me.stream, '^%a*'), size_of(me.stream)
  local ahead, is_dying = 0, me.state == 'dying'
  for _, stream in ipairs(streams_of(size)) do
    local count, start = 0, nil
    if (stream.kind == 'burials') == is_dying then
      count, start = unread(stream.key)
    end
    if count > 0 and (stream.priority == own or stream.name == 'woken:' .. PRIORITIES[1] .. ':' .. size) then
      local place = place_in(stream.key, start, me.gen)
      if place then
        add('ahead', ahead + place)
        return add('place', stream.kind)
      elseif stream.priority == own and count > looks then
        add('ahead', ahead + looks)
        return add('place', 'beyond')
      end
    end
    ahead = ahead + count
  end
  add('place', 'none')
end

-- How many tasks go before this one at a lock, and which is the first.
local function add_ahead(lock, me)
  local queue, ahead, first = queue_before(lock), 0, nil
  if lines and lines.takes_turns(lock, me) then
    ahead = lines.before(lock, me)
    first = ahead > 0 and lines.next_of(lock.counter, {all = 0, of = {}}) or nil
  else
    for _, range in ipairs(ranges_before(me)) do
      ahead = ahead + redis.call('ZCOUNT', queue, range[1], range[2])
      first = first or redis.call('ZRANGEBYSCORE', queue, range[1], range[2], 'LIMIT', 0, 1)[1]
    end
  end
  add('ahead', ahead)
  add('first', first and string.match(first, '^%S+'))
end

-- What refuses a parked task now. It may be another lock than the one that parked it.
local function add_refusal(me)
  local refusal = refusal_of(me)
  if not refusal then
    return
  end
  local lock = refusal.lock
  if lock.pause then
    return  -- reported for all states below
  end
  add('lock', lock.counter)
  add('kind', lock.kind)
  add('held', refusal.held and 1 or 0)
  add('impossible', refusal.impossible and 1 or 0)
  if lock.limiter then
    add('limit', lock.limit)
    add('items', lock.items)
    add('window', lock.window)
    if not refusal.impossible then
      add('used', lock.limit - free_places(lock))
      add('back', first_free(lock))
    end
  end
  add_ahead(lock, me)
  if refusal.held and not lock.windowed then
    local owners, count = owners_of(lock, most)
    add('holding', count)
    add('back', count == 0 and withheld_until(lock) or nil)
    add('holders', holder_rows(owners, lock))
  end
end

-- The first predecessor of a step that has not ended, by its place; nil if there is none.
local function first_missing(workflow, place)
  local missing, FEW = P .. 'm:' .. workflow .. ':' .. place, 500
  local after = {}
  for edge in string.gmatch(string.match(redis.call('HGET', P .. 'f:' .. workflow .. ':graph', place) or '', ' .*$') or '', '%S+') do
    after[#after + 1] = string.sub(edge, 2)
  end
  if #after > FEW then  -- any of them, so that the script stays short
    return redis.call('SRANDMEMBER', missing) or nil
  end
  for _, before in ipairs(after) do
    if redis.call('SISMEMBER', missing, before) == 1 then
      return before
    end
  end
  return nil
end

-- What a step that has not ended is doing. Steps that it added count as part of it. Returns the place of the step, or
-- of a step that it added; a row for people; 1 if it is blocked.
local function look_at(workflow, place)
  local step = workflow .. ':' .. place
  local record = read_record(step)
  if record.state then
    return place, {step, record.name or '', record.state}, record.blocked
  end
  local name = string.match(redis.call('HGET', P .. 'f:' .. workflow .. ':graph', place) or '', '^%S*')
  local added = redis.call('SRANDMEMBER', P .. 'j:' .. step)
  if added then
    return added, {step, name, 'done'}, true
  end
  return place, {step, name, has_edges_left(step) and 'followed' or 'lost'}
end

-- What a blocked step waits for.
local function add_blocked(record, workflow, place)
  local MOST_HOPS = 100
  local flow = read_fields(P .. 'f:' .. workflow, {'state', 'cancel'})
  add('workflow', workflow)
  add('workflow_state', flow.state)
  add('workflow_cancel', flow.cancel)
  if redis.call('SISMEMBER', P .. 'm:' .. workflow .. ':' .. place, '@' .. place) == 1 then
    return add('event', string.match(record.name or '', '^await:(.*)$'))
  end
  add('missing', redis.call('SCARD', P .. 'm:' .. workflow .. ':' .. place))
  local from, row, still_runs = first_missing(workflow, place), nil, true
  for hop = 1, MOST_HOPS do
    if not from or not still_runs then
      break
    end
    place, row, still_runs = look_at(workflow, from)
    if hop == 1 then
      add('before', row)
    end
    -- Continue with a step that it added, or with the predecessors of a blocked step.
    from = still_runs and (place ~= from and place or first_missing(workflow, place)) or nil
  end
  add('root', row)
end

epoch = read_fields(P .. 'epoch', {'withheld', 'lost'})
local record = read_record(id)
add('now', now)
add('offset', offset)
if not record.state or record.stream == 'hold' then
  local ended = redis.call('GET', P .. 'r:' .. id)
  if record.state then
    add('state', 'hold')
  elseif redis.call('EXISTS', P .. 'f:' .. id) == 1 then
    add('state', 'workflow')
  elseif ended then
    add('state', 'ended')
    add('ended', ended)
  elseif redis.call('EXISTS', P .. 'g:' .. id) == 1 then
    add('state', 'group')
  else
    return {}
  end
  return facts
end

for _, name in ipairs({'state', 'name', 'stream', 'error', 'blocker', 'cancel'}) do
  add(name, record[name])
end
add('step_of', record.workflow)
add('attempt', record.attempt)
add('crashes', record.crashes)
add('failed', record.state == 'dying' and redis.call('GET', P .. 'e:' .. id)
  or record.error and redis.call('LINDEX', P .. 'h:' .. id, -1) or '')
add('started', record.started)
add('handed', record.handed)
add('start_by', AT_REST[record.state] and string.match(record.start_by or '', '^%d+'))
local due = redis.call('ZSCORE', P .. 'tasks:delayed', id)
add('due', due and not record.blocked and tonumber(due))
if record.blocked then
  add_blocked(record, record.workflow or '', string.match(id, '[^:]*$'))
elseif record.state == 'queued' or record.state == 'waiting' then
  local pause = pause_of(record)
  add('paused', pause)
  add('pause', pause and redis.call('HGET', P .. 'paused', pause))
end
add_workers(size_of(record.stream or ''), record.name or '')
if record.owner then
  add_worker(record.owner)
elseif record.state == 'waiting' and record.places then
  add('parked', 1)
  add_refusal(load_waiter(id))
elseif record.state == 'queued' or record.state == 'dying' and not due then
  add_place(read_waiter(id))
end
return facts
