#!lua flags=allow-oom
-- advance: move logical time forward; only tests do this. Nothing live expires: the leases of the leader and of the
-- workers move along, and the locks of live workers and holds are renewed.
-- KEYS  prefix
-- ARGV  µs, ttl ms of locks that name none
-- returns the new logical time in µs
-- @include base wake limits mutexes locks each
local by, lock_ttl = tonumber(ARGV[1]), tonumber(ARGV[2])

-- Find the locks to renew before the step, because after it they would count as expired.
local kept = {}
each_record(function(id, record)
  local is_hold = record.state == 'held'
  if record.fence and (is_hold or record.state == 'running' and is_alive(record.owner)) then
    local locks = held_locks(lock_ttl, record)
    local owner = id .. '/' .. record.gen .. '/' .. record.fence
    if not lost_lock(locks, owner) then
      kept[#kept + 1] = {locks, owner}
    end
  end
end)

local workers = redis.call('ZRANGEBYSCORE', P .. 'workers', digits(now), '+inf', 'WITHSCORES')
for i = 1, #workers, 2 do
  redis.call('ZADD', P .. 'workers', digits(tonumber(workers[i + 1]) + by), workers[i])
end
local expiry = tonumber(redis.call('HGET', P .. 'leader', 'expiry') or '')
if expiry and expiry > now then
  redis.call('HSET', P .. 'leader', 'expiry', digits(expiry + by))
end
redis.call('SET', P .. 'clock', digits(offset + by))
redis.call('INCRBY', P .. 'clock:moved', digits(by))
now = now + by
for _, item in ipairs(kept) do
  renew_locks(item[1], item[2])
end
wake_promoter_for(now)
return digits(now)
