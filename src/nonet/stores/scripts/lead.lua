#!lua flags=allow-oom
-- lead: take or extend the scheduler's lease. The term grows with every change of leader and
-- is checked by each script that a leader calls.
-- KEYS  prefix
-- ARGV  owner, ttl ms, what the leader says of itself
-- returns the term, or '' if somebody else leads
-- @include base
local leader = redis.call('HMGET', P .. 'leader', 'owner', 'term', 'expiry')
local alive = leader[1] and tonumber(leader[3]) > now
if alive and leader[1] ~= ARGV[1] then
  return ''
end
local term = leader[2]
if not alive then
  -- Seeded by the clock, so that it also grows over a loss of all data.
  term = digits(math.max(tonumber(redis.call('GET', P .. 'term') or '0') + 1, now))
  redis.call('SET', P .. 'term', term)
end
redis.call('HSET', P .. 'leader', 'owner', ARGV[1], 'term', term,
  'expiry', digits(now + tonumber(ARGV[2]) * 1000), 'info', ARGV[3])
return term
