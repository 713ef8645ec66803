-- lib/epoch: needs leases, plain, beginning. The epoch names the data set. If the caller of a script has seen a higher
-- sequence than Redis has, Redis has lost data, and the script begins a new epoch first.

local function read_epoch()
  return read_fields(P .. 'epoch', {'since', 'seq', 'first', 'withheld', 'lost', 'layout'})
end

-- The epoch's name and sequence, as text. seen: what the caller knows, or 0: 'epoch|sequence|latest possible time µs or
-- nothing'; grace_ms: how long former lock holders may still believe that they hold their locks.
local function current_epoch(seen, grace_ms)
  local known_since, known_seq, latest = string.match(seen, '^(%d+)|(%d+)|?(%d*)$')
  leases.check(latest)
  known_since, known_seq = tonumber(known_since or '0'), tonumber(known_seq or '0')
  local found = read_epoch()
  if found.since and found.layout ~= records.LAYOUT then  -- fault: foreign-layout-read
    error({err = string.format('the data of this namespace have layout %s, this release reads %s: let the release that wrote them'
      .. ' finish its tasks, or choose another NONET_NAMESPACE', found.layout or '0 (before 0.1.0)', records.LAYOUT)})
  end
  local since, seq = tonumber(found.since or ''), tonumber(found.seq or '')
  if not since or not seq or seq < known_seq then  -- fault: older-data-unnoticed
    begin_epoch(since, known_seq, grace_ms)
    found = read_epoch()
  elseif found.first and known_since > 0 and known_since < since then  -- fault: second-report-ignored
    -- A process that did not know of an earlier epoch has begun the current one.
    begin_epoch(found.since, 0, grace_ms, found.seq)
    found = read_epoch()
  end
  epoch = found
  return found.since, found.seq
end
