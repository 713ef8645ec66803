#!lua flags=allow-oom
-- inspect: what a page of the namespace contains, as facts that belong together. It changes nothing, and
-- looks at a bounded number of things, however large a key is.
-- KEYS  prefix
-- ARGV  what: keys | due (members of tasks:delayed) | deadlines (members of that) | the name of a stream, or of a set that a row 'more'
--       told of; cursor, '0' at first; how many to look at
-- returns {next cursor, '0' at the end, n × row}; a row begins with what it is of:
--       record  id, state, gen, owner, 1 if that worker is registered, due µs or '', gen of the entry
--               its pointer names or '', who has that entry or '', 1 if it waits for locks or was woken,
--               µs since its worker said that it has it although its entry is gone or '', its stream or ''
--       damaged id, what is wrong with its keys; there is no row 'record' then
--       left    id, class, worker, µs since its attempt has ended: its code runs on, and keeps its locks
--       lease   lock, owner, µs left, 1 if that attempt or hold owns its record
--       waiter  lock, id, state of the record or '', 1 if the record stands in queues
--       group   id, state, children that are pending, parent or '', 1 if the parent has a record,
--               ttl ms or -1
--       child   group, its state, a child that has no record, how many of this page have none
--       part    key: of a record that is gone, without a ttl
--       lasting key: one that must expire, without a ttl
--       type    key, its type: not the one that its name stands for
--       garbage key, what it holds that we never write
--       unknown key
--       worker  worker, µs since its registration ended
--       member  stream, consumer, 1 if it is registered, deliveries that it has
--       idle    size, worker, 1 if it is registered
--       entry   stream, entry, id, 1 if a record is meant by it, 1 if there is a record
--       orphan  id: due, or with a deadline, without a record
--       more    name, cursor: of a key with more members than were looked at
-- @include base wake record damage
local what, cursor, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local FEW = 100
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

local function entry_of(id, record)
  local name, entry = pointer_of(record)
  local found = name and redis.pcall('XRANGE', P .. name, entry, entry)
  -- What follows from a generation may be another task's entry.
  if not found or found.err or not found[1] or found[1][2][2] ~= id then
    return '', ''
  end
  local pending = redis.pcall('XPENDING', P .. name, 'workers', entry, entry, 1)
  local owner = not pending.err and pending[1] and pending[1][2] or ''
  return found[1][2][4] or '', owner
end

-- A number that can be told as one; others are 'inf' and worse.
local function finite(text)
  local number = tonumber(text or '')
  return number and number == number and math.abs(number) < 2^63 and number or nil
end

local function tell_garbage(key, value)
  tell('garbage', key, string.sub(value, 1, 60))
end

local function due_of_record(id)
  local due = redis.pcall('ZSCORE', P .. 'tasks:delayed', id)
  return type(due) == 'string' and due or ''
end

-- Of a hold: whether it is kept for code that runs on although its attempt has ended.
local function tell_left(key)
  local hold = read_fields(key, {'left', 'name', 'owner', 'started'})
  local info = hold.left and redis.call('HGET', P .. 'w:' .. (hold.owner or ''), 'info')
  local since = finite(hold.started)
  if hold.left and since then
    tell('left', hold.left, hold.name or '', string.match(info or '', '"name":"([^"]*)"') or hold.owner or '',
      digits(now - since))
  end
end

local function tell_record(key, _, id)
  local record = read_fields(key, {'state', 'gen', 'owner', 'pointer', 'stream', 'since', 'kept'})
  if record.stream == 'hold' then
    return tell_left(key)
  end
  local damage = damage_of(id)
  if damage then
    return tell('damaged', id, damage)
  end
  local gen, holder = entry_of(id, record)
  local kept = finite(record.kept)
  tell('record', id, record.state or '', record.gen or '', record.owner or '',
    flag(record.owner and is_registered(record.owner)), due_of_record(id), gen, holder,
    flag(record.since), kept and digits(now - kept) or '', record.stream or '')
end

-- The members of a large key are told page by page: of each the first ones with the key itself.
local walks, after = what ~= 'keys' and what ~= 'due' and what ~= 'deadlines', '0'

local function each_member(scan, key, name, tell_member)
  local page = redis.call(scan, key, walks and cursor or '0', 'COUNT', walks and count or FEW)
  for i = 1, #page[2], scan == 'ZSCAN' and 2 or 1 do
    tell_member(name, page[2][i], page[2][i + 1])
  end
  after = page[1]
  if not walks and after ~= '0' then
    tell('more', name, after)
  end
end

