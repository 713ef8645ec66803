#!lua flags=allow-oom
-- presence: which tasks Redis knows, of which epoch its data are, which configuration is published, and
-- what a worker is to cancel: all at one instant.
-- KEYS  prefix
-- ARGV  epoch and sequence seen, lock ttl ms, worker or '', ids …
-- returns {epoch, its sequence, version of the configuration or '', {n × (id, gen, who and why)}: what is to
--       be cancelled, n × (2 live: it has a record | 1 ended: it is remembered | 0)}
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch
local since, seq = current_epoch(ARGV[1], tonumber(ARGV[2]))
local version = redis.pcall('HGET', P .. 'config', 'version')

-- Told again and again while the worker has it: a reply may be lost.
local function orders_of(worker)
  local key, orders = P .. 'orders:' .. worker, {}
  local ids = redis.pcall('SMEMBERS', key)
  for _, id in ipairs(ids.err and {} or ids) do
    local record = read_fields(P .. 't:' .. id, {'owner', 'gen', 'state', 'cancel'})
    if record.owner == worker and record.state == 'running' and record.cancel then
      orders[#orders + 1] = id
      orders[#orders + 1] = record.gen
      orders[#orders + 1] = record.cancel
    else
      redis.call('SREM', key, id)
    end
  end
  return orders
end

local answer = {since, seq, type(version) == 'string' and version or '',
  ARGV[3] ~= '' and orders_of(ARGV[3]) or {}}
for i = 4, #ARGV do
  local known = redis.call('EXISTS', P .. 't:' .. ARGV[i]) * 2
  if known == 0 then
    known = redis.call('EXISTS', P .. 'r:' .. ARGV[i])
  end
  answer[#answer + 1] = known
end
return answer
