#!lua flags=allow-oom
-- hint: wake the processes that run pipelines on tables in which a row became due.
-- KEYS  prefix
-- ARGV  tables …
-- returns how many hints were delivered
-- @include base
local delivered = 0
for _, table in ipairs(ARGV) do
  local key, hint = P .. 'hints:' .. table, 'hint:' .. table
  redis.call('ZREMRANGEBYSCORE', key, '-inf', digits(now))
  for _, client in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    local list = P .. 'wake:' .. client
    -- One unread hint is enough. Without this check the list of a process that reads slowly would grow.
    local is_unread = false
    for _, unread in ipairs(redis.call('LRANGE', list, 0, -1)) do
      is_unread = is_unread or unread == hint
    end
    if not is_unread then
      redis.call('RPUSH', list, hint)
      redis.call('PEXPIRE', list, 10000)
      delivered = delivered + 1
    end
  end
end
return delivered
