#!lua flags=allow-oom
-- wait: return the result of a task or the state of a workflow, or register a client that is woken when it ends.
-- KEYS  prefix
-- ARGV  id, client (woken through its wake list), ids of the tasks and holds that enclose the call …
-- returns {'ended', value} | {'live'} | {'unknown'} | {'deadlock', lock}: the task cannot end before one of these
--       tasks and holds has ended
-- @include base wake limits mutexes locks pauses queues deadlock
local id, client = ARGV[1], ARGV[2]
local value = redis.call('GET', P .. 'r:' .. id)
if value then
  return {'ended', value}
end
local is_task = records.has(id)
local state = not is_task and redis.call('HGET', P .. 'f:' .. id, 'state')
if state == 'done' or state == 'failed' or state == 'cancelled' then
  return {'ended', state .. '|0|'}
elseif not is_task and not state then
  return {'unknown'}
end
for i = 3, #ARGV do
  local waiter = ARGV[i]
  if is_task and records.has(waiter) then
    local lock = depends_on(id, waiter)
    if lock then
      return {'deadlock', lock}
    end
    redis.call('ZADD', P .. 'awaits:' .. waiter, digits(now), id)
    redis.call('PEXPIRE', P .. 'awaits:' .. waiter, 10000)
    seen = {}
  end
end
-- A client that still waits asks every 5 seconds; the others gave up.
redis.call('ZREMRANGEBYSCORE', P .. 'waiters:' .. id, '-inf', digits(now - 20000000))
redis.call('ZADD', P .. 'waiters:' .. id, digits(now), client)
redis.call('PEXPIRE', P .. 'waiters:' .. id, 20000)
if is_task then
  change(id, {waited = 1})
end
return {'live'}
