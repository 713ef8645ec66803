#!lua flags=allow-oom
-- group_seal: close a group after its last child was submitted. Fire the group at once if all children have ended,
-- or if it has none.
-- KEYS  prefix
-- ARGV  group, parent id or ''
-- returns the state, or '' if there is no such group
-- @include base wake record counting submitting index group
local gid, parent = ARGV[1], ARGV[2]
local key = P .. 'g:' .. gid
local state = redis.call('HGET', key, 'state')
if state == 'building' then
  redis.call('HSET', key, 'state', 'sealed')
  for _, suffix in ipairs({'', ':callback', ':on_failure', ':results', ':pending'}) do
    redis.call('PERSIST', key .. suffix)
  end
  list_group(gid)
  redis.call('SREM', P .. 'open:' .. parent, gid)
end
fire_if_complete(gid)  -- also if an earlier call was cut after it had sealed  -- fault: empty-group-never-fires
return redis.call('HGET', key, 'state') or ''
