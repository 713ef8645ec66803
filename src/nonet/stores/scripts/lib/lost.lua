-- lib/lost: needs base, wake, record, index, group, finish, ending. A delivery that nobody has any
-- more goes back into its queue, or ends, if somebody has cancelled it.

-- The worker of a task has died while it ran: the task is a suspect from now on. If it already was
-- one, and no other suspect ran there, it has crashed: its policy is asked before it runs again (judge).
-- Returns how many crashes it has; 0 if others may be to blame.
local function blame(id, record)
  local key, accused = P .. 't:' .. id, P .. 'accused:' .. (record.owner or '')
  redis.call('HINCRBY', key, 'deaths', 1)
  if redis.call('SISMEMBER', accused, id) == 1 and redis.call('SCARD', accused) == 1 then
    redis.call('HSET', key, 'judge', 1)
    return redis.call('HINCRBY', key, 'crashes', 1)
  end
  redis.call('HINCRBY', key, 'suspect', 1)
  return 0
end

-- Queue again what is in nobody's hands. limit: of crashes, beyond which the task is not executed
-- again. Returns whether it was, or has ended; gen is that of the pointer to it. ttl and dedup are those
-- of finish().
local function take_back(id, gen, limit, ttl, dedup)
  local key = P .. 't:' .. id
  local record = read_fields(key, {'gen', 'state', 'stream', 'owner', 'name', 'attempt',
    'cancel', 'group', 'opens', 'waited', 'unique', 'start_by', 'v'})
  local state, is_newer = record.state, newer_format(record) ~= nil
  if record.gen ~= gen or state ~= 'queued' and state ~= 'running' and state ~= 'dying' then
    return false
  end
  if record.cancel and state == 'running' and not is_newer then
    end_cancelled(id, record, '0', ttl, dedup)  -- a settle of its late worker is no repetition
    return true
  end
  -- queued: a fetch was cut short after it had read the entry, and nobody has executed it.
  if state == 'running' then
    local crashes = blame(id, record)
    end_of_wait(id, record)  -- for all we know it was started
    state = 'queued'
    if crashes >= limit and not is_newer then
      state = 'dying'
      redis.call('HSET', key, 'reason', 'worker-lost', 'died', gen)
    end
  end
  -- Its locks stay until they expire: their old owner may still be alive.
  requeue(id, state, record.stream, tonumber(gen), now)
  return true
end
