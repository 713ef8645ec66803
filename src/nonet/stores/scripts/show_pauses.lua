#!lua flags=allow-oom
-- show_pauses: read all pauses. A key of a wrong type is deleted, and the leader restores the pauses it remembers.
-- KEYS  prefix
-- ARGV  none
-- returns {now µs by the server's clock, epoch, its sequence, the epoch in which the leader last put
--       back what was paused, paused, periodic:paused}; the last two: what, 'at (µs)|who|reason', …
-- @include base pausing
local key, of_entries = pauses_in('paused'), pauses_in('periodic:paused')
mark_pausing(false)  -- whoever looks puts right what foreign hands have done
local epoch_now = redis.pcall('HMGET', P .. 'epoch', 'since', 'seq', 'pauses')
return {digits(now - offset), epoch_now[1] or '', epoch_now[2] or '', epoch_now[3] or '',
  redis.call('HGETALL', key), redis.call('HGETALL', of_entries)}
