#!lua flags=no-writes
-- measure: read the figures of a namespace at one instant.
-- KEYS  prefix
-- ARGV  how far ahead (µs) tasks of the delayed set are read one by one, how many at most
-- returns {now µs, {n × (stream, depth, delivered, age µs of the oldest undelivered entry)}, {entries of the
--       delayed set, those overdue, waiting, dying, with a reservation, dying tasks in streams, 1 if the three numbers
--       before are estimates, steps of workflows that wait for others}, {n × field, value} of epoch, leader, config,
--       counters, active and desired, {registered workers …}, last term or '', number of pauses, entries of the
--       quarantine, {n × (state of workflows that are kept until they are resumed, or have not ended; their number)},
--       1 if accepted tasks are counted else 0}
-- @include base unread listed
local ahead, looks = tonumber(ARGV[1]), tonumber(ARGV[2])
local OVERDUE = 1000000

local function some_of(key, names)
  local found, values = {}, redis.call('HMGET', key, unpack(names))
  for i, name in ipairs(names) do
    found[#found + 1] = name
    found[#found + 1] = values[i] or ''
  end
  return found
end

local streams, buried, wall = {}, 0, clock[1] * 1000000 + clock[2]
for _, priority in ipairs(PRIORITIES) do
  for _, size in ipairs(SIZES) do
    local depth, unread_ones, oldest = 0, 0, 0
    for _, kind in ipairs(STREAM_KINDS) do
      local key = P .. kind .. ':' .. priority .. ':' .. size
      local has = redis.call('XLEN', key)
      if kind == 'burials' then  -- dying tasks, which take no slot
        buried = buried + has
      elseif has > 0 then
        local count, start = unread(key)
        depth, unread_ones = depth + has, unread_ones + count
        local first = count > 0 and redis.call('XRANGE', key, start, '+', 'COUNT', 1)[1]
        local at = first and tonumber(string.match(first[1], '^%d+')) * 1000
        oldest = math.max(oldest, at and wall - at or 0)
      end
      local count = listed(kind, priority .. ':' .. size)
      depth, unread_ones = depth + count, unread_ones + count
      for _, list in ipairs(next_lists(kind, priority .. ':' .. size)) do
        oldest = math.max(oldest, now - since_in(list))
      end
    end
    streams[#streams + 1] = {priority .. ':' .. size, depth, depth - unread_ones, digits(oldest)}
  end
end

-- Blocked steps have this time, see lib/workflow.
local delayed, SAMPLES, BLOCKED_UNTIL = P .. 'tasks:delayed', 20, 7258118400000000
local blocked = redis.call('ZCOUNT', delayed, BLOCKED_UNTIL, BLOCKED_UNTIL)

-- Tasks that wait for locks or SQL, or were woken, are checked again soon, so they are among the first. If
-- there are very many, their numbers are estimated from samples that are spread over all of the first.
local soon = redis.call('ZCOUNT', delayed, '-inf', digits(now + ahead))
local is_estimate, seen, states = soon > looks, 0, {}
local function sample(first, count)
  local ids = redis.call('ZRANGE', delayed, first, first + count - 1)
  records.load(ids)
  for _, id in ipairs(ids) do
    local state = read_record(id).state or ''
    seen, states[state] = seen + 1, (states[state] or 0) + 1
  end
end
if not is_estimate then
  sample(0, soon)
else
  local count = math.floor(looks / SAMPLES)
  for i = 0, SAMPLES - 1 do
    sample(math.floor(i * (soon - count) / (SAMPLES - 1)), count)
  end
end
local workflows = {}
for _, state in ipairs({'building', 'running', 'resuming', 'failed'}) do
  workflows[#workflows + 1] = state
  workflows[#workflows + 1] = redis.call('ZCARD', P .. 'workflows:' .. state)
end

local function number_of(state)
  return math.floor((states[state] or 0) * soon / math.max(1, seen) + 0.5)
end

return {
  digits(now), streams,
  {redis.call('ZCARD', delayed), redis.call('ZCOUNT', delayed, '-inf', digits(now - OVERDUE)),
    number_of('waiting'), number_of('dying'), number_of('queued'), buried, is_estimate and 1 or 0, blocked},
  some_of(P .. 'epoch', {'since'}), some_of(P .. 'leader', {'owner', 'expiry'}),
  some_of(P .. 'config', {'version', 'at', 'problem'}), redis.call('HGETALL', P .. 'counters'),
  redis.call('HGETALL', P .. 'active'), redis.call('HGETALL', P .. 'desired'),
  redis.call('ZRANGEBYSCORE', P .. 'workers', digits(now), '+inf'),
  redis.call('GET', P .. 'term') or '', redis.call('HLEN', P .. 'paused'), redis.call('XLEN', P .. 'quarantine'),
  workflows, marks[5] and 1 or 0,
}
