-- lib/finish: needs base, wake, record, group. The one way to a terminal state.

-- End a task: remember its result (or at least its id), tell its group and whoever waits.
-- ttl and dedup are milliseconds; doc is opaque.
local function finish(id, state, fence, doc, ttl, dedup)
  local record = redis.call('HMGET', P .. 't:' .. id, 'group', 'opens', 'waited')
  local value = state .. '|' .. fence .. '|'
  if ttl > 0 then
    redis.call('SET', P .. 'r:' .. id, value .. doc, 'PX', math.max(ttl, dedup))
  else
    redis.call('SET', P .. 'r:' .. id, value, 'PX', dedup)
  end
  if record[1] and record[1] ~= '' then
    end_child(record[1], id, state, value .. doc)
  end
  if record[2] then
    fail_unsealed(id)
  end
  if record[3] then
    for _, client in ipairs(redis.call('ZRANGE', P .. 'waiters:' .. id, 0, -1)) do
      redis.call('RPUSH', P .. 'wake:' .. client, id)
      redis.call('PEXPIRE', P .. 'wake:' .. client, 10000)
    end
    redis.call('DEL', P .. 'waiters:' .. id)
  end
  redis.call('DEL', P .. 't:' .. id, P .. 'b:' .. id, P .. 'l:' .. id, P .. 'e:' .. id,
    P .. 'h:' .. id)
end
