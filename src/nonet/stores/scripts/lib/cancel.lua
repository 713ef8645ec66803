-- lib/cancel: needs base, wake, record, limits, locks, index, group, finish, queues, refusal, waiting.
-- Ends tasks that do not run. Call offer_all() when all are ended.

-- Leave the queues before the record is deleted: a task behind this one would treat the places of a deleted
-- task as taken.
local function leave_places(id, record)
  leave_handed(id, record)
  if record.places then
    leave_queues(load_waiter(id))
    change(id, {places = ''})
  end
end

-- Whether this release can end the task of a record by itself: it does not run, and its format is not newer.
local function is_cancellable(record)
  return AT_REST[record.state] and record.stream ~= 'hold' and not newer_format(record)
end

-- End a task that is_cancellable(). record is what read_record() returned.
local function end_waiting(id, record, state, document)
  leave_places(id, record)
  finish(id, record, state, '0', document)
  drop_pointers(id, record)
end
