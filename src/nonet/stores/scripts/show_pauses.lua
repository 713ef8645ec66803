#!lua flags=no-writes
-- show_pauses: read all pauses.
-- KEYS  prefix
-- ARGV  none
-- returns {now µs by the server's clock, epoch, its sequence, the epoch in which the leader last put
--       back what was paused, paused, periodic:paused}; the last two: what, 'at (µs)|who|reason', …
-- @include base
local epoch_now = redis.call('HMGET', P .. 'epoch', 'since', 'seq', 'pauses')
return {digits(now - offset), epoch_now[1] or '', epoch_now[2] or '', epoch_now[3] or '',
  redis.call('HGETALL', P .. 'paused'), redis.call('HGETALL', P .. 'periodic:paused')}
