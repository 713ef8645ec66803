-- lib/unread: needs base. The entries of a stream that no worker has read.

-- Their number, and the start of the range that contains them.
local function unread(key)
  local groups = redis.pcall('XINFO', 'GROUPS', key)
  local pending, last = 0, '-'
  for _, group in ipairs(groups.err and {} or groups) do
    for i = 1, #group, 2 do
      if group[i] == 'pending' then
        pending = group[i + 1]
      elseif group[i] == 'last-delivered-id' then
        last = '(' .. group[i + 1]
      end
    end
  end
  -- Entries of ended tasks are deleted, so every entry is unread or pending.
  return math.max(0, redis.call('XLEN', key) - pending), last
end
