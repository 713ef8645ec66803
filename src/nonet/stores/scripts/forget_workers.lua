#!lua flags=allow-oom
-- forget_workers: report and forget workers that are gone; the leader calls it, in case no other worker is alive.
-- KEYS  prefix
-- ARGV  leader's term, lease ms, latest possible time µs or ''
-- returns how many were forgotten, -1 if another process leads
-- @include base leading streams forget events naming deliveries deaths
local term, lease, latest = ARGV[1], tonumber(ARGV[2]), ARGV[3]
if not leads(term) then
  return -1
end
if is_clock_ahead(latest) then
  return 0
end
local leader = string.match(redis.call('HGET', P .. 'leader', 'owner') or '', '^[^/]*')
report_deaths(leader, digits(now - lease * 1000))
return forget_gone(lease)
