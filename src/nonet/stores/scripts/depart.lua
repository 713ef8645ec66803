#!lua flags=allow-oom
-- depart: let new tasks of a tenant go to another namespace from now on. Safe to repeat, until nothing is left here.
-- KEYS  prefix
-- ARGV  tenant, the other namespace, lock ttl ms, who, tenant as it stands in the names of periodic entries, or ''
-- returns {how many of its tasks have not ended, 1 if earlier holders of locks may still believe that they hold them
--       because Redis lost its data, n × (periodic entry, its record)}
-- @include base routing events moving
local tenant, to, lock_ttl, who, vo = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
move_by_hand(tenant, to, who)
local lost = read_fields(P .. 'epoch', {'lost', 'calm'})
local calm = math.max(tonumber(lost.calm or '0'), tonumber(lost.lost or '0') + lock_ttl * 1000)
local answer = {tonumber(redis.call('HGET', P .. 'active:tenants', tenant) or '0'), calm > now and 1 or 0}
local flat = vo ~= '' and redis.call('HGETALL', P .. 'periodic') or {}
for i = 1, #flat, 2 do
  if string.match(flat[i], '^[^|]*|([^|]*)|') == vo then
    answer[#answer + 1], answer[#answer + 2] = flat[i], flat[i + 1]
  end
end
return answer
