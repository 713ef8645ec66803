-- lib/leading: needs base. Whether a scheduler may act: it leads, and the clock is right.

-- Whether the caller, which was elected for this term, still leads.
local function leads(term)
  local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
  return leader[1] == term and tonumber(leader[2]) > now  -- fault: lease-never-ends
end

-- Whether the server's clock was set forward, and the leader has not corrected `now` yet. latest: the latest
-- possible time (µs), or ''.
local function is_clock_ahead(latest)
  leases.check(latest)
  return leases.now < now
end
