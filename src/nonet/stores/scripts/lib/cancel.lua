-- lib/cancel: needs base, wake, record, limits, locks, index, group, finish, queues, refusal, waiting.
-- Ends a task that does not run. Call offer_all() when all are ended.

-- Its places first: whoever stands behind it would take those of a task that is gone for taken.
local function leave_places(id, record)
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
  local key, entry = string.match(record.pointer or '', '^(%S+) (%S+)$')
  if record.state == 'queued' and key then
    redis.pcall('XDEL', P .. key, entry)
    redis.pcall('XACK', P .. key, 'workers', entry)
  end
  redis.call('ZREM', P .. 'tasks:delayed', id)
end

local CANCELLABLE = {queued = true, delayed = true, waiting = true}

-- Whether a record is one of a task that does not run: nobody has to be asked to end it.
local function is_cancellable(record)
  return CANCELLABLE[record.state] and record.stream ~= 'hold'
end

-- End it: record has the fields state, stream, places, pointer, group, opens, waited.
local function cancel_task(id, record, document, ttl, dedup)
  leave_places(id, record)
  finish(id, record, 'cancelled', '0', document, ttl, dedup)
  remove_pointers(id, record)
end
