-- lib/beginning: needs base, events. Begins an epoch. HASH epoch: since (µs, its name), seq (which the
-- leader raises, so that older data are known as such), calm (µs, see calm_until).

-- Redis was emptied, or came back with older data. seen: the highest sequence of those who tell, 0 if
-- they know nothing: then nobody has held a lock. Returns since and seq.
local function begin_epoch(before, seen, calm_ms)
  -- Above all that anybody has seen, also if the clock was set back since.
  local since = digits(math.max(now, tonumber(before or '0') + 1, seen + 1))
  local seq = since
  redis.call('HSET', P .. 'epoch', 'since', since, 'seq', seq,
    'calm', seen > 0 and digits(now + calm_ms * 1000) or '0')
  if seen > 0 then
    log_event('epoch', 'redis',
      before and 'Redis came back with older data' or 'Redis has lost its data')
  end
  return since, seq
end
