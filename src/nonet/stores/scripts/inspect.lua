#!lua flags=allow-oom
-- inspect: what a page of the namespace contains, as facts that belong together. It changes nothing.
-- KEYS  prefix
-- ARGV  what: keys | due (members of tasks:delayed) | a stream without prefix; cursor, '0' at first;
--       how many to look at
-- returns {next cursor, '0' at the end, n × row}; a row begins with what it is of:
--       record  id, state, gen, owner, 1 if that worker is registered, due µs or '', gen of the entry
--               its pointer names or '', who has that entry or '', 1 if it has an envelope
--       lease   lock, owner, µs left, 1 if that attempt or hold owns its record
--       waiter  lock, id, state of the record or '', 1 if the record stands in queues
--       group   id, state, children that are pending, those of them without a record, parent or '',
--               1 if the parent has a record, ttl ms or -1
--       part    key: of a record that is gone, without a ttl
--       lasting key: one that must expire, without a ttl
--       type    key, its type: not the one that its name stands for
--       unknown key
--       worker  worker, µs since its registration ended, deliveries that it has
--       member  stream, consumer, 1 if it is registered, deliveries that it has
--       idle    size, worker, 1 if it is registered
--       entry   stream, entry, id, 1 if a record is meant by it
--       orphan  id: due, without a record
-- @include base
local what, cursor, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local rows = {}

