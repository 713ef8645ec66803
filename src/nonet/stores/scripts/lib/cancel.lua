-- lib/cancel: needs base, wake, record, limits, locks, index, group, finish, queues, refusal, waiting.
-- Ends a task that does not run. Call offer_all() when all are ended.

-- Its places first: whoever stands behind it would take those of a task that is gone for taken.
local function leave_places(id, record)
  leave_handed(id, record)
  if record.places then
    local fine, me = pcall(load_waiter, id)
    if fine and me then
      leave_queues(me)
    end
    redis.call('HSET', P .. 't:' .. id, 'places', '')
  end
end

-- Last: who reads a pointer to a task that is gone drops it.
local function remove_pointers(id, record)
  local key, entry = pointer_of(record)
  if record.state == 'queued' and key then
    redis.pcall('XDEL', P .. key, entry)
    redis.pcall('XACK', P .. key, 'workers', entry)
  end
  redis.call('ZREM', P .. 'tasks:delayed', id)
  redis.call('ZREM', P .. 'deadlines', id)
end


-- Whether a record is one of a task that does not run, and can be read: nobody has to be asked to end it.
local function is_cancellable(record)
  return AT_REST[record.state] and record.stream ~= 'hold' and not newer_format(record)
end

-- End it: record has the fields state, gen, stream, places, pointer, group, opens, waited.
local function end_waiting(id, record, state, document, ttl, dedup)
  leave_places(id, record)
  finish(id, record, state, '0', document, ttl, dedup)
  remove_pointers(id, record)
end

local function cancel_task(id, record, document, ttl, dedup)
  end_waiting(id, record, 'cancelled', document, ttl, dedup)
end
