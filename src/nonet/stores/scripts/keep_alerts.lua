#!lua flags=allow-oom
-- keep_alerts: remember which findings were reported to the webhook.
-- KEYS  prefix
-- ARGV  term, JSON
-- returns 1, or 0 if another term leads
-- @include base leading
if not leads(ARGV[1]) then
  return 0
end
redis.call('SET', P .. 'alerts', ARGV[2])
return 1
