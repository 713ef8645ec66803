#!lua flags=allow-oom
-- take_over: requeue the tasks of a dead worker, and release its locks without waiting for its leases. The worker
-- and all its child processes must be dead. (Locks of code that outlived its attempt expire by their TTL.)
-- KEYS  prefix
-- ARGV  keeping, worker, size, entries to look at, crash limit, lock ttl ms, who reports its death
-- returns {1 if there may be more, else 0 and it is forgotten, the ids of tasks that were queued again or have ended}
-- @include base wake streams record limits mutexes locks fitting pauses queues refusal waiting rescue
-- @defer counting submitting index group keeping finish ending workflow lost take_back
-- @include pending events forget naming deliveries deaths
local worker, size, most, limit = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local lock_ttl, who = tonumber(ARGV[6]), ARGV[7]
local left, taken = most, {}

local function take(id, gen)
  local record = read_record(id)
  if record.gen == gen and record.owner == worker and record.state == 'running' then
    local locks = held_locks(lock_ttl, record)
    give_back(release_locks(locks, id .. '/' .. gen .. '/' .. record.fence, true))  -- fault: takeover-keeps-locks
  end
  local is_taken = take_back(id, gen, limit)
  taken[#taken + 1] = is_taken and id or nil
  return is_taken
end

for _, stream in ipairs(streams_of(size)) do
  for _, item in ipairs(left > 0 and pending_in(stream.key, '-', '+', left, worker) or {}) do
    see_to(stream.key, item[1], take)
    left = left - 1
  end
end
offer_all()
if #taken > 0 then
  log_death(who, worker, taken, #taken)
end
return {left > 0 and forget(worker) and 0 or 1, unpack(taken)}
