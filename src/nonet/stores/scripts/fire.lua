#!lua
-- fire: submit or skip one occurrence of a periodic entry, once, and record which.
-- KEYS  prefix
-- ARGV  term, entry, occurrence µs, overlap: skip | late (skip, but not because the previous one began
--       late) | queue | allow, or pass: do not submit it; how many were missed with it, next µs or ''
--       (the schedule has ended), µs to submit it for or 0 (jitter), id, name, stream, envelope, locks, terms
-- returns FIRED | KNOWN (fired before) | PASSED | SKIPPED (the previous one runs) | PAUSED |
--       WAITING (the previous one has not started, or not ended if it queues) |
--       DEPOSED (another term leads)
-- @include base hashes leading progress wake record counting submitting
local term, entry, occurrence, verb, missed, following = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local due, new_id, name, stream, envelope, locks, terms = due_of(ARGV[7]), unpack(ARGV, 8, 13)
if not leads(term) then  -- fault: deposed-fires
  return 'DEPOSED'
end
local last, id, prints = string.match(redis.call('HGET', P .. 'periodic', entry) or '',
  '^(%d+)|([^|]*)|(.*)$')
if last and tonumber(occurrence) <= tonumber(last) then  -- fault: fired-twice
  return 'KNOWN'
end

-- The answer if the previous occurrence prevents this one, else nil.
local function answer_of(previous)
  local attempts = tonumber(previous.attempt or '') or 0
  local runs = previous.state == 'running' or previous.state == 'dying'
  if not previous.state then
    return nil
  elseif not runs and not has_begun(previous) then  -- fault: two-occurrences-wait
    return 'WAITING'  -- one occurrence waits at a time
  elseif verb == 'queue' then
    return 'WAITING'
  elseif verb == 'skip' then
    return 'SKIPPED'
  elseif verb == 'late' then
    -- If the previous one began after this one was due, it was late itself.
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
  set_field(P .. 'periodic:next', entry, following ~= '' and following)
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
local answer = id and id ~= '' and answer_of(read_record(id))
if answer == 'SKIPPED' then
  remember(id)
  count('skipped', 1)
  count('missed', missed)
  return answer
elseif answer then
  return answer
end
local made = submit_one(new_id, name, stream, due, '', envelope, locks, terms)
remember(new_id)
count('fired', made)
redis.call('HSET', P .. 'periodic:counts', entry .. '|last', occurrence)
count('missed', missed)
if made == 1 and due <= now then
  wake(size_of(stream), 1)
end
return 'FIRED'
