-- lib/condemning: needs base, wake, record, rescue, index, group, finish, ending, damage. Ends tasks whose keys
-- are damaged or whose record is gone.

-- The bytes to keep as evidence: the envelope, else what is in the place of the envelope or the record.
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

-- Let the next promotion check the queues of its locks.
local function offer_its_locks(id)
  local lines = redis.call('TYPE', P .. 'l:' .. id).ok == 'string' and redis.call('GET', P .. 'l:' .. id) or ''
  for name in string.gmatch(lines, '%u|([^|\n]*)|') do
    if redis.call('EXISTS', P .. 'queue:' .. name) == 1 then
      redis.call('ZADD', P .. 'watch', digits(now), name)
      wake_promoter_for(now)
    end
  end
end

-- End a task as dead, with its bytes in the quarantine. If it runs, its worker finds it gone. key and entry name
-- the pointer that led here, if any. The record is deleted last, so this can be repeated if Redis stops the script.
local function condemn(id, problem, key, entry)
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
  -- The damaged record may lack the marks that it has opened groups and that clients wait for it.
  local known = {group = record.group, opens = true, waited = true, stream = stream, name = record.name,
    tenant = record.tenant, unique = record.unique, letter = string.match(record.letter or '', '^%x+$'),
    workflow = record.workflow, edges = record.edges, any = record.any, hit = record.hit, unneeded = record.unneeded,
    blocked = record.blocked,
    delay = is_number(record.delay or '') and record.delay or nil, at = is_number(record.at or '') and record.at or nil,
    terms = record.terms}
  local name = string.find(record.name or '', '[%c\128-\255]') and '' or record.name or ''
  finish(id, known, 'dead', '0', made_document(name, used, problem, 'quarantined'))
  for _, set in ipairs({'tasks:delayed', 'deadlines'}) do
    redis.pcall('ZREM', P .. set, id)
  end
end

-- Handle a pointer whose record is damaged or gone. Returns whether this has ended a task. If Redis knows no
-- task of this id, neither live nor ended, its record was deleted or the pointer was forged: count that, and
-- let its waiters ask again. The relay submits a durable task again.
local function end_if_damaged(id, key, entry)
  local problem = damage_of(id)
  if problem then
    condemn(id, problem, key, entry)
  elseif redis.call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) == 0 then
    redis.pcall('HINCRBY', P .. 'counters', 'tasks:unknown', 1)
    pcall(tell_waiters, id)
  end
  return problem ~= nil
end
