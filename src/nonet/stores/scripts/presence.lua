#!lua flags=allow-oom
-- presence: which tasks Redis knows, of which epoch its data are, and which configuration is published:
-- all at one instant.
-- KEYS  prefix
-- ARGV  epoch and sequence seen, lock ttl ms, ids …
-- returns {epoch, its sequence, version of the configuration or '', n × (2 live: it has a record | 1 ended: it is remembered | 0)}
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch
local since, seq = current_epoch(ARGV[1], tonumber(ARGV[2]))
local version = redis.pcall('HGET', P .. 'config', 'version')
local answer = {since, seq, type(version) == 'string' and version or ''}
for i = 3, #ARGV do
  local known = redis.call('EXISTS', P .. 't:' .. ARGV[i]) * 2
  if known == 0 then
    known = redis.call('EXISTS', P .. 'r:' .. ARGV[i])
  end
  answer[i + 1] = known
end
return answer
