#!lua flags=allow-oom
-- plan: bring periodic entries in line with a plan. An occurrence that has not begun is withdrawn
-- if its entry has changed, was disabled or is gone.
-- KEYS  prefix
-- ARGV  term, result ttl ms, dedup ttl ms,
--       n × (verb, entry, last µs, last µs if an occurrence is withdrawn that is to be submitted again
--       or '', fingerprints, next µs or '' (never), JSON for people, result of what is withdrawn)
--       verb: new | same | turn  it is planned, and has not been, has, or has been in another way
--             off | drop         it is disabled, or exists no more
-- returns the entries of which an occurrence was withdrawn; 0 if another term leads
-- @include base wake record submitting limits locks index group finish pauses queues refusal waiting cancel
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now then
  return 0
end
local ttl, dedup = tonumber(ARGV[2]), tonumber(ARGV[3])
local document
local withdrawn = {}

-- The task of an occurrence that waits and has not begun, with its record.
local function unstarted(id)
  if not id or id == '' then
    return nil
  end
  local record = read_fields(P .. 't:' .. id, {'state', 'gen', 'stream', 'places', 'pointer', 'group',
    'opens', 'waited', 'attempt', 'deaths', 'suspect', 'name', 'unfit', 'v'})
  local has_begun = (tonumber(record.attempt or '') or 0) > 0 or record.deaths or record.suspect
  return is_cancellable(record) and not has_begun and record or nil
end

local function withdraw(entry, id, record)
  cancel_task(id, record, document, ttl, dedup)
  withdrawn[#withdrawn + 1] = entry
end

local function keep(entry, last, id, prints)
  redis.call('HSET', P .. 'periodic', entry, last .. '|' .. id .. '|' .. prints)
end

local function turn(entry, id, last, again, prints, before, its_prints)
  if its_prints == prints then  -- the script is repeated: its answer was lost
    if before == again then
      withdrawn[#withdrawn + 1] = entry
    end
    return
  end
  local record = unstarted(id)
  -- Written first: if the script is cut here, the old occurrence runs instead of a new one.
  keep(entry, record and again ~= '' and again or last, id or '', prints)
  if record then
    withdraw(entry, id, record)
    if again ~= '' then
      redis.call('DEL', P .. 'r:' .. id)  -- the same id is submitted again
    end
  end
end

local function leave(entry, id, is_gone)
  local record = unstarted(id)
  if record then
    withdraw(entry, id, record)
  end
  redis.call('HDEL', P .. 'periodic:next', entry)
  redis.call('HDEL', P .. 'periodic', entry)
  if is_gone then
    for _, what in ipairs({'fired', 'skipped', 'missed', 'paused', 'last'}) do
      redis.call('HDEL', P .. 'periodic:counts', entry .. '|' .. what)
    end
    redis.call('HDEL', P .. 'periodic:paused', entry)
    redis.call('HDEL', P .. 'periodic:entries', entry)
  end
end

for i = 4, #ARGV, 8 do
  local verb, entry, last, again, prints, following = unpack(ARGV, i, i + 5)
  document = ARGV[i + 7]
  local before, id, its_prints = string.match(redis.call('HGET', P .. 'periodic', entry) or '',
    '^(%d+)|([^|]*)|?(.*)$')
  if verb == 'off' or verb == 'drop' then
    leave(entry, id, verb == 'drop')
  elseif verb == 'turn' then
    turn(entry, id, last, again, prints, before, its_prints)
  else
    -- Redis may have come back with older data than what the leader remembers.
    local is_older = before and verb == 'same' and tonumber(last) > tonumber(before)
    keep(entry, before and not is_older and before or last, id or '', prints)
  end
  if verb ~= 'drop' then
    redis.call('HSET', P .. 'periodic:entries', entry, ARGV[i + 6])
  end
  if verb ~= 'drop' and verb ~= 'off' then
    if following == '' then
      redis.call('HDEL', P .. 'periodic:next', entry)
    else
      redis.call('HSET', P .. 'periodic:next', entry, following)
    end
  end
end
offer_all()
return withdrawn
