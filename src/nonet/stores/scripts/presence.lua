#!lua flags=allow-oom
-- presence: which tasks Redis knows, and of which epoch its data are: both at one instant.
-- KEYS  prefix
-- ARGV  epoch and sequence seen, lock ttl ms, ids …
-- returns {epoch, its sequence, n × (2 live: it has a record | 1 ended: it is remembered | 0)}
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch
local since, seq = current_epoch(ARGV[1], tonumber(ARGV[2]))
local answer = {since, seq}
for i = 3, #ARGV do
  answer[i] = redis.call('EXISTS', P .. 't:' .. ARGV[i]) * 2
  if answer[i] == 0 then
    answer[i] = redis.call('EXISTS', P .. 'r:' .. ARGV[i])
  end
end
return answer
