#!lua flags=allow-oom
-- fetch: hand tasks to a worker, in strict priority, woken ones first; take their locks or let
-- them wait. A worker that gets fewer than it asked for is put on the stack of idle workers.
-- KEYS  prefix
-- ARGV  worker, size, free slots, looks (entries to examine at most), lock ttl ms,
--       first delay µs of a refused task, longest delay µs
-- returns {1 if there may be more (looks ran out) else 0, n × row}; a row is (id, gen, fence,
--       state, attempts used, worker deaths, stream key, entry, envelope, locks, error document,
--       reason, generation in which it died); the last three only for dying tasks
-- @include base wake record rescue locks
local worker, size = ARGV[1], ARGV[2]
local free, looks = tonumber(ARGV[3]), tonumber(ARGV[4])
local lock_ttl, first_delay, longest_delay = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local taken = {0}
math.randomseed(tonumber(clock[2]))
local fence = math.max(tonumber(redis.call('GET', P .. 'fence') or '0'), now)

local function read(key, count)
  local reply = redis.pcall('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', count,
    'STREAMS', key, '>')
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'NOGROUP', 1, true) then
      error(reply.err)
    end
    -- First use, or Redis was emptied: id 0, so that nothing queued before is skipped.
    redis.call('XGROUP', 'CREATE', key, 'workers', '0', 'MKSTREAM')
    reply = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', count,
      'STREAMS', key, '>')
  end
  return reply and reply[1] and reply[1][2] or {}
end

-- Let a refused task wait: longer with each refusal, never using an attempt.
local function park(id, record, blocker)
  local refusals = tonumber(record[6] or '0')
  local wait = math.min(longest_delay, first_delay * 2 ^ math.min(refusals, 20))
  -- Spread, so that tasks refused together do not return together.
  wait = wait * (0.5 + math.random())
  redis.call('HSET', P .. 't:' .. id, 'state', 'waiting', 'refusals', refusals + 1,
    'blocker', string.sub(blocker, 1, 60))
  delay(id, now + wait)
end

local function hand_over(key, entry, id, gen, state, record, lines, document)
  local text = digits(fence)
  redis.call('HSET', P .. 't:' .. id, 'state', state, 'owner', worker, 'fence', text,
    'started', digits(now))
  taken[#taken + 1] = {id, gen, text, state, record[3] or '0', record[4] or '0',
    string.sub(key, #P + 1), entry, redis.call('GET', P .. 'b:' .. id) or '', lines,
    document, record[7] or '', record[8] or ''}
  free = free - 1
end

local function deliver(key, entry, id, gen, record)
  fence = fence + 1
  if record[1] == 'dying' then
    local document = redis.call('GET', P .. 'e:' .. id) or ''
    return hand_over(key, entry, id, gen, 'dying', record, '', document)
  end
  local lines = redis.call('GET', P .. 'l:' .. id) or ''
  if lines ~= '' then
    local owner = id .. '/' .. gen .. '/' .. digits(fence)
    local blocker = take_locks(parse_locks(lines, lock_ttl), owner)
    if blocker then
      park(id, record, blocker)
      return drop(key, entry)
    end
  end
  hand_over(key, entry, id, gen, 'running', record, lines, '')
end

local function examine(key, entry, fields)
  looks = looks - 1
  if #fields ~= 4 or fields[1] ~= 'id' or fields[3] ~= 'gen' then
    return quarantine(key, entry, fields, 'not a task pointer')
  end
  local id, gen = fields[2], fields[4]
  local record = redis.call('HMGET', P .. 't:' .. id, 'state', 'gen', 'attempt', 'deaths',
    'ticket', 'refusals', 'reason', 'died')
  if record[2] ~= gen or (record[1] ~= 'queued' and record[1] ~= 'dying') then
    return drop(key, entry)
  end
  deliver(key, entry, id, gen, record)
end

-- A delivery failed half way: free the locks that it took before, each that can be freed.
local function give_up(key, entry, fields, problem)
  local id, gen = fields[2], fields[4]
  local lines = redis.pcall('GET', P .. 'l:' .. id)
  if type(lines) == 'string' then
    for _, lock in ipairs(parse_locks(lines, lock_ttl)) do
      pcall(release_locks, {lock}, id .. '/' .. gen .. '/' .. digits(fence), false)
    end
  end
  rescue(key, entry, fields, problem)
end

for _, priority in ipairs({'realtime', 'normal', 'background'}) do
  for _, kind in ipairs({'woken', 'tasks'}) do
    local key = P .. kind .. ':' .. priority .. ':' .. size
    while free > 0 and looks > 0 do
      local wanted = math.min(free, looks)
      local entries = read(key, wanted)
      for _, item in ipairs(entries) do
        -- One broken record must not take along those that were read with it.
        local fine, problem = pcall(examine, key, item[1], item[2])
        if not fine then
          give_up(key, item[1], item[2], problem)
        end
      end
      if #entries < wanted then
        break
      end
    end
  end
end
redis.call('SET', P .. 'fence', digits(fence))
if free > 0 and looks <= 0 then
  taken[1] = 1
elseif free > 0 then
  redis.call('ZADD', P .. 'idle:' .. size, digits(now), worker)
else
  redis.call('ZREM', P .. 'idle:' .. size, worker)
end
return taken