local function tell_lease(lock, owner, expiry)
  local id, gen, fence = string.match(owner, '^(.*)/(%d+)/(%d+)$')
  if not id or not finite(expiry) then
    return tell_garbage(P .. lock, owner .. ' ' .. expiry)
  end
  local record = read_fields(P .. 't:' .. id, {'gen', 'fence', 'state'})
  local is_live = record.gen == gen and record.fence == fence
    and (record.state == 'running' or record.state == 'held')
  tell('lease', lock, owner, digits(tonumber(expiry) - now), flag(is_live))
end

local function tell_holder(key, name)
  local value = redis.call('GET', key) or ''
  local owner, expiry = string.match(value, '^(.*)|(%d+)$')
  if owner then
    tell_lease(name, owner, expiry)
  else
    tell_garbage(key, value)
  end
end

local function tell_holders(key, name)
  each_member('ZSCAN', key, name, tell_lease)
end

local function tell_waiter(name, member)
  local id = string.match(member, '^%S+') or ''
  local record = read_fields(P .. 't:' .. id, {'state', 'places'})
  tell('waiter', string.match(name, '^%a+:(.*)$'), id, record.state or '', flag(record.places))
end

local function tell_waiters(key, name)
  each_member('ZSCAN', key, name, tell_waiter)
end

local function tell_children(key, name, group)
  local first, missing = nil, 0
  each_member('SSCAN', key, name, function(_, child)
    if redis.call('EXISTS', P .. 't:' .. child) == 0 then
      first, missing = first or child, missing + 1
    end
  end)
  if first then
    tell('child', group, redis.call('HGET', P .. 'g:' .. group, 'state') or '', first, missing)
  end
end

local function tell_group(key, name, id)
  local group = string.match(id, '^(.*):pending$')
  if group then
    return tell_children(key, name, group)
  elseif string.find(id, ':', 1, true) then
    return
  end
  group = read_fields(key, {'state', 'parent'})
  tell('group', id, group.state or '', redis.call('SCARD', key .. ':pending'), group.parent or '',
    redis.call('EXISTS', P .. 't:' .. (group.parent or '')), redis.call('PTTL', key))
end

local function tell_part(key, _, id)
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

local function tell_worker(name, worker, ends)
  if not finite(ends) then
    tell_garbage(P .. name, worker .. ' ' .. ends)
  elseif tonumber(ends) < now then
    tell('worker', worker, digits(now - tonumber(ends)))
  end
end

local function tell_workers(key, name)
  each_member('ZSCAN', key, name, tell_worker)
end

local function tell_idle(key, name, size)
  each_member('ZSCAN', key, name, function(_, worker)
    tell('idle', size, worker, flag(is_registered(worker)))
  end)
end

-- A number that grows: beyond 2^53 it could not.
local function is_counter(text)
  return text and string.match(text, '^%d+$') and tonumber(text) < 2^53
end

local function tell_counter(key)
  local value = redis.call('GET', key) or ''
  if not is_counter(value) then
    tell_garbage(key, value)
  end
end

-- Of a hash: some fields must be such numbers.
local function tell_fields(key, names)
  for i, value in ipairs(redis.call('HMGET', key, unpack(names))) do
    if not is_counter(value) then
      tell_garbage(key, names[i] .. ' ' .. (value or '(none)'))
    end
  end
end

local function tell_epoch(key)
  tell_fields(key, {'since', 'seq', 'calm'})
end

local function tell_leader(key)
  tell_fields(key, {'term', 'expiry'})
  if redis.call('HEXISTS', key, 'owner') == 0 then
    tell_garbage(key, 'owner (none)')
  end
end

local function tell_hooks(key)
  local found = redis.call('HGETALL', key)
  for i = 1, #found, 2 do
    if not string.match(found[i + 1], '^%d+|%a+|') then
      tell_garbage(key, found[i] .. ' ' .. found[i + 1])
    end
  end
end

local function tell_pauses(key)
  local found = redis.call('HGETALL', key)
  for i = 1, #found, 2 do
    if not string.match(found[i + 1], '^%d+|[^|]*|') then
      tell_garbage(key, found[i] .. ' ' .. found[i + 1])
    end
  end
end

local function tell_unique(key, _, name)
  local id = string.match(redis.call('GET', key) or '', '^|(.+)$')
  local unique = id and redis.call('HGET', P .. 't:' .. id, 'unique')
  if redis.call('PTTL', key) == -1 and (not unique or string.sub(unique, 2) ~= name) then
    tell('part', key)
  end
end

local function nothing() end

