-- lib/beginning: needs base, events. Begins an epoch. HASH epoch: since (µs, its name), seq (which the
-- leader raises, so that older data are known as such), calm (until when no structural lock is
-- granted, µs), lost (when data were lost, µs), first (1: begun by who knew of no earlier one).

-- How long who knows of nothing leaves locks alone, at most: whoever knows better tells within a second.
local PROBATION_MS = 2000

-- Redis was emptied, or came back with older data, says who has seen `seen`; 0: it is new to who asks.
-- known: its sequence, if the epoch has begun and only now somebody says that data were lost.
local function begin_epoch(before, seen, calm_ms, known)
  local is_loss = seen > 0 or known ~= nil
  local since, seq = before, known
  if not known then
    -- Above all that anybody has seen, also if the clock was set back since.
    since = digits(math.max(now, (before or 0) + 1, seen + 1))
    seq = since
  end
  local calm = is_loss and calm_ms or math.min(PROBATION_MS, calm_ms / 10)
  redis.call('HSET', P .. 'epoch', 'since', since, 'seq', seq, 'calm', digits(now + calm * 1000),
    'lost', is_loss and digits(now) or '', 'first', is_loss and '' or '1')
  if is_loss then
    log_event('epoch', 'redis', before and not known and 'Redis came back with older data'
      or 'Redis has lost its data')
  end
end
