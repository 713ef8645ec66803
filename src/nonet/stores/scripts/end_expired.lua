#!lua flags=allow-oom
-- end_expired: the leader ends tasks whose rows are in SQL now. Safe to repeat; what a worker has taken
-- meanwhile is left to it.
-- KEYS  prefix
-- ARGV  result ttl ms, dedup ttl ms, n × (id, gen, document, or '' to leave it to the workers)
-- returns the ids of those that were ended
-- @include base wake record submitting index group finish
local ttl, dedup, ended = tonumber(ARGV[1]), tonumber(ARGV[2]), {}

local function end_task(id, gen, document)
  local record = read_fields(P .. 't:' .. id, {'state', 'gen', 'stream', 'owner', 'reason', 'pointer', 'group',
    'opens', 'waited'})
  local is_ours = record.state == 'dying' and record.reason == 'capacity' and record.gen == gen
  if not is_ours or record.owner then
    return false
  end
  finish(id, record, 'expired', '0', document, ttl, dedup)
  -- Last: who reads a pointer to a task that is gone drops it.
  local key, entry = pointer_of(record)
  if key then
    redis.pcall('XDEL', P .. key, entry)
    redis.pcall('XACK', P .. key, 'workers', entry)
  end
  redis.call('ZREM', P .. 'tasks:delayed', id)
  redis.call('ZREM', P .. 'deadlines', id)
  return true
end

for i = 3, #ARGV, 3 do
  local id, gen, document = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if document == '' then
    redis.call('ZREM', P .. 'expired', id)
  else
    local fine, is_ended = pcall(end_task, id, gen, document)
    if fine and is_ended then
      redis.call('ZREM', P .. 'expired', id)
      ended[#ended + 1] = id
    end
  end
end
return ended
