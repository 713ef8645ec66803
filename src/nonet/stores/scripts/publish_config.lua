#!lua flags=allow-oom
-- publish_config: publish a document as the configuration that every process applies. Busy workers ask for its version
-- once a second; this wakes the idle ones.
-- KEYS  prefix
-- ARGV  term, version, document, source, revision, who
-- returns 1, or 0 if another term leads
-- @include base leading events
local term, version, document, source, revision, who = unpack(ARGV, 1, 6)
local key = P .. 'config'
if not leads(term) then
  return 0
end
local before = redis.call('HGET', key, 'version')
local stamp = before == version and redis.call('HGET', key, 'at') or digits(now - offset)
local alive = before ~= version and redis.call('ZRANGEBYSCORE', P .. 'workers', digits(now), '+inf') or {}
for _, worker in ipairs(alive) do
  if redis.call('EXISTS', P .. 'wake:' .. worker) == 0 then
    redis.call('LPUSH', P .. 'wake:' .. worker, '1')
  end
end
-- One command: a script that was cut has published all of it or nothing.
redis.call('HSET', key, 'version', version, 'document', document, 'source', source,
  'revision', revision, 'who', who, 'at', stamp)
if before ~= version then
  local at = revision ~= '' and ' at ' .. revision or ''
  log_event('config-published', who, 'version ' .. version .. ' from ' .. source .. at)
end
return 1
