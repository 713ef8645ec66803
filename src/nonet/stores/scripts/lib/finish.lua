-- lib/finish: needs base, wake, record, group. The one way to a terminal state.

local function tell_waiters(id)
  for _, client in ipairs(redis.call('ZRANGE', P .. 'waiters:' .. id, 0, -1)) do
    redis.call('RPUSH', P .. 'wake:' .. client, id)
    redis.call('PEXPIRE', P .. 'wake:' .. client, 10000)
  end
  redis.call('DEL', P .. 'waiters:' .. id)
end

-- End a task: remember its result (or at least its id), tell its group and whoever waits.
-- record has the fields group, opens and waited; ttl and dedup are milliseconds; doc is opaque.
local function finish(id, record, state, fence, doc, ttl, dedup)
  local value = state .. '|' .. fence .. '|'
  if ttl > 0 then
    redis.call('SET', P .. 'r:' .. id, value .. doc, 'PX', math.max(ttl, dedup))
  else
    redis.call('SET', P .. 'r:' .. id, value, 'PX', dedup)
  end
  -- A key of another type, which somebody else wrote, must not undo the end of a task.
  local fine = true
  if record.group and record.group ~= '' then
    fine = pcall(end_child, record.group, id, state, value .. doc)
  end
  if record.opens then
    fine = pcall(fail_unsealed, id) and fine
  end
  if record.waited then
    fine = pcall(tell_waiters, id) and fine
  end
  if not fine then
    redis.call('HINCRBY', P .. 'counters', 'finish:broken', 1)
  end
  redis.call('DEL', P .. 't:' .. id, P .. 'b:' .. id, P .. 'l:' .. id, P .. 'e:' .. id,
    P .. 'h:' .. id, P .. 'c:' .. id)
end
