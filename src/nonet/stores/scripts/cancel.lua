#!lua flags=allow-oom
-- cancel: end tasks without executing them. That of one that runs is an order to its worker; one that
-- waits for SQL stays.
-- KEYS  prefix
-- ARGV  result ttl ms, dedup ttl ms, 1 if unknown ids are those of durable tasks in SQL else 0,
--       who and why of those that run, or '' to leave them alone; n × (id, document: its result)
-- returns n × the state of the task now: cancelled, also if it was before; cancelling: its worker is
--       told, or the next one that can read its newer format; '' if it is unknown
-- @include base wake record submitting limits locks index group finish pauses queues refusal waiting cancel
local ttl, dedup, is_in_sql = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'

local text, ONE_HOUR = ARGV[4], 3600000

-- From here on it is never executed again; the first reason stands. The worker looks once a second.
local function order(id, record)
  redis.call('HSETNX', P .. 't:' .. id, 'cancel', string.sub(text, 1, 60))
  if record.state == 'running' then
    local orders = P .. 'orders:' .. (record.owner or '')
    redis.call('SADD', orders, id)
    redis.call('PEXPIRE', orders, ONE_HOUR)
  elseif record.state ~= 'queued' then  -- of a newer format: whoever reads it ends it, soon
    delay(id, now)
  end
  return 'cancelling'
end

local function cancel(id, document)
  local record = read_fields(P .. 't:' .. id, {'state', 'gen', 'stream', 'places', 'pointer', 'group',
    'opens', 'waited', 'owner', 'v', 'name', 'unfit', 'suspect'})
  if is_cancellable(record) then
    cancel_task(id, record, document, ttl, dedup)
    return 'cancelled'
  elseif text ~= '' and (record.state == 'running' or AT_REST[record.state] and newer_format(record)) then
    return order(id, record)
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
for i = 5, #ARGV, 2 do
  answer[#answer + 1] = cancel(ARGV[i], ARGV[i + 1])
end
offer_all()
return answer
