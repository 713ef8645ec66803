#!lua flags=allow-oom
-- discard_quarantined: delete entries of the quarantine for good.
-- KEYS  prefix
-- ARGV  who, n × entry
-- returns n × (1 deleted | 0 there was none)
-- @include base wake record rescue events
local gone, answer, last = 0, {}, nil
for i = 2, #ARGV do
  local item = redis.call('XRANGE', P .. 'quarantine', ARGV[i], ARGV[i])[1]
  if item then
    leave_quarantine(item)
    gone, last = gone + 1, ARGV[i]
  end
  answer[#answer + 1] = item and 1 or 0
end
if gone > 0 then
  log_event('quarantine-discard', ARGV[1], gone == 1 and 'entry ' .. last
    or gone .. ' entries, the last ' .. last)
end
return answer
