#!lua flags=allow-oom
-- group_seal: all children are submitted; fire at once if all of them have ended (or are none).
-- KEYS  prefix
-- ARGV  group, parent id or ''
-- returns the state, or '' if there is no such group
-- @include base wake record submitting index group
local key = P .. 'g:' .. ARGV[1]
local state = redis.call('HGET', key, 'state')
if state == 'building' then
  redis.call('HSET', key, 'state', 'sealed')
  for _, suffix in ipairs({'', ':callback', ':on_failure', ':results', ':pending'}) do
    redis.call('PERSIST', key .. suffix)
  end
  list_group(ARGV[1])
  redis.call('SREM', P .. 'open:' .. ARGV[2], ARGV[1])
end
fire_if_complete(ARGV[1])  -- also if an earlier call was cut after it had sealed
return redis.call('HGET', key, 'state') or ''
