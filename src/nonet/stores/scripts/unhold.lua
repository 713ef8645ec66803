#!lua flags=allow-oom
-- unhold: release the locks of a hold, or stop waiting for them.
-- KEYS  prefix
-- ARGV  id, lock ttl ms
-- returns OK
-- @include base wake record limits mutexes locks fitting pauses queues refusal waiting
local id, lock_ttl = ARGV[1], tonumber(ARGV[2])
local key = P .. 't:' .. id
local record = read_fields(key, {'state', 'fence', 'held'})
if record.state == 'held' then
  local lines = redis.call('GET', P .. 'l:' .. id) or ''
  local locks = held_locks(lines, lock_ttl, record)
  give_back(release_locks(locks, id .. '/0/' .. record.fence, true))
elseif record.state then
  forget_hold(load_waiter(id))
end
redis.call('DEL', key, P .. 'l:' .. id)
offer_all()
return 'OK'
