-- lib/lost: needs base, wake, record, index, group, finish, ending. Requeues the task of a lost delivery, or
-- ends it if it was cancelled.

-- The worker of a task died while the task ran: the task becomes a suspect. If it already was a suspect, and
-- the only one that ran there, it counts as a crash of this task, and its policy is asked before it runs again
-- (judge). Returns the number of crashes; 0 if other tasks may be to blame.
local function blame(id, record)
  local accused = P .. 'accused:' .. (record.owner or '')
  records.raise(id, 'deaths')  -- fault: deaths-uncounted
  if redis.call('SISMEMBER', accused, id) == 1 and redis.call('SCARD', accused) == 1 then  -- fault: innocent-blamed
    change(id, {judge = 1})
    return records.raise(id, 'crashes')
  end
  records.raise(id, 'suspect')
  return 0
end

-- Queue a task again that no worker has. limit: after so many crashes it is not executed again. gen: of the
-- pointer to the task. Returns whether the task was queued or has ended.
local function take_back(id, gen, limit)
  local record = read_record(id)
  local state, is_newer = record.state, newer_format(record) ~= nil
  if record.gen ~= gen or state ~= 'queued' and state ~= 'running' and state ~= 'dying' then
    return false
  end
  if record.cancel and state == 'running' and not is_newer then
    end_cancelled(id, record, '0')  -- fence 0: a late settle by its worker is stale
    return true
  end
  -- queued: a fetch was cut after it had read the entry, and the task was not executed.
  if state == 'running' then
    local crashes = blame(id, record)
    end_of_wait(id, record)  -- it may have been started
    state = 'queued'
    if crashes >= limit and not is_newer then  -- fault: crash-limit-ignored
      state = 'dying'
      change(id, {reason = 'worker-lost', died = gen})
    end
  end
  -- Its locks stay until they expire: their old owner may still be alive.
  requeue(id, state, record.stream, tonumber(gen), now)
  return true
end
