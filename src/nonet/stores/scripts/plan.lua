#!lua flags=allow-oom
-- plan: apply the plan of the periodic entries. Withdraw an occurrence that has not begun if its entry was
-- changed, disabled or deleted.
-- KEYS  prefix
-- ARGV  keeping, term,
--       n × (verb, entry, last µs, last µs instead if a withdrawn occurrence must be submitted again, or '',
--       fingerprints, next µs or '' (never), JSON for people, result of what is withdrawn)
--       verb: new | same | turn  it is planned: for the first time, unchanged, or changed
--             off | drop         it is disabled, or deleted
-- returns the entries whose occurrence was withdrawn; 0 if another term leads
-- @include base hashes leading progress wake record counting submitting limits mutexes locks index group keeping finish fitting pauses queues refusal waiting cancel
local term, FIRST, FIELDS = ARGV[2], 3, 8
if not leads(term) then
  return 0
end
local document  -- the result of what is withdrawn, of the current entry
local withdrawn = {}

-- The record of an occurrence whose task waits and has not begun, or nil.
local function unstarted(id)
  if not id or id == '' then
    return nil
  end
  local record = read_record(id)
  return is_cancellable(record) and not has_begun(record) and record or nil
end

local function withdraw(entry, id, record)
  end_waiting(id, record, 'cancelled', document)
  withdrawn[#withdrawn + 1] = entry
end

local function keep(entry, last, id, prints)
  redis.call('HSET', P .. 'periodic', entry, last .. '|' .. id .. '|' .. prints)
end

local function turn(entry, id, last, again, prints, before, its_prints)
  if its_prints == prints then  -- a repeated call, whose reply was lost
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

for i = FIRST, #ARGV, FIELDS do
  local verb, entry, last, again, prints, following, info
  verb, entry, last, again, prints, following, info, document = unpack(ARGV, i, i + FIELDS - 1)
  local before, id, its_prints = string.match(redis.call('HGET', P .. 'periodic', entry) or '',
    '^(%d+)|([^|]*)|(.*)$')
  if verb == 'off' or verb == 'drop' then
    leave(entry, id, verb == 'drop')
  elseif verb == 'turn' then
    turn(entry, id, last, again, prints, before, its_prints)
  else
    -- Redis may have come back with older data than the leader remembers.
    local is_older = before and verb == 'same' and tonumber(last) > tonumber(before)
    keep(entry, before and not is_older and before or last, id or '', prints)
  end
  if verb ~= 'drop' then
    redis.call('HSET', P .. 'periodic:entries', entry, info)
  end
  if verb ~= 'drop' and verb ~= 'off' then
    set_field(P .. 'periodic:next', entry, following ~= '' and following)
  end
end
offer_all()
return withdrawn
