-- lib/beginning: needs plain, events. Begins an epoch. HASH epoch: since (µs, its name), seq (raised by the
-- leader, so that older data are recognised), withheld (no structural lock is granted until then, µs), lost (when
-- data were lost, µs), first (1: begun by a process that knew of no earlier epoch), layout (see lib/plain).

-- The longest grace period for locks in an epoch that was begun without knowledge of an earlier one: a process that
-- knows of an earlier epoch reports it within a second.
local PROBATION_MS = 2000

-- Begin an epoch, because Redis was emptied or came back with older data. seen: the sequence that the caller has
-- seen; 0: it knows of no earlier epoch. known: the sequence of the current epoch, if a caller reports only now
-- that data were lost.
local function begin_epoch(before, seen, grace_ms, known)
  local is_loss = seen > 0 or known ~= nil
  local since, seq = before, known
  if not known then
    -- Above every sequence that any process has seen, also if the clock was set back since.
    since = digits(math.max(now, (before or 0) + 1, seen + 1))
    seq = since
  end
  local withheld = is_loss and grace_ms or math.min(PROBATION_MS, grace_ms / 10)
  redis.call('HSET', P .. 'epoch', 'since', since, 'seq', seq, 'withheld', digits(now + withheld * 1000),  -- fault: no-grace-after-loss
    'lost', is_loss and digits(now) or '', 'first', is_loss and '' or '1', 'layout', records.LAYOUT)
  if is_loss then
    log_event('epoch', 'redis', before and not known and 'Redis came back with older data'
      or 'Redis has lost its data')
  end
end
