#!lua flags=allow-oom
-- forget_hooks: forget start-up hooks that have not succeeded and are no longer installed.
-- KEYS  prefix
-- ARGV  term, hooks that are installed at the leader …
-- returns how many were forgotten; 0 if another term leads
-- @include base leading
local term, FIRST = ARGV[1], 2
if not leads(term) then
  return 0
end
local known, forgotten = {}, 0
for i = FIRST, #ARGV do
  known[ARGV[i]] = true
end
local hooks = redis.call('HGETALL', P .. 'startup')
for i = 1, #hooks, 2 do
  if not known[hooks[i]] and not string.find(hooks[i + 1], '^%d+|done|') then
    forgotten = forgotten + redis.call('HDEL', P .. 'startup', hooks[i])
  end
end
return forgotten
