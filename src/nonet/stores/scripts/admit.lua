#!lua flags=allow-oom
-- admit: replace the locks of a running delivery; if one of the new locks is refused, release them all. A worker
-- calls this if a deploy since the submission has changed the locks that the task declares.
-- KEYS  prefix
-- ARGV  id, gen, fence, locks, lock ttl ms, epoch and sequence seen
-- returns {'OK', marks for held_locks()} | {'STALE'} | {'REFUSED', name of the lock}
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch wake record limits mutexes locks fitting pauses queues refusal waiting
local id, gen, fence, lines, lock_ttl, seen = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local owner = id .. '/' .. gen .. '/' .. fence
current_epoch(seen, lock_ttl)
local record = read_record(id)
if record.gen ~= gen or record.fence ~= fence then
  return {'STALE'}
end
give_back(release_locks(held_locks(lock_ttl, record), owner, false))
local me = new_waiter(id, record, parse_locks(lines, lock_ttl, are_limits_set() and record or nil))
local refusal = refusal_of(me)
local held = refusal and '' or take_locks(me, owner)
change(id, {locks = lines, held = held})
offer_all()
if refusal then
  return {'REFUSED', refusal.lock.counter}
end
return {'OK', held}
