#!lua flags=allow-oom
-- publish_ceilings: replace the ceilings of the configuration.
-- KEYS  prefix
-- ARGV  term, version of these ceilings ('' for none; with ' bytes' if some are of bytes), who, n × (scope, ceiling)
-- returns 1, or 0 if another term leads
-- @include base hashes leading events
local term, version, who = ARGV[1], ARGV[2], ARGV[3]
if not leads(term) then
  return 0
end
local before, words = read_hash(P .. 'ceilings'), {}
local function tell(scope, was, is)
  if was ~= is then
    words[#words + 1] = scope .. ': ' .. (was or 'not set') .. ' -> ' .. (is or 'not set')
  end
end
for i = 4, #ARGV, 2 do
  local scope, ceiling = ARGV[i], ARGV[i + 1]
  redis.call('HSET', P .. 'ceilings', scope, ceiling)
  tell(scope, before[scope], ceiling)
  before[scope] = nil
end
for scope, was in pairs(before) do
  redis.call('HDEL', P .. 'ceilings', scope)
  tell(scope, was, nil)
end
-- Last: if Redis stops the script before this, the leader publishes again.
if not string.find(version, ' bytes', 1, true) then
  redis.call('DEL', P .. 'active:bytes')
end
if version == '' then
  redis.call('DEL', P .. 'capped')
else
  redis.call('SET', P .. 'capped', version)
end
if #words > 0 then
  table.sort(words)
  log_event('ceilings-published', who, first_texts(words, '; '))
end
return 1
