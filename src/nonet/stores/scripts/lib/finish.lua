-- lib/finish: needs base, wake, record, submitting, group. The one way to a terminal state.

local function tell_waiters(id)
  for _, client in ipairs(redis.call('ZRANGE', P .. 'waiters:' .. id, 0, -1)) do
    redis.call('RPUSH', P .. 'wake:' .. client, id)
    redis.call('PEXPIRE', P .. 'wake:' .. client, 10000)
  end
  redis.call('DEL', P .. 'waiters:' .. id)
end

local kept_ms = nil  -- as text: each call that is given a number formats it

-- Remember how a task ended, or at least that it did. value is 'state|fence|', or 'state|fence mark|' of a
-- task that repeats a letter; doc is opaque; ttl and dedup are the same for all of one script.
local function remember(id, value, doc, ttl, dedup)
  kept_ms = kept_ms or digits(math.max(ttl, dedup))
  redis.call('SET', P .. 'r:' .. id, ttl > 0 and value .. doc or value, 'PX', kept_ms)
end

-- End a task: remember its result (or at least its id), tell its group and whoever waits.
-- record has the fields group, opens and waited, and, if it is whole, stream, name, unique and letter; ttl and dedup are milliseconds; doc is opaque.
local function finish(id, record, state, fence, doc, ttl, dedup)
  local kept = record.is_whole and record
    or read_fields(P .. 't:' .. id, {'stream', 'name', 'unique', 'letter'})
  local value = state .. '|' .. fence .. '|'
  remember(id, kept.letter and state .. '|' .. fence .. ' ' .. kept.letter .. '|' or value, doc, ttl, dedup)
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
    redis.call('DEL', P .. 'waiters:' .. id, P .. 'open:' .. id)
  end
  if kept.unique then
    give_key_up(id, kept.unique)
  end
  redis.call('DEL', P .. 't:' .. id, P .. 'b:' .. id, P .. 'l:' .. id, P .. 'e:' .. id,
    P .. 'h:' .. id, P .. 'c:' .. id)
  if kept.stream then  -- read of a record that was there
    count_active(kept.stream, kept.name or '', -1)
  end
end
