#!lua flags=allow-oom
-- publish_limits: replace the configured limits. Overrides by operators stay in force.
-- KEYS  prefix
-- ARGV  term, version of these limits ('' for none), who, n × (field of HASH limits, value)
-- returns 1, or 0 if another term leads
-- @include base hashes leading wake limits mutexes locks events turning
local term, version, who = ARGV[1], ARGV[2], ARGV[3]
if not leads(term) then
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
  set_field(config, field, value)
end
if version == '' then
  redis.call('DEL', P .. 'limits:version')
else
  redis.call('SET', P .. 'limits:version', version)
end
if #words > 0 then
  log_event('limits-published', who, first_texts(words, '; '))
end
return 1
