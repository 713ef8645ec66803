#!lua flags=allow-oom
-- renew: one beat of a watchdog: the worker's registration, the lease of every delivery it
-- holds, and all their locks.
-- KEYS  prefix
-- ARGV  worker or '', worker ttl ms, lock ttl ms, what the worker says of itself,
--       n × (id, gen, fence, stream key or '' for a hold, entry)
-- returns id/gen of each that is lost
-- @include base locks
local worker, worker_ttl, lock_ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local lost = {}

local function renew(id, gen, fence, stream_key, entry)
  local lines = redis.call('GET', P .. 'l:' .. id) or ''
  if stream_key == '' then
    if lines == '' then
      return false
    end
    redis.call('PEXPIRE', P .. 'l:' .. id, lock_ttl * 2)
  else
    local record = redis.call('HMGET', P .. 't:' .. id, 'gen', 'fence', 'owner', 'state')
    if record[1] ~= gen or record[2] ~= fence or record[3] ~= worker then
      return false
    end
    redis.call('XCLAIM', P .. stream_key, 'workers', worker, 0, entry, 'JUSTID')
    if record[4] == 'dying' then
      return true
    end
  end
  local locks = parse_locks(lines, lock_ttl)
  local owner = id .. '/' .. gen .. '/' .. fence
  if lost_lock(locks, owner) then
    return false
  end
  renew_locks(locks, owner)
  return true
end

if worker ~= '' then
  redis.call('ZADD', P .. 'workers', digits(now + worker_ttl * 1000), worker)
  redis.call('HSET', P .. 'w:' .. worker, 'info', ARGV[4], 'beat', digits(now))
  redis.call('PEXPIRE', P .. 'w:' .. worker, worker_ttl * 10)
end
for i = 5, #ARGV, 5 do
  -- A key of the wrong type costs its own lease, not the whole beat.
  local fine, kept = pcall(renew, ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
  if not (fine and kept) then
    lost[#lost + 1] = ARGV[i] .. '/' .. ARGV[i + 1]
  end
end
return lost
