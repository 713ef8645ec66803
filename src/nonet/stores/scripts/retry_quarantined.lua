#!lua
-- retry_quarantined: submit an entry of the quarantine as a task, once, and take it out. Fails
-- loudly when memory is full.
-- KEYS  prefix
-- ARGV  entry, who, result ttl ms, dedup ttl ms; of the task: id (made of the entry), name, stream,
--       envelope, locks, terms
-- returns 1 made | -1 there is no such entry | the state of the task if it is known: it was done
--       before, and the entry stays if that task has failed; or {'OTHER', state}: another task has the
--       id; or {'IMPOSSIBLE', id, why}: it counts for more than a limiter allows; or {'UNIQUE', id of
--       the task that has its unique key}
-- @include base wake record submitting rescue events letters
-- @defer limits locks impossible_lines
-- @defer limits locks index group finish pauses queues refusal waiting cancel ending replacing replace_older
local function replace(id, by)
  replace_older(id, by, tonumber(ARGV[3]), tonumber(ARGV[4]))
end
-- @defer unique claim_key
claim = claim_key
local entry, id, stream, lines = ARGV[1], ARGV[5], ARGV[7], ARGV[9]
local item = redis.call('XRANGE', P .. 'quarantine', entry, entry)[1]
local state, mark = known_as(id)
if state and mark ~= string.match('\n' .. ARGV[10], '\nletter|(%x+)') then
  return {'OTHER', state}
end
local HAS_FAILED = {dying = true, dead = true, cancelled = true, expired = true,
  damaged = true}
if not item or HAS_FAILED[state] then
  return state or -1
end
local why = not state and string.find(lines, 'L|', 1, true) and impossible_lines(lines)
if why then
  return {'IMPOSSIBLE', id, why}
end
if not state then
  local made = submit_one(id, ARGV[6], stream, 0, '', ARGV[8], lines, ARGV[10])
  if type(made) == 'string' then
    return {'UNIQUE', made}
  end
  wake(size_of(stream), 1)
end
-- Also of a task that is known: this was cut here, or its row in SQL came first.
log_event('quarantine-retry', ARGV[2], 'entry ' .. entry .. ' as task ' .. id)
leave_quarantine(item)
return state or 1