local function tell(...)
  rows[#rows + 1] = {...}
end

local function flag(value)
  return value and 1 or 0
end

local function is_registered(worker)
  return redis.call('ZSCORE', P .. 'workers', worker)
end

local function entry_of(pointer)
  local name, entry = string.match(pointer or '', '^(%S+) (%S+)$')
  local found = name and redis.pcall('XRANGE', P .. name, entry, entry)
  if not found or found.err or not found[1] then
    return '', ''
  end
  local pending = redis.pcall('XPENDING', P .. name, 'workers', entry, entry, 1)
  local owner = not pending.err and pending[1] and pending[1][2] or ''
  return found[1][2][4] or '', owner
end

local function tell_record(key, id)
  local record = read_fields(key, {'state', 'gen', 'owner', 'pointer', 'stream'})
  if record.stream == 'hold' then
    return
  end
  local gen, holder = entry_of(record.pointer)
  local due = redis.call('ZSCORE', P .. 'tasks:delayed', id)
  tell('record', id, record.state or '', record.gen or '', record.owner or '',
    flag(record.owner and is_registered(record.owner)), due or '', gen, holder,
    redis.call('EXISTS', P .. 'b:' .. id))
end

local function tell_lease(lock, owner, expiry)
  local id, gen, fence = string.match(owner, '^(.*)/(%d+)/(%d+)$')
  local record = id and read_fields(P .. 't:' .. id, {'gen', 'fence', 'state'}) or {}
  local is_live = record.gen == gen and record.fence == fence
    and (record.state == 'running' or record.state == 'held')
  tell('lease', lock, owner, digits(tonumber(expiry) - now), flag(is_live))
end

local function tell_holder(key, name)
  local owner, expiry = string.match(redis.call('GET', key) or '', '^(.*)|(%d+)$')
  if owner then
    tell_lease(name, owner, expiry)
  end
end

local function tell_holders(key, name)
  local members = redis.call('ZRANGE', key, 0, 999, 'WITHSCORES')
  for i = 1, #members, 2 do
    tell_lease(name, members[i], members[i + 1])
  end
end

local function tell_waiters(key, name)
  for _, member in ipairs(redis.call('ZRANGE', key, 0, 999)) do
    local id = string.match(member, '^%S+')
    local record = read_fields(P .. 't:' .. id, {'state', 'places'})
    tell('waiter', string.match(name, '^%a+:(.*)$'), id, record.state or '', flag(record.places))
  end
end

local function tell_group(key, id)
  if string.find(id, ':', 1, true) then
    return
  end
  local group, missing = read_fields(key, {'state', 'parent'}), 0
  local pending = redis.call('SMEMBERS', key .. ':pending')
  for _, child in ipairs(pending) do
    missing = missing + 1 - redis.call('EXISTS', P .. 't:' .. child)
  end
  tell('group', id, group.state or '', #pending, missing, group.parent or '',
    redis.call('EXISTS', P .. 't:' .. (group.parent or '')), redis.call('PTTL', key))
end

local function tell_part(key, id)
  if redis.call('EXISTS', P .. 't:' .. id) == 0 and redis.call('PTTL', key) == -1 then
    tell('part', key)
  end
end

local function tell_lasting(key)
  if redis.call('PTTL', key) == -1 then
    tell('lasting', key)
  end
end

local function tell_stream(key, name)
  local groups = redis.pcall('XINFO', 'GROUPS', key)
  if groups.err or #groups == 0 then
    return
  end
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', key, 'workers')) do
    tell('member', name, consumer[2], flag(is_registered(consumer[2])), consumer[4])
  end
end

local function tell_workers(key)
  local members = redis.call('ZRANGEBYSCORE', key, '-inf', digits(now), 'WITHSCORES')
  for i = 1, #members, 2 do
    tell('worker', members[i], digits(now - tonumber(members[i + 1])))
  end
end

local function tell_idle(key, size)
  for _, worker in ipairs(redis.call('ZRANGE', key, 0, 999)) do
    tell('idle', size, worker, flag(is_registered(worker)))
  end
end

local function nothing() end

-- By the name of a key up to its first colon: its type, and what there is to tell of it. false: any.
local KINDS = {t = {'hash', tell_record}, b = {'string', tell_part}, l = {'string', tell_part},
  e = {'string', tell_part}, h = {'list', tell_part}, c = {'string', tell_part},
  r = {'string', tell_lasting}, g = {false, tell_group}, woken = {'stream', tell_stream},
  waiters = {'zset', tell_lasting}, awaits = {'zset', tell_lasting}, open = {'set', nothing},
  wake = {'list', nothing}, w = {'hash', tell_lasting}, sum = {'string', tell_lasting},
  queue = {'zset', tell_waiters}, writers = {'zset', tell_waiters}, idle = {'zset', tell_idle},
  workers = {'zset', tell_workers}, groups = {'zset', nothing}, watch = {'zset', nothing},
  events = {'stream', nothing}, counters = {'hash', nothing}, mend = {'hash', nothing},
  fence = {'string', nothing}, epoch = {'hash', nothing}, leader = {'hash', nothing},
  clock = {false, nothing}, term = {'string', nothing}, promoted = {'string', nothing}, periodic = {'hash', nothing},
  startup = {'hash', nothing}, quarantine = {false, nothing}, limits = {false, nothing}, probe = {false, nothing}}
-- Of some the second word counts, too.
local DEEPER = {['tasks:delayed'] = {'zset', nothing}, ['lock:mutex'] = {'string', tell_holder},
  ['limiter:conc'] = {'zset', tell_holders}, ['limiter:rate'] = {'zset', tell_lasting}}

local function kind_of(name, head)
  if head == 'tasks' or head == 'lock' or head == 'limiter' then
    if string.match(name, '^lock:rw:') then
      return string.sub(name, -2) == ':r' and {'zset', tell_holders} or {'string', tell_holder}
    end
    return DEEPER[string.match(name, '^%a+:%a+')] or head == 'tasks' and {'stream', tell_stream}
  end
  return KINDS[head]
end

local function tell_key(key)
  local name = string.sub(key, #P + 1)
  local head, rest = string.match(name, '^(%a+):?(.*)$')
  local kind = kind_of(name, head or '')
  if not kind then
    return tell('unknown', key)
  end
  local actual = redis.call('TYPE', key).ok
  if kind[1] and kind[1] ~= actual and actual ~= 'none' then
    return tell('type', key, actual)
  end
  if actual ~= 'none' then
    kind[2](key, (kind[2] == tell_holder or kind[2] == tell_holders or kind[2] == tell_stream
      or kind[2] == tell_waiters) and name or rest)
  end
end

local function tell_entries()
  local key = P .. what
  local from = cursor == '0' and '-' or '(' .. cursor
  local entries = redis.pcall('XRANGE', key, from, '+', 'COUNT', count)
  if entries.err then
    return '0'
  end
  for _, item in ipairs(entries) do
    local id, gen = item[2][2] or '', item[2][4]
    tell('entry', what, item[1], id, flag(redis.call('HGET', P .. 't:' .. id, 'gen') == gen))
  end
  return #entries == count and entries[count][1] or '0'
end

local function tell_due()
  local page = redis.pcall('ZSCAN', P .. 'tasks:delayed', cursor, 'COUNT', count)
  if page.err then
    return '0'
  end
  for i = 1, #page[2], 2 do
    if redis.call('EXISTS', P .. 't:' .. page[2][i]) == 0 then
      tell('orphan', page[2][i])
    end
  end
  return page[1]
end

local function tell_keys()
  local all = '*'
  local page = redis.call('SCAN', cursor, 'MATCH', P .. all, 'COUNT', count)
  for _, key in ipairs(page[2]) do
    local fine, problem = pcall(tell_key, key)
    if not fine then
      tell('type', key, type(problem) == 'table' and problem.err or tostring(problem))
    end
  end
  return page[1]
end

local next_cursor = (what == 'keys' and tell_keys or what == 'due' and tell_due or tell_entries)()
table.insert(rows, 1, next_cursor)
return rows
