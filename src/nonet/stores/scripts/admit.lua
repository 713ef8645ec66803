#!lua flags=allow-oom
-- admit: replace the locks of a running delivery by others, all or none. Needed when the
-- worker's code computes other locks than the submitter's did (a deploy in between).
-- KEYS  prefix
-- ARGV  id, gen, fence, locks, lock ttl ms
-- returns {'OK'} | {'STALE'} | {'REFUSED', name of the lock}
-- @include base locks
local id, gen, fence = ARGV[1], ARGV[2], ARGV[3]
local record = redis.call('HMGET', P .. 't:' .. id, 'gen', 'fence')
if record[1] ~= gen or record[2] ~= fence then
  return {'STALE'}
end
local owner = id .. '/' .. gen .. '/' .. fence
release_locks(parse_locks(redis.call('GET', P .. 'l:' .. id) or '', tonumber(ARGV[5])), owner, false)
redis.call('SET', P .. 'l:' .. id, ARGV[4])
local blocker = take_locks(parse_locks(ARGV[4], tonumber(ARGV[5])), owner)
if blocker then
  return {'REFUSED', blocker}
end
return {'OK'}
