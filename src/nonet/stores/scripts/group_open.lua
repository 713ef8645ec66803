#!lua
-- group_open: begin a callback group. Its children are submitted next, then group_seal is called.
-- KEYS  prefix
-- ARGV  group, parent id or '', policy, ttl ms, number of children,
--       callback (id, name, stream, due, '', envelope, locks, terms), on_failure (the same, id '' for none)
-- returns the state: building, or the state that an earlier run of the parent has reached
-- @include base index
local gid, parent, policy, ttl, total, CALLBACK, ON_FAILURE = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], 6, 14
local key = P .. 'g:' .. gid
local state = redis.call('HGET', key, 'state')
if state then
  return state  -- fault: group-opened-again
end

-- Store a task that the group may submit: its fields are in ARGV from `first` on. Returns its name.
local function keep(suffix, first)
  local id, name, stream, due, _, envelope, locks, terms = unpack(ARGV, first, first + 7)
  if id ~= '' then
    redis.call('HSET', key .. suffix, 'id', id, 'name', name, 'stream', stream, 'due', due, 'envelope', envelope,
      'locks', locks, 'terms', terms)
  end
  return name
end
local name = keep(':callback', CALLBACK)
keep(':on_failure', ON_FAILURE)
redis.call('HSET', key, 'state', 'building', 'parent', parent, 'policy', policy,
  'ttl', ttl, 'total', total, 'failed', 0, 'opened', digits(now), 'name', name)
if records.has(parent) then
  redis.call('SADD', P .. 'open:' .. parent, gid)
  change(parent, {opens = 1})
  list_group(gid)
else
  -- A program that is not a task must seal its group within this time, because nothing detects its death.
  local ONE_DAY = 86400000
  local most = math.max(tonumber(ttl), ONE_DAY)
  for _, suffix in ipairs({'', ':callback', ':on_failure'}) do
    redis.call('PEXPIRE', key .. suffix, digits(most))
  end
  list_group(gid, most)
end
return 'building'
