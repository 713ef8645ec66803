-- lib/streams: needs base. The streams of a size, in the order in which its workers read them; only the
-- burials of all priorities come after everything else.

local function streams_of(size)
  local found = {}
  for _, priority in ipairs({'realtime', 'normal', 'background'}) do
    for _, kind in ipairs({'woken', 'tasks', 'suspects', 'burials'}) do
      local name = kind .. ':' .. priority .. ':' .. size
      found[#found + 1] = {kind = kind, priority = priority, name = name, key = P .. name}
    end
  end
  return found
end
