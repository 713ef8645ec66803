#!lua flags=allow-oom
-- admit: replace the locks of a running delivery by others, all or none. Needed when the
-- worker's code computes other locks than the submitter's did (a deploy in between).
-- KEYS  prefix
-- ARGV  id, gen, fence, locks, lock ttl ms, epoch and sequence seen
-- returns {'OK', marks of the limiters that hold} | {'STALE'} | {'REFUSED', name of the lock}
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch wake record limits locks pauses queues refusal waiting
local id, gen, fence, lock_ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5])
local key, owner = P .. 't:' .. id, id .. '/' .. gen .. '/' .. fence
current_epoch(ARGV[6], lock_ttl)
local record = read_fields(key, {'gen', 'state', 'fence', 'stream', 'ticket', 'name', 'held'})
if record.gen ~= gen or record.fence ~= fence then
  return {'STALE'}
end
local lines = redis.call('GET', P .. 'l:' .. id) or ''
local held_before = held_locks(lines, lock_ttl, record.name, record.held or '')
give_back(release_locks(held_before, owner, false))
if ARGV[4] ~= '' then
  redis.call('SET', P .. 'l:' .. id, ARGV[4])
else
  redis.call('DEL', P .. 'l:' .. id)
end
local task = are_limits_set() and record.name or ''
local me = new_waiter(id, record, parse_locks(ARGV[4], lock_ttl, task))
local refusal = refusal_of(me)
local held = refusal and '' or take_locks(me, owner)
redis.call('HSET', key, 'held', held)
offer_all()
if refusal then
  return {'REFUSED', refusal.lock.counter}
end
return {'OK', held}
