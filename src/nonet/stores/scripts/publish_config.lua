#!lua flags=allow-oom
-- publish_config: let this document be the configuration that every process applies.
-- KEYS  prefix
-- ARGV  term, version, document, source, revision, who
-- returns 1, or 0 if another term leads
-- @include base events
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now then
  return 0
end
local version, key = ARGV[2], P .. 'config'
local before = redis.call('HGET', key, 'version')
local stamp = before == version and redis.call('HGET', key, 'at') or digits(now - offset)
-- One command, so that a script that was cut has published all of it or nothing.
redis.call('HSET', key, 'version', version, 'document', ARGV[3], 'source', ARGV[4],
  'revision', ARGV[5], 'who', ARGV[6], 'at', stamp)
if before ~= version then
  local revision = ARGV[5] ~= '' and ' at ' .. ARGV[5] or ''
  log_event('config-published', ARGV[6], 'version ' .. version .. ' from ' .. ARGV[4] .. revision)
end
return 1
