-- lib/expiry: needs base, wake, record, limits, locks, index, group, finish, queues, refusal, waiting,
-- cancel, ending. What becomes of a task that nobody may start any more.

-- How long it had, for people: 0.5 s, 30 s.
local function seconds_of(us)
  return (string.gsub(string.format('%.1f', us / 1000000), '%.0$', '')) .. ' s'
end

-- One that belongs into SQL is dying until the leader, or a worker of its size, has written it there.
local function expire(id, record, ttl, dedup)
  local deadline, eligible = string.match(record.start_by, '^(%d+)|(.*)$')
  local span = seconds_of(tonumber(deadline) - (tonumber(ticket_of(record) or '') or now))
  local text = 'not started within ' .. span .. ' (start_by)'
  if eligible ~= '1' then
    local document = made_document(record.name or '', tonumber(record.attempt or '') or 0, text,
      'capacity')
    return end_waiting(id, record, 'expired', document, ttl, dedup)
  end
  leave_places(id, record)
  redis.call('HSET', P .. 't:' .. id, 'reason', 'capacity', 'died', record.gen, 'detail',
    string.sub(text, 1, 60))
  -- Before it is queued: its deadline is what leads back here if this is cut.
  redis.call('ZREM', P .. 'tasks:delayed', id)
  redis.call('ZADD', P .. 'expired', deadline, id)
  requeue(id, 'dying', record.stream, tonumber(record.gen), now)
  remove_pointers(id, record)
end

-- End a task that no worker has: somebody has cancelled it while it ran, or it is too late to start it.
local function end_early(id, ttl, dedup)
  local record = read_fields(P .. 't:' .. id, {'state', 'gen', 'stream', 'places', 'pointer', 'group',
    'opens', 'waited', 'name', 'attempt', 'ticket', 'cancel', 'start_by', 'v', 'unfit', 'suspect'})
  if newer_format(record) then
    error({err = newer_format(record)})
  end
  local is_waiting = is_cancellable(record)
  if is_waiting and record.cancel then
    end_waiting(id, record, 'cancelled', cancelled_document(record), ttl, dedup)
  elseif is_waiting and record.start_by then
    expire(id, record, ttl, dedup)
  else  -- it was started meanwhile, or is gone, perhaps by half
    if not record.state then
      redis.call('ZREM', P .. 'tasks:delayed', id)
    end
    redis.call('ZREM', P .. 'deadlines', id)
  end
end
