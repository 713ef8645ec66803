#!lua flags=allow-oom
-- publish_limits: replace the configured limits. Overrides by operators stay in force.
-- KEYS  prefix
-- ARGV  term, version of these limits ('' for none), who, n × (field of HASH limits, value)
-- returns 1, or 0 if another term leads
-- @include base wake limits mutexes locks events turning
local term, version, who = ARGV[1], ARGV[2], ARGV[3]
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= term or tonumber(leader[2]) <= now then
  return 0
end
local config, values = P .. 'limits:config', {}
for _, field in ipairs(redis.call('HKEYS', config)) do
  values[field] = false
end
for i = 4, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  values[field] = value
end
-- The version is written last: if Redis stops the script before that, the leader publishes again.
local effective = {}
for field, value in pairs(values) do
  effective[field] = live_value(field) or value
end
local words = turn_limits(effective)
for field, value in pairs(values) do
  if value then
    redis.call('HSET', config, field, value)
  else
    redis.call('HDEL', config, field)
  end
end
if version == '' then
  redis.call('DEL', P .. 'limits:version')
else
  redis.call('SET', P .. 'limits:version', version)
end
if #words > 0 then
  local more = #words > 20 and '; and ' .. #words - 20 .. ' more' or ''
  log_event('limits-published', who, table.concat(words, '; ', 1, math.min(#words, 20)) .. more)
end
return 1
