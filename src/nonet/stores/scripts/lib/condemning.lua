-- lib/condemning: needs base, wake, record, rescue, index, group, finish, ending, damage. Ends a task whose
-- keys are damaged, and forgets one whose record is gone.

-- What there is to keep of it: its envelope, else what stands in its place or in that of its record.
local function bytes_of(id, record)
  local bytes = envelope_of(id, record)
  if bytes then
    return bytes
  end
  for _, key in ipairs({P .. 'b:' .. id, P .. 't:' .. id}) do
    local kind = redis.call('TYPE', key).ok
    if kind == 'string' then
      return redis.call('GETRANGE', key, 0, QUARANTINE.whole - 1)
    elseif kind == 'hash' then
      return string.sub(cmsgpack.pack(redis.call('HGETALL', key)), 1, QUARANTINE.whole)
    end
  end
  return ''
end

-- Those that stood behind it, or will take its locks, are looked at by the next promotion.
local function offer_its_locks(id)
  local lines = redis.call('TYPE', P .. 'l:' .. id).ok == 'string' and redis.call('GET', P .. 'l:' .. id) or ''
  for name in string.gmatch(lines, '%u|([^|\n]*)|') do
    if redis.call('EXISTS', P .. 'queue:' .. name) == 1 then
      redis.call('ZADD', P .. 'watch', digits(now), name)
      wake_promoter_for(now)
    end
  end
end

-- End it, dead, with its bytes in the quarantine. It may run: its worker finds it gone. key and entry are
-- those of the pointer that led here, if one did. Safe to repeat after a cut, as the record goes last.
local function condemn(id, problem, ttl, dedup, key, entry)
  local is_hash = redis.call('TYPE', P .. 't:' .. id).ok == 'hash'
  local record = is_hash and read_record(id) or {}
  if not record.quarantined then
    local bytes = bytes_of(id, record)
    local kept = keep_in_quarantine('damaged: ' .. problem, id, key or '', entry or '', #bytes, bytes)
    if is_hash then
      redis.call('HSET', P .. 't:' .. id, 'quarantined', kept)
    end
  end
  offer_its_locks(id)
  local used = is_number(record.attempt or '') and tonumber(record.attempt) or 0
  local stream = is_stream(record.stream) and record.stream or nil
  -- Its record may have forgotten that it has opened groups, and that others wait for it.
  local told = {group = record.group, opens = true, waited = true, is_whole = true, stream = stream,
    name = record.name, unique = record.unique, letter = string.match(record.letter or '', '^%x+$')}
  local name = string.find(record.name or '', '[%c\128-\255]') and '' or record.name or ''
  finish(id, told, 'dead', '0', made_document(name, used, problem, 'quarantined'), ttl, dedup)
  for _, set in ipairs({'tasks:delayed', 'deadlines'}) do
    redis.pcall('ZREM', P .. set, id)
  end
end

-- Handle a pointer whose record is damaged or gone. Returns whether this has ended a task. If Redis does not know it, neither live nor ended, then somebody has deleted its record, or has
-- written the pointer: count that, and let those who wait ask again. The relay submits a durable task again.
local function end_if_damaged(id, ttl, dedup, key, entry)
  local problem = damage_of(id)
  if problem then
    condemn(id, problem, ttl, dedup, key, entry)
  elseif redis.call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) == 0 then
    redis.pcall('HINCRBY', P .. 'counters', 'tasks:unknown', 1)
    pcall(tell_waiters, id)
  end
  return problem ~= nil
end
