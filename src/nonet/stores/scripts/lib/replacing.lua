-- lib/replacing: needs base, wake, record, limits, locks, index, group, finish, queues, refusal, waiting,
-- cancel, ending. A newer task takes the place of an older one of the same key that is not wanted any more.

-- End one that waits; one that runs goes on, and is not executed again if it fails.
local function replace_older(id, by, ttl, dedup)
  local record = read_fields(P .. 't:' .. id, {'state', 'gen', 'stream', 'places', 'pointer', 'group',
    'opens', 'waited', 'name', 'attempt', 'v', 'unfit', 'suspect'})
  if is_cancellable(record) then
    local document = made_document(record.name or '', tonumber(record.attempt or '') or 0,
      'cancelled (replaced by ' .. by .. ')', 'cancelled')
    is_replacing = true
    cancel_task(id, record, document, ttl, dedup)
    is_replacing = false
    offer_all()
  elseif record.state == 'running' or newer_format(record) then
    redis.call('HSETNX', P .. 't:' .. id, 'cancel', string.sub('(replaced by ' .. by .. ')', 1, 60))
  end
end
