#!lua flags=allow-oom
-- cancel: end tasks that do not run, and order the workers of running tasks to cancel them. A task that waits for
-- SQL stays.
-- KEYS  prefix
-- ARGV  keeping, 1 if unknown ids are durable tasks in SQL else 0, who and why for
--       running tasks, or '' to leave them alone; n × (id, document: its result)
-- returns n × the state of the task now: cancelled, also if it was before; cancelling: its worker is notified,
--       or the next one that can read its newer format; '' if it is unknown
-- @include base wake record submitting limits locks index group finish pauses queues refusal waiting cancel
local is_in_sql, text, FIRST, ONE_HOUR = ARGV[2] == '1', ARGV[3], 4, 3600000

-- Order a running task to be cancelled. It is never executed again. A later order does not replace the reason. Its
-- worker polls these orders every second.
local function order(id, record)
  redis.call('HSETNX', P .. 't:' .. id, 'cancel', string.sub(text, 1, 60))
  if record.state == 'running' then
    local orders = P .. 'orders:' .. (record.owner or '')
    redis.call('SADD', orders, id)
    redis.call('PEXPIRE', orders, ONE_HOUR)
  elseif record.state ~= 'queued' then  -- a newer format: the next newer worker that reads it ends it
    delay(id, now)
  end
  return 'cancelling'
end

local function cancel(id, document)
  local record = read_record(id)
  if is_cancellable(record) then
    end_waiting(id, record, 'cancelled', document)
    return 'cancelled'
  elseif text ~= '' and (record.state == 'running' or AT_REST[record.state] and newer_format(record)) then
    return order(id, record)
  elseif record.state and record.stream ~= 'hold' then
    return record.state
  end
  local ended = redis.call('GETRANGE', P .. 'r:' .. id, 0, 63)
  if ended == '' and is_in_sql then
    -- Store the end although Redis does not know the task: a relay may be submitting it at this moment.
    finish(id, {}, 'cancelled', '0', document)
    return 'cancelled'
  end
  return string.match(ended, '^[^|]*')
end

local answer = {}
for i = FIRST, #ARGV, 2 do
  answer[#answer + 1] = cancel(ARGV[i], ARGV[i + 1])
end
offer_all()
return answer
