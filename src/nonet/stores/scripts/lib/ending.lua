-- lib/ending: needs base, wake, record, index, group, finish. Ends what no worker ends: a task that was
-- cancelled while it ran, or that nobody has started in time.

-- The result document of a task whose end a script decides, as nonet.message.ResultDocument.
local function made_document(name, attempt, text, reason)
  local a_list_of_eight = string.char(0x98)
  return a_list_of_eight .. cmsgpack.pack(name, attempt, (now - offset) / 1000000, nil, '', text,
    reason, '')
end

-- Of a task that was cancelled while it ran: the attempt that was under way then is its last. record
-- has the fields name, attempt and cancel.
local function cancelled_document(record)
  local used = tonumber(record.attempt or '') or 0
  return made_document(record.name or '', used + 1, 'cancelled ' .. record.cancel, 'cancelled')
end

-- End a task that was cancelled while it ran, when no worker has it any more. record has those fields
-- and what finish() needs; fence is that of the delivery that ends by this, '0' if none does.
local function end_cancelled(id, record, fence, ttl, dedup)
  finish(id, record, 'cancelled', fence, cancelled_document(record), ttl, dedup)
end
