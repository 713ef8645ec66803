#!lua flags=allow-oom
-- presence: which tasks Redis knows, and of which epoch its data are: both at one instant.
-- KEYS  prefix
-- ARGV  sequence seen, lock ttl ms, ids …
-- returns {epoch, its sequence, n × (1 known: a record or a remembered result | 0)}
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch
local since, seq = current_epoch(tonumber(ARGV[1]), tonumber(ARGV[2]))
local answer = {since, seq}
for i = 3, #ARGV do
  answer[i] = redis.call('EXISTS', P .. 't:' .. ARGV[i], P .. 'r:' .. ARGV[i]) > 0 and 1 or 0
end
return answer
