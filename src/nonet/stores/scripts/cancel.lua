#!lua flags=allow-oom
-- cancel: end tasks that do not run, without executing them. One that runs, or waits for SQL, stays.
-- KEYS  prefix
-- ARGV  result ttl ms, dedup ttl ms, 1 if unknown ids are those of durable tasks in SQL else 0,
--       n × (id, document: its result)
-- returns n × the state of the task now: cancelled, also if it was before; '' if it is unknown
-- @include base wake record limits locks index group finish pauses queues refusal waiting cancel
local ttl, dedup, is_in_sql = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'

local function cancel(id, document)
  local record = read_fields(P .. 't:' .. id, {'state', 'stream', 'places', 'pointer', 'group',
    'opens', 'waited'})
  if is_cancellable(record) then
    cancel_task(id, record, document, ttl, dedup)
    return 'cancelled'
  elseif record.state and record.stream ~= 'hold' then
    return record.state
  end
  local ended = redis.call('GETRANGE', P .. 'r:' .. id, 0, 63)
  if ended == '' and is_in_sql then
    -- Whoever hands it over at this moment finds that it has ended.
    finish(id, {}, 'cancelled', '0', document, ttl, dedup)
    return 'cancelled'
  end
  return string.match(ended, '^[^|]*')
end

local answer = {}
for i = 4, #ARGV, 2 do
  answer[#answer + 1] = cancel(ARGV[i], ARGV[i + 1])
end
offer_all()
return answer
