-- lib/replacing: needs base, wake, record, limits, locks, index, group, finish, queues, refusal, waiting,
-- cancel, ending. Replaces a task by a newer one with the same unique key (mode keep_latest).

-- End a waiting task. A running one continues, but is not executed again if it fails.
local function replace_older(id, by)
  local record = read_record(id)
  if is_cancellable(record) then
    local document = made_document(record.name or '', tonumber(record.attempt or '') or 0,
      'cancelled (replaced by ' .. by .. ')', 'cancelled')
    is_replacing = true
    end_waiting(id, record, 'cancelled', document)
    is_replacing = false
    offer_all()
  elseif record.state == 'running' or newer_format(record) then
    change(id, {cancel = record.cancel or string.sub('(replaced by ' .. by .. ')', 1, 60)})
  end
end
