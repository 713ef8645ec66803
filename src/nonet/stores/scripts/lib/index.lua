-- lib/index: needs base. The index of groups, each with the time when it may be forgotten.

-- List a group that expires in ms, or at an unknown time (nil); remove expired groups.
local function list_group(gid, ms)
  redis.call('ZREMRANGEBYSCORE', P .. 'groups', '-inf', digits(now))
  local ten_years = 315360000000
  redis.call('ZADD', P .. 'groups', digits(now + (ms or ten_years) * 1000), gid)
end
