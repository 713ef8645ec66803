#!lua
-- group_open: begin a callback group. Its children are submitted next, then group_seal is called.
-- KEYS  prefix
-- ARGV  group, parent id or '', policy, ttl ms, number of children,
--       callback (id, name, stream, envelope, locks, terms), on_failure (the same, id '' for none),
--       n × different terms of the children
-- returns the state: building, or the state that an earlier run of the parent has reached; or, if tasks of the group
--       belong to another namespace, the namespace of the callback, of on_failure and of these children: '' is this one
-- @include base index routing
local gid, parent, policy, ttl, total, CALLBACK, ON_FAILURE = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], 6, 12
local key = P .. 'g:' .. gid
local state = redis.call('HGET', key, 'state')
if state then
  return state
end

local homes, is_elsewhere = {}, false
for i = marks[7] and CALLBACK or #ARGV + 1, #ARGV do
  local is_terms = i == CALLBACK + 5 or i == ON_FAILURE + 5 and ARGV[ON_FAILURE] ~= '' or i > ON_FAILURE + 5
  if is_terms then
    homes[#homes + 1] = elsewhere(ARGV[i]) or ''
    is_elsewhere = is_elsewhere or homes[#homes] ~= ''
  end
end
if is_elsewhere then
  return homes
end

-- Store a task that the group may submit: its fields are in ARGV from `first` on. Returns its name.
local function keep(suffix, first)
  local id, name, stream, envelope, locks, terms = unpack(ARGV, first, first + 5)
  if id ~= '' then
    redis.call('HSET', key .. suffix, 'id', id, 'name', name, 'stream', stream, 'envelope', envelope,
      'locks', locks, 'terms', terms)
  end
  return name
end
local name = keep(':callback', CALLBACK)
keep(':on_failure', ON_FAILURE)
redis.call('HSET', key, 'state', 'building', 'parent', parent, 'policy', policy,
  'ttl', ttl, 'total', total, 'failed', 0, 'opened', digits(now), 'name', name)
if redis.call('EXISTS', P .. 't:' .. parent) == 1 then
  redis.call('SADD', P .. 'open:' .. parent, gid)
  redis.call('HSET', P .. 't:' .. parent, 'opens', 1)
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
