#!lua flags=allow-oom
-- lead: take or extend the scheduler's lease. The term grows with every change of leader; every script that a
-- leader calls checks it.
-- KEYS  prefix
-- ARGV  owner, ttl ms, info JSON, 'epoch|sequence' seen, lock ttl ms, 1 if the caller led at its last call
--       else 0
-- returns {the term, or '' if another process leads, epoch, its sequence, now µs, offset µs that is added to the
--       server's clock}
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch
local owner, ttl, info, seen, lock_ttl = ARGV[1], tonumber(ARGV[2]) * 1000, ARGV[3], ARGV[4], tonumber(ARGV[5])
local has_followed = ARGV[6] == '0'
local since, seq = current_epoch(seen, lock_ttl)
local leader = redis.call('HMGET', P .. 'leader', 'owner', 'term', 'expiry')
-- A lease with more time left than any lease can have is stale: the clock was set back while no leader corrected
-- it.
local left = (tonumber(leader[3] or '') or 0) - now
local alive = left > 0 and left <= math.max(ttl, 600000000)
-- After a loss of data let the former leader lead again, because it remembers what was lost. It calls within a
-- second; every other scheduler yields once.
local seen_epoch = tonumber(string.match(seen, '^%d+')) or 0
local yields = not alive and has_followed and seen_epoch > 0 and tonumber(since) > seen_epoch
if yields or alive and leader[1] ~= owner then  -- fault: two-leaders
  return {'', since, seq, digits(now), digits(offset)}
end
local term = leader[2]
if not alive or not tonumber(term or '') then
  -- Seed the term with the clock, so that it also grows across a loss of all data.
  term = digits(math.max((tonumber(redis.call('GET', P .. 'term') or '') or 0) + 1, now))
  redis.call('SET', P .. 'term', term)
end
redis.call('HSET', P .. 'leader', 'owner', owner, 'term', term,
  'expiry', digits(now + ttl), 'info', info)
seq = digits(redis.call('HINCRBY', P .. 'epoch', 'seq', 1))
return {term, since, seq, digits(now), digits(offset)}
