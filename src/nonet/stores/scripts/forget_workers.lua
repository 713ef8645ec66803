#!lua flags=allow-oom
-- forget_workers: forget workers that are gone; the leader calls it, in case no other worker is alive.
-- KEYS  prefix
-- ARGV  leader's term, lease ms, latest possible time µs or ''
-- returns how many were forgotten, -1 if another process leads
-- @include base leading streams forget
local term, lease, latest = ARGV[1], tonumber(ARGV[2]), ARGV[3]
if not leads(term) then
  return -1
end
return is_clock_ahead(latest) and 0 or forget_gone(lease)
