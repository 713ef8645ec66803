-- lib/leases: needs now. When leases of locks end.

-- now: the time with which leases of locks are compared. may_end: whether leases that have ended may be removed. A script
-- that takes, renews or settles locks gets the latest possible time from its caller, who has a clock that cannot be set:
-- after the server's clock was set forward no lease ends before the leader has corrected `now`. Other scripts remove none.
local leases = {now = now, may_end = false}
function leases.check(latest)
  local TOLERANCE = 5000000  -- that base/clock.py has added to the time
  latest, leases.may_end = tonumber(latest), true
  if latest and now > latest then
    leases.now = latest - TOLERANCE
  end
end
