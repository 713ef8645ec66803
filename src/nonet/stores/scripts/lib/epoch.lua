-- lib/epoch: needs base, beginning. Which data set this is. A script that is called by who has
-- seen a higher sequence than Redis has begins a new epoch before it does anything else.

-- The epoch's name and sequence, as text. seen: the highest sequence that the caller knows, or 0;
-- calm_ms: how long those who hold a lock may still believe so.
local function current_epoch(seen, calm_ms)
  local found = redis.pcall('HMGET', P .. 'epoch', 'since', 'seq')
  if found.err then  -- of another type: nobody of us wrote it
    redis.call('DEL', P .. 'epoch')
    found = {}
  end
  if not found[2] or tonumber(found[2]) < seen then
    return begin_epoch(found[1], seen, calm_ms)
  end
  return found[1], found[2]
end
