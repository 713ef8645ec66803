#!lua flags=allow-oom
-- forget_hooks: forget start-up hooks that have not succeeded and are no longer installed.
-- KEYS  prefix
-- ARGV  term, hooks that are installed at the leader …
-- returns how many were forgotten; 0 if another term leads
-- @include base hashes leading
local term, FIRST = ARGV[1], 2
if not leads(term) then
  return 0
end
local known, forgotten = {}, 0
for i = FIRST, #ARGV do
  known[ARGV[i]] = true
end
for hook, state in pairs(read_hash(P .. 'startup')) do
  if not known[hook] and not string.find(state, '^%d+|done|') then
    forgotten = forgotten + redis.call('HDEL', P .. 'startup', hook)
  end
end
return forgotten
