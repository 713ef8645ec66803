-- lib/epoch: needs base, beginning. Which data set this is. A script that is called by who has
-- seen a higher sequence than Redis has begins a new epoch before it does anything else.

local function read_epoch()
  return read_fields(P .. 'epoch', {'since', 'seq', 'first', 'calm', 'lost'})
end

-- The epoch's name and sequence, as text. seen: 'epoch|sequence' of the latest that the caller knows,
-- or 0; calm_ms: how long those who hold a lock may still believe so.
local function current_epoch(seen, calm_ms)
  local known_since, known_seq = string.match(seen, '^(%d+)|(%d+)$')
  known_since, known_seq = tonumber(known_since or '0'), tonumber(known_seq or '0')
  local fine, found = pcall(read_epoch)
  if not fine then  -- of another type: nobody of us wrote it
    redis.call('DEL', P .. 'epoch')
    found = {}
  end
  local since, seq = tonumber(found.since or ''), tonumber(found.seq or '')
  if not since or not seq or seq < known_seq then
    begin_epoch(since, known_seq, calm_ms)
    found = read_epoch()
  elseif found.first and known_since > 0 and known_since < since then
    -- Who began it did not know that there was an earlier one.
    begin_epoch(found.since, 0, calm_ms, found.seq)
    found = read_epoch()
  end
  epoch = found
  return found.since, found.seq
end
