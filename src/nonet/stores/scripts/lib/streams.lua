-- lib/streams: needs base. The streams of a size, in the order in which its workers read them.

local function streams_of(size)
  local found = {}
  for _, priority in ipairs({'realtime', 'normal', 'background'}) do
    for _, kind in ipairs({'woken', 'tasks', 'suspects'}) do
      local name = kind .. ':' .. priority .. ':' .. size
      found[#found + 1] = {kind = kind, priority = priority, name = name, key = P .. name}
    end
  end
  return found
end