-- By the name of a key up to its first colon: its type, and what there is to tell of it. false: any.
local KINDS = {t = {'hash', tell_record}, b = {'string', tell_part}, l = {'string', tell_part},
  e = {'string', tell_part}, h = {'list', tell_part}, c = {'string', tell_part},
  r = {'string', tell_lasting}, g = {false, tell_group}, woken = {'stream', tell_stream},
  suspects = {'stream', tell_stream}, burials = {'stream', tell_stream}, suspected = {'string', nothing}, accused = {'set', tell_lasting},
  waiters = {'zset', tell_lasting}, awaits = {'zset', tell_lasting}, open = {'set', tell_part},
  orders = {'set', tell_lasting}, wake = {'list', nothing}, w = {'hash', tell_lasting}, sum = {'string', tell_lasting},
  queue = {'zset', tell_waiters}, writers = {'zset', tell_waiters}, idle = {'zset', tell_idle},
  workers = {'zset', tell_workers}, groups = {'zset', nothing}, watch = {'zset', nothing},
  deadlines = {'zset', nothing}, expired = {'zset', nothing}, events = {'stream', nothing}, counters = {'hash', nothing}, mend = {'hash', nothing},
  fence = {'string', tell_counter}, epoch = {'hash', tell_epoch}, leader = {'hash', tell_leader},
  clock = {false, nothing}, pausing = {'string', nothing}, term = {'string', tell_counter}, promoted = {'string', tell_counter},
  periodic = {'hash', nothing}, startup = {'hash', tell_hooks}, quarantine = {false, nothing},
  config = {'hash', nothing}, limits = {false, nothing}, paused = {'hash', tell_pauses},
  probe = {false, nothing}, u = {'string', tell_unique}, active = {'hash', nothing},
  ceilings = {'hash', nothing}, slots = {'hash', nothing}, capped = {'string', nothing}, watched = {'string', nothing}, ends = {'hash', tell_lasting},
  names = {'hash', tell_lasting}, handed = {'set', tell_lasting}, unfit = {'zset', tell_lasting}, desired = {'hash', tell_lasting}, mark = {'string', tell_lasting}}
-- Of some the second word counts, too, or the whole name.
local DEEPER = {['tasks:delayed'] = {'zset', nothing}, ['lock:mutex'] = {'string', tell_holder},
  ['limiter:conc'] = {'zset', tell_holders}, ['limiter:rate'] = {'zset', tell_lasting},
  ['quarantine:bytes'] = {'string', nothing}}
local EXACT = {quarantine = {'stream', nothing}}

local function kind_of(name, head)
  if string.match(name, '^lock:rw:') then
    return string.sub(name, -2) == ':r' and {'zset', tell_holders} or {'string', tell_holder}
  end
  return EXACT[name] or DEEPER[string.match(name, '^%a+:%a+')]
    or head == 'tasks' and {'stream', tell_stream} or KINDS[head]
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
    local damage = PARTS[head] and damage_of(rest)
    if damage then
      return tell('damaged', rest, damage)
    end
    tell('type', key, actual)
  elseif actual ~= 'none' then
    kind[2](key, name, rest)
  end
end

-- Another key than its name says costs nobody else the look; a user who may not look ends it.
local function look_at(key)
  local fine, problem = pcall(tell_key, key)
  if fine then
    return
  end
  local text = type(problem) == 'table' and problem.err or tostring(problem)
  if string.find(text, 'NOPERM', 1, true) or string.find(text, "script can't", 1, true) then
    return tell_key(key)  -- fails as Redis says it
  end
  tell('type', key, text)
end

local function tell_entry(item)
  local id, gen = item[2][2] or '', item[2][4] or ''
  local fine, record = pcall(read_fields, P .. 't:' .. id, {'gen', 'pointer', 'stream'})
  record = fine and record or {}
  local name, entry = pointer_of(record)
  local is_meant = record.gen == gen and name == what and entry == item[1]
  tell('entry', what, item[1], id, flag(is_meant), flag(record.gen))
end

local function tell_entries()
  local from = cursor == '0' and '-' or '(' .. cursor
  local entries = redis.pcall('XRANGE', P .. what, from, '+', 'COUNT', count)
  if entries.err then
    return '0'
  end
  for _, item in ipairs(entries) do
    tell_entry(item)
  end
  return #entries == count and entries[count][1] or '0'
end

local function tell_due(name)
  local page = redis.pcall('ZSCAN', P .. name, cursor, 'COUNT', count)
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
    look_at(key)
  end
  return page[1]
end

local function tell_members()
  look_at(P .. what)
  return after
end

local function tell_page()
  if what == 'keys' then
    return tell_keys()
  elseif what == 'due' then
    return tell_due('tasks:delayed')
  elseif what == 'deadlines' then
    return tell_due(what)
  end
  local kind = string.match(what, '^%a+:')
  local is_stream = kind == 'tasks:' or kind == 'woken:' or kind == 'suspects:' or kind == 'burials:'
  return (is_stream and tell_entries or tell_members)()
end

local next_cursor = tell_page()
table.insert(rows, 1, next_cursor)
return rows
