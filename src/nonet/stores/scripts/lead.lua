#!lua flags=allow-oom
-- lead: take or extend the scheduler's lease. The term grows with every change of leader and
-- is checked by each script that a leader calls.
-- KEYS  prefix
-- ARGV  owner, ttl ms, what the leader says of itself, epoch and sequence seen, lock ttl ms, 1 if the
--       caller led when it last looked, else 0
-- returns {the term, or '' if somebody else leads, epoch, its sequence, now µs, µs of it that are
--       added to the server's clock}
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch
local ttl = tonumber(ARGV[2]) * 1000
local since, seq = current_epoch(ARGV[4], tonumber(ARGV[5]))
local leader = redis.call('HMGET', P .. 'leader', 'owner', 'term', 'expiry')
-- A lease that ends later than any can: the clock was set back while nobody was there to notice.
local left = (tonumber(leader[3] or '') or 0) - now
local alive = left > 0 and left <= math.max(ttl, 600000000)
-- Redis has lost its data since the caller looked: whoever led until then shall lead again, because
-- it remembers what is lost. It looks within a second; the others look again after that.
local seen = tonumber(string.match(ARGV[4], '^%d+')) or 0
local yields = not alive and ARGV[6] == '0' and seen > 0 and tonumber(since) > seen
if yields or alive and leader[1] ~= ARGV[1] then
  return {'', since, seq, digits(now), digits(offset)}
end
local term = leader[2]
if not alive or not tonumber(term or '') then
  -- Seeded by the clock, so that it also grows over a loss of all data.
  term = digits(math.max((tonumber(redis.call('GET', P .. 'term') or '') or 0) + 1, now))
  redis.call('SET', P .. 'term', term)
end
redis.call('HSET', P .. 'leader', 'owner', ARGV[1], 'term', term,
  'expiry', digits(now + ttl), 'info', ARGV[3])
seq = digits(redis.call('HINCRBY', P .. 'epoch', 'seq', 1))
return {term, since, seq, digits(now), digits(offset)}
