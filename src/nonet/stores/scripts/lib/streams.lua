-- lib/streams: needs base. The streams of a size, and what their workers have of them.

-- The streams in the order in which workers read them, except that they read the burials of all priorities last.
local function streams_of(size)
  local found = {}
  for _, priority in ipairs(PRIORITIES) do
    for _, kind in ipairs(STREAM_KINDS) do
      local name = kind .. ':' .. priority .. ':' .. size
      found[#found + 1] = {kind = kind, priority = priority, name = name, key = P .. name}
    end
  end
  return found
end

-- The pending entries of a stream, as XPENDING returns them; none if it has no consumer group.
local function pending_in(key, ...)
  local found = redis.pcall('XPENDING', key, 'workers', ...)
  return found.err and {} or found
end
