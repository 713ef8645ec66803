-- lib/finish: needs base, wake, record, group. The one way to a terminal state.

-- End a task: remember its result (or at least its id), tell its group and whoever waits.
-- record has the fields group, opens and waited; ttl and dedup are milliseconds; doc is opaque.
local function finish(id, record, state, fence, doc, ttl, dedup)
  local value = state .. '|' .. fence .. '|'
  if ttl > 0 then
    redis.call('SET', P .. 'r:' .. id, value .. doc, 'PX', math.max(ttl, dedup))
  else
    redis.call('SET', P .. 'r:' .. id, value, 'PX', dedup)
  end
  if record.group and record.group ~= '' then
    end_child(record.group, id, state, value .. doc)
  end
  if record.opens then
    fail_unsealed(id)
  end
  if record.waited then
    for _, client in ipairs(redis.call('ZRANGE', P .. 'waiters:' .. id, 0, -1)) do
      redis.call('RPUSH', P .. 'wake:' .. client, id)
      redis.call('PEXPIRE', P .. 'wake:' .. client, 10000)
    end
    redis.call('DEL', P .. 'waiters:' .. id)
  end
  redis.call('DEL', P .. 't:' .. id, P .. 'b:' .. id, P .. 'l:' .. id, P .. 'e:' .. id,
    P .. 'h:' .. id, P .. 'c:' .. id)
end
