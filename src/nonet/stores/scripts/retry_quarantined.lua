#!lua
-- retry_quarantined: submit a quarantined entry as a task, once, and remove it. Fails when memory is full.
-- KEYS  prefix
-- ARGV  keeping, entry, who; of the task: id (made of the entry), name, stream,
--       envelope, locks, terms
-- returns 1 submitted | -1 there is no such entry | the state of the task if it was submitted before (the entry
--       stays if that task has failed); or {'OTHER', state}: another task has the id; or {'IMPOSSIBLE',
--       id, why}: it asks a limiter for more than its limit; or {'UNIQUE', id of the holder of its key}
-- @include base wake record counting submitting rescue events letters
-- @defer limits mutexes locks impossible_lines
-- @defer limits mutexes locks index group keeping finish fitting pauses queues refusal waiting cancel ending replacing replace_older
local entry, who = ARGV[2], ARGV[3]
local id, name, stream, envelope, lines, terms = unpack(ARGV, 4, 9)
local replace = replace_older
-- @defer unique claim_key
claim = claim_key
local item = redis.call('XRANGE', P .. 'quarantine', entry, entry)[1]
local state, mark = known_as(id)
if state and mark ~= string.match('\n' .. terms, '\nletter|(%x+)') then
  return {'OTHER', state}
end
local HAS_FAILED = {dying = true, dead = true, cancelled = true, expired = true}
if not item or HAS_FAILED[state] then
  return state or -1
end
local why = not state and string.find(lines .. '\n', '%d\n') and impossible_lines(lines)
if why then
  return {'IMPOSSIBLE', id, why}
end
if not state then
  local made = submit_one(id, name, stream, 0, '', envelope, lines, terms)
  if type(made) == 'string' then
    return {'UNIQUE', made}
  end
  wake(size_of(stream), 1)
end
-- Also for a known task: Redis stopped an earlier call here, or the relay has submitted the task from SQL before.
log_event('quarantine-retry', who, 'entry ' .. entry .. ' as task ' .. id)
leave_quarantine(item)
return state or 1
