#!lua flags=allow-oom
-- promote: move due tasks from the delayed set into their streams.
-- KEYS  prefix
-- ARGV  leader's term, or '' for a worker that helps out; batch; µs without a promotion after
--       by a leader after which workers help
-- returns {moved, µs until the next is due (0 more now, -1 none), allowed 1|0}
-- @include base wake record
local term, batch = ARGV[1], tonumber(ARGV[2])
if term ~= '' then
  local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
  if leader[1] ~= term or tonumber(leader[2]) <= now then
    return {0, -1, 0}
  end
  redis.call('SET', P .. 'promoted', digits(now))
elseif now - tonumber(redis.call('GET', P .. 'promoted') or '0') < tonumber(ARGV[3]) then
  return {0, -1, 0}
end

local key = P .. 'tasks:delayed'
local woken, moved = {}, 0

local function move(id)
  local record = redis.call('HMGET', P .. 't:' .. id, 'state', 'gen', 'stream')
  local state = record[1]
  if state == 'delayed' or state == 'waiting' or state == 'dying' then
    local gen = digits(tonumber(record[2]) + 1)
    -- Write first, remove last.
    enqueue(state == 'waiting' and 'woken' or 'tasks', id, record[3], gen)
    redis.call('HSET', P .. 't:' .. id, 'state', state == 'dying' and state or 'queued',
      'gen', gen)
    local size = size_of(record[3])
    woken[size] = (woken[size] or 0) + 1
    moved = moved + 1
  end
  redis.call('ZREM', key, id)
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', digits(now), 'LIMIT', 0, batch)) do
  -- One broken record or stream must not hold up the others.
  local fine, problem = pcall(move, id)
  if not fine then
    redis.pcall('HSET', P .. 't:' .. id, 'blocker', string.sub(reason_of(problem), 1, 60))
    redis.call('ZADD', key, digits(now + 60000000), id)
  end
end
for size, count in pairs(woken) do
  wake(size, count)
end
local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
return {moved, head[2] and math.max(0, tonumber(head[2]) - now) or -1, 1}
