#!lua flags=allow-oom
-- forget_hooks: forget the start-up hooks that have not succeeded and that nobody has any more.
-- KEYS  prefix
-- ARGV  term, hook…: those that the leader has
-- returns how many were forgotten; 0 if another term leads
-- @include base
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now then return 0 end
local known, forgotten = {}, 0
for i = 2, #ARGV do known[ARGV[i]] = true end
local hooks = redis.call('HGETALL', P .. 'startup')
for i = 1, #hooks, 2 do
  if not known[hooks[i]] and not string.find(hooks[i + 1], '^%d+|done|') then
    forgotten = forgotten + redis.call('HDEL', P .. 'startup', hooks[i])
  end
end
return forgotten
