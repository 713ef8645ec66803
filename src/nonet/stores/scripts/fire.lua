#!lua
-- fire: submit one occurrence of a periodic entry, once, or pass over it, and remember it.
-- KEYS  prefix
-- ARGV  term, entry, occurrence µs, overlap: skip | late (skip, but not for the lateness of the
--       previous one) | queue | allow, or pass: it is not submitted; how many were missed with it,
--       next µs or '' (the schedule is exhausted), µs to submit it for or 0 (jitter), id, name, stream,
--       envelope, locks, terms
-- returns FIRED | KNOWN (fired before) | PASSED | SKIPPED (the previous one runs) | PAUSED |
--       WAITING (the previous one has not started, or not ended if it queues) | DEPOSED
-- @include base wake record submitting
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now then
  return 'DEPOSED'
end
local entry, occurrence, verb, missed = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local last, id, prints = string.match(redis.call('HGET', P .. 'periodic', entry) or '',
  '^(%d+)|([^|]*)|?(.*)$')
if last and tonumber(occurrence) <= tonumber(last) then
  return 'KNOWN'
end

-- What the previous occurrence does to this one: nothing, or an answer.
local function answer_of(previous)
  local attempts = tonumber(previous.attempt or '') or 0
  local runs = previous.state == 'running' or previous.state == 'dying'
  if not previous.state then
    return nil
  elseif not runs and attempts == 0 and not (previous.deaths or previous.suspect) then
    return 'WAITING'  -- one occurrence waits at a time
  elseif verb == 'queue' then
    return 'WAITING'
  elseif verb == 'skip' then
    return 'SKIPPED'
  elseif verb == 'late' then
    -- Who began after this one was due is late itself.
    local moved = tonumber(redis.call('GET', P .. 'clock:moved') or '') or 0
    local since = (tonumber(previous.started or '') or 0) - offset + moved
    return runs and attempts == 0 and since > tonumber(occurrence) and 'WAITING' or 'SKIPPED'
  end
end

local function count(what, number)
  if number > 0 then
    redis.call('HINCRBY', P .. 'periodic:counts', entry .. '|' .. what, number)
  end
end

local function remember(who)
  redis.call('HSET', P .. 'periodic', entry, occurrence .. '|' .. who .. '|' .. (prints or ''))
  if ARGV[6] == '' then
    redis.call('HDEL', P .. 'periodic:next', entry)
  else
    redis.call('HSET', P .. 'periodic:next', entry, ARGV[6])
  end
end

if redis.call('HEXISTS', P .. 'periodic:paused', entry) == 1 then
  remember(id or '')
  count('paused', math.max(1, missed + (verb == 'pass' and 0 or 1)))
  return 'PAUSED'
elseif verb == 'pass' then
  remember(id or '')
  count('missed', missed)
  return 'PASSED'
end
local answer = id and id ~= '' and answer_of(read_fields(P .. 't:' .. id,
  {'state', 'attempt', 'deaths', 'suspect', 'started'}))
if answer == 'SKIPPED' then
  remember(id)
  count('skipped', 1)
  count('missed', missed)
  return answer
elseif answer then
  return answer
end
local due = due_of(ARGV[7])
local made = submit_one(ARGV[8], ARGV[9], ARGV[10], due, '', ARGV[11], ARGV[12],
  ARGV[13])
remember(ARGV[8])
count('fired', made)
redis.call('HSET', P .. 'periodic:counts', entry .. '|last', occurrence)
count('missed', missed)
if made == 1 and due <= now then
  wake(size_of(ARGV[10]), 1)
end
return 'FIRED'
