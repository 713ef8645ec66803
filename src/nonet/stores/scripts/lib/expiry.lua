-- lib/expiry: needs base, wake, record, limits, locks, index, group, finish, queues, refusal, waiting,
-- cancel, ending. Ends tasks that must not start any more.

-- A duration as text: 0.5 s, 30 s.
local function seconds_of(us)
  return (string.gsub(string.format('%.1f', us / 1000000), '%.0$', '')) .. ' s'
end

-- A task that gets a row in SQL is dying until the leader, or a worker of its size, has written the row.
local function expire(id, record)
  local deadline, eligible = string.match(record.start_by, '^(%d+)|(.*)$')
  local span = seconds_of(tonumber(deadline) - (tonumber(ticket_of(record) or '') or now))
  local event = record.workflow and string.match(record.name or '', '^await:(.*)$')
  local text = event and 'event ' .. event .. ' has not come within ' .. span
    or 'not started within ' .. span .. ' (start_by)'
  if eligible ~= '1' then
    local document = made_document(record.name or '', tonumber(record.attempt or '') or 0, text,
      'capacity')
    return end_waiting(id, record, 'expired', document)
  end
  leave_places(id, record)
  change(id, {reason = 'capacity', died = record.gen, detail = string.sub(text, 1, 60)})
  -- Write the entry in `expired` before the task is queued. If the script is cut in between, the deadline leads
  -- here again.
  redis.call('ZREM', P .. 'tasks:delayed', id)
  redis.call('ZADD', P .. 'expired', deadline, id)
  requeue(id, 'dying', record.stream, tonumber(record.gen), now)
  drop_pointers(id, record)
end

-- End a task that no worker has: it was cancelled while it ran, or its deadline has passed.
local function end_early(id)
  local record = read_record(id)
  if newer_format(record) then
    error({err = newer_format(record)})
  end
  local is_waiting = is_cancellable(record)
  if is_waiting and record.cancel then
    end_waiting(id, record, 'cancelled', cancelled_document(record))
  elseif is_waiting and record.start_by then
    expire(id, record)
  else  -- it was started meanwhile, or its record is gone
    if not record.state then
      redis.call('ZREM', P .. 'tasks:delayed', id)
    end
    redis.call('ZREM', P .. 'deadlines', id)
  end
end
