#!lua flags=allow-oom
-- presence: read at one instant which tasks Redis knows, its epoch, the published configuration, and the
-- orders of a worker.
-- KEYS  prefix
-- ARGV  'epoch|sequence' seen, lock ttl ms, worker or '', ids …
-- returns {epoch, its sequence, version of the configuration or '', {n × (id, gen, who and why)}: tasks to
--       cancel, or with an empty id the order to drain, n × (2 live: it has a record | 1 ended: it is remembered | 0)}
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch
local seen, lock_ttl, worker, FIRST = ARGV[1], tonumber(ARGV[2]), ARGV[3], 4
local since, seq = current_epoch(seen, lock_ttl)
local version = redis.call('HGET', P .. 'config', 'version')

-- An order is repeated while the worker has the task, or is registered: a reply may be lost.
local function orders_of()
  local key, orders = P .. 'orders:' .. worker, {}
  local drain = redis.call('HGET', P .. 'w:' .. worker, 'drain')
  if drain then
    orders = {'', '', drain}
  end
  for _, id in ipairs(redis.call('SMEMBERS', key)) do
    local record = read_record(id)
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

local answer = {since, seq, version or '', worker ~= '' and orders_of() or {}}
records.load({unpack(ARGV, FIRST)})
for i = FIRST, #ARGV do
  answer[#answer + 1] = records.has(ARGV[i]) and 2 or redis.call('EXISTS', P .. 'r:' .. ARGV[i])
end
return answer
