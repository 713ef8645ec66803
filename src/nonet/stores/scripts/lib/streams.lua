-- lib/streams: needs base. The streams of a size in the order in which its workers read them, except that
-- they read the burials of all priorities last.

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
