-- lib/ending: needs base, wake, record, index, group, finish. Ends tasks that no worker ends: cancelled while
-- they ran, or not started in time.

-- The result document of a task that a script ends, as nonet.base.messages.message.ResultDocument.
local function made_document(name, attempt, text, reason)
  local a_list_of_eight = string.char(0x98)
  return a_list_of_eight .. cmsgpack.pack(name, attempt, (now - offset) / 1000000, nil, '', text,
    reason, '')
end

-- The result of a task that was cancelled while it ran; the attempt that was under way counts. record has the
-- fields name, attempt and cancel.
local function cancelled_document(record)
  local used = tonumber(record.attempt or '') or 0
  return made_document(record.name or '', used + 1, 'cancelled ' .. record.cancel, 'cancelled')
end

-- End a task that was cancelled while it ran, when no worker has it any more. fence: of the delivery that this call
-- ends, '0' without one.
local function end_cancelled(id, record, fence)
  finish(id, record, 'cancelled', fence, cancelled_document(record))
end
