#!lua flags=allow-oom
-- unhold: release the locks of a hold, or stop waiting for them.
-- KEYS  prefix
-- ARGV  id, lock ttl ms
-- returns OK
-- @include base wake record limits mutexes locks fitting pauses queues refusal waiting
local id, lock_ttl = ARGV[1], tonumber(ARGV[2])
local record = read_record(id)
if record.state == 'held' then
  local locks = held_locks(lock_ttl, record)
  give_back(release_locks(locks, id .. '/0/' .. record.fence, true))
elseif record.state then
  forget_hold(load_waiter(id))
end
records.drop({id})
offer_all()
return 'OK'
