#!lua
-- group_open: begin a callback group; children follow by submit, then group_seal.
-- KEYS  prefix
-- ARGV  group, parent id or '', policy, ttl ms, number of children,
--       callback (id, name, stream, envelope, locks, terms), on_failure (the same, id '' for none)
-- returns the state: building, or what an earlier run of the parent reached
-- @include base index
local key = P .. 'g:' .. ARGV[1]
local state = redis.call('HGET', key, 'state')
if state then
  return state
end
local function keep(suffix, first)
  redis.call('HSET', key .. suffix, 'id', ARGV[first], 'name', ARGV[first + 1],
    'stream', ARGV[first + 2], 'envelope', ARGV[first + 3], 'locks', ARGV[first + 4],
    'terms', ARGV[first + 5])
end
keep(':callback', 6)
if ARGV[12] ~= '' then
  keep(':on_failure', 12)
end
redis.call('HSET', key, 'state', 'building', 'parent', ARGV[2], 'policy', ARGV[3],
  'ttl', ARGV[4], 'total', ARGV[5], 'failed', 0, 'opened', digits(now), 'name', ARGV[7])
if redis.call('EXISTS', P .. 't:' .. ARGV[2]) == 1 then
  redis.call('SADD', P .. 'open:' .. ARGV[2], ARGV[1])
  redis.call('HSET', P .. 't:' .. ARGV[2], 'opens', 1)
  list_group(ARGV[1])
else
  -- Nobody can tell that a program which is no task has died: it has so long to seal.
  local one_day = 86400000
  local ttl = math.max(tonumber(ARGV[4]), one_day)
  for _, suffix in ipairs({'', ':callback', ':on_failure'}) do
    redis.call('PEXPIRE', key .. suffix, digits(ttl))
  end
  list_group(ARGV[1], ttl)
end
return 'building'
