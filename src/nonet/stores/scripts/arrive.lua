#!lua flags=allow-oom
-- arrive: let new tasks of a tenant come to this namespace from now on, after depart in the other one. Safe to repeat.
-- KEYS  prefix
-- ARGV  tenant, who, the other namespace, for how long that knows ids (ms), n × (periodic entry, its record there)
-- returns OK
-- @include base routing events moving
local tenant, who, source, remembered = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
for i = 5, #ARGV, 2 do
  local entry, last = ARGV[i], tonumber(string.match(ARGV[i + 1], '^%d+') or '0')
  local before = tonumber(string.match(redis.call('HGET', P .. 'periodic', entry) or '', '^%d+') or '0')
  if last > before then
    redis.call('HSET', P .. 'periodic', entry, ARGV[i + 1])
  end
end
move_by_hand(tenant, string.sub(P, 2, -3), who)
redis.call('HSET', P .. 'routes', 'came:' .. tenant, source .. '|' .. digits(now - offset + remembered * 1000))
return 'OK'
