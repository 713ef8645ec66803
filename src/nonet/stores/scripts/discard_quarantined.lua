#!lua flags=allow-oom
-- discard_quarantined: delete entries of the quarantine for good.
-- KEYS  prefix
-- ARGV  who, note or '', n × entry
-- returns n × (1 deleted | 0 there was none)
-- @include base wake record rescue events
local who, note, FIRST = ARGV[1], ARGV[2], 3
local gone, answer, last = 0, {}, nil
for i = FIRST, #ARGV do
  local entry = ARGV[i]
  local item = redis.call('XRANGE', P .. 'quarantine', entry, entry)[1]
  if item then
    leave_quarantine(item)
    gone, last = gone + 1, entry
  end
  answer[#answer + 1] = item and 1 or 0
end
if gone > 0 then
  local text = gone == 1 and 'entry ' .. last or gone .. ' entries, the last ' .. last
  log_event('quarantine-discard', who, note == '' and text or text .. ': ' .. note)
end
return answer
