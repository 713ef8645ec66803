#!lua flags=no-writes
-- inspect: read a page of the namespace as facts for the doctor. It changes nothing, and reads a bounded number
-- of members, however large a key is.
-- KEYS  prefix
-- ARGV  what: keys | due (members of tasks:delayed) | deadlines (its members) | the name of a stream, or of
--       a set that a row 'more' named; cursor, '0' at first; how many to read
-- returns {next cursor, '0' at the end, n × row}; a row begins with its kind:
--       record  id, state, gen, owner, 1 if that worker is registered, due µs or '', gen of the entry
--               its pointer names or '', the worker that has that entry or '', 1 if it waits for locks or
--               was woken, µs since its worker renewed it without its entry or '', its stream or '',
--               both workers as people call them
--       left    id, class, worker, µs since its attempt ended: its code still runs and keeps its locks
--       lease   lock, owner, µs left, 1 if that attempt or hold owns its record
--       waiter  lock, id, state of the record or '', 1 if the record stands in queues
--       group   id, state, children that are pending, parent or '', 1 if the parent has a record,
--               ttl ms or -1
--       child   group, its state, a child that has no record, how many of this page have none
--       flow    workflow, its state, steps that have not ended, ttl ms or -1, 1 if a process continues to cancel or
--               resume it
--       step    workflow, its state, a step that has not ended and has no record, how many of this page have none
--       blocked step, state of its workflow (cancelled while it is being cancelled) or '', how many steps it waits for,
--               one of them that nothing will follow or ''
--       rest    key: of a workflow that is gone, without a ttl
--       part    key: of a record that is gone, without a ttl
--       lasting key: without a ttl, although it must expire
--       type    key, its type: not the type of keys with such a name
--       malformed  key, or stream and entry: another program has written its values; the error
--       unknown key
--       worker  worker, µs since its registration ended
--       member  stream, consumer, 1 if it is registered, deliveries that it has
--       idle    size, worker, 1 if it is registered
--       entry   stream, entry, id, 1 if it is the current pointer of a record, 1 if there is a record
--       lost    list of a tenant that takes no part, its length
--       orphan  id: due, or with a deadline, without a record
--       more    name, cursor: of a key with more members than were read
-- @include base mutexes wake streams record listed naming followed
local what, cursor, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local FEW = 100
local rows = {}

local function report(...)
  rows[#rows + 1] = {...}
end

local function flag(value)
  return value and 1 or 0
end

local function is_registered(worker)
  return redis.call('ZSCORE', P .. 'workers', worker)
end

local function entry_of(id, record)
  if record.pointer == IN_LIST then
    return is_in_list(id, record) and record.gen or '', ''
  end
  local name, entry = pointer_of(record)
  local found = name and redis.call('XRANGE', P .. name, entry, entry)[1]
  -- The entry id derived from a generation may belong to another task.
  if not found or found[2][2] ~= id then
    return '', ''
  end
  local pending = pending_in(P .. name, entry, entry, 1)[1]
  return found[2][4], pending and pending[2] or ''
end

-- Report a hold that keeps the locks of code that still runs after its attempt; its worker renews it until it has ended.
local function report_left(key, hold)
  if hold.left and redis.call('PTTL', key) > LOCKS_KEPT then
    report('left', hold.left, hold.name or '', shown(hold.owner or ''), digits(now - tonumber(hold.started)))
  end
end

local function report_blocked(id, workflow)
  local flow, lost, SOME = read_fields(P .. 'f:' .. workflow, {'state', 'cancel'}), '', 20
  for _, place in ipairs(redis.call('SRANDMEMBER', P .. 'm:' .. id, SOME)) do
    lost = is_lost_step(workflow, place) and workflow .. ':' .. place or lost
  end
  report('blocked', id, flow.cancel and 'cancelled' or flow.state or '', redis.call('SCARD', P .. 'm:' .. id), lost)
end

local function report_record(key, _, id)
  local record = read_record(id)
  if record.stream == 'hold' then
    return report_left(key, record)
  end
  local gen, holder = entry_of(id, record)
  report('record', id, record.state or '', record.gen or '', record.owner or '',
    flag(record.owner and is_registered(record.owner)), redis.call('ZSCORE', P .. 'tasks:delayed', id) or '', gen, holder,
    flag(record.since), record.kept and digits(now - tonumber(record.kept)) or '', record.stream or '',
    record.owner and shown(record.owner) or '', holder ~= '' and shown(holder) or '')
  if record.blocked then
    report_blocked(id, record.workflow or '')
  end
end

-- The members of a large key are read page by page; with the key itself only the first ones.
local walks, after = what ~= 'keys' and what ~= 'due' and what ~= 'deadlines', '0'

local function each_member(scan, key, name, report_member)
  local page = redis.call(scan, key, walks and cursor or '0', 'COUNT', walks and count or FEW)
  for i = 1, #page[2], scan == 'ZSCAN' and 2 or 1 do
    report_member(name, page[2][i], page[2][i + 1])
  end
  after = page[1]
  if not walks and after ~= '0' then
    report('more', name, after)
  end
end

-- A function that reports each member of a sorted set.
local function each_of(report_member)
  return function(key, name)
    each_member('ZSCAN', key, name, report_member)
  end
end

local function report_lease(lock, owner, expiry)
  local id, gen, fence = string.match(owner, '^(.*)/(%d+)/(%d+)$')
  local record = read_record(id or '')
  local is_live = record.gen == gen and record.fence == fence
    and (record.state == 'running' or record.state == 'held')
  report('lease', lock, owner, digits(tonumber(expiry) - now), flag(is_live))
end

local function report_holder(key, name)
  report_lease(name, string.match(redis.call('GET', key), '^(.*)|(%d+)$'))
end

local function report_waiter(name, member)
  local id = string.match(member, '^%S+') or ''
  local record = read_record(id)
  report('waiter', string.match(name, '^%a+:([^|]*)'), id, record.state or '', flag(record.places))
end

-- Report the members of a set whose tasks have no record. owner: the key of what they belong to; before: what the id of a
-- task has before the member.
local function report_missing(kind, key, name, owner, id, before)
  local first, missing = nil, 0
  each_member('SSCAN', key, name, function(_, member)
    if not records.has(before .. member) then
      first, missing = first or before .. member, missing + 1
    end
  end)
  if first then
    report(kind, id, redis.call('HGET', owner, 'state') or '', first, missing)
  end
end

local function report_group(key, name, id)
  local group = string.match(id, '^(.*):pending$')
  if group then
    return report_missing('child', key, name, P .. 'g:' .. group, group, '')
  elseif string.find(id, ':', 1, true) then
    return
  end
  group = read_fields(key, {'state', 'parent'})
  report('group', id, group.state or '', redis.call('SCARD', key .. ':pending'), group.parent or '',
    flag(records.has(group.parent or '')), redis.call('PTTL', key))
end

local function report_rest(key, workflow)
  if redis.call('EXISTS', P .. 'f:' .. workflow) == 0 and redis.call('PTTL', key) == -1 then
    report('rest', key)
  end
end

-- A key of a step that belongs to its workflow.
local function report_rest_of_step(key, _, id)
  report_rest(key, string.match(id, '^(.*):') or '')
end

local PARTS_OF_WORKFLOW = {live = 'set', failed = 'set', results = 'hash', graph = 'hash', signals = 'hash'}

-- The workflow that a key f:NAME belongs to, and which part of it; nil if it is the workflow itself.
local function part_of_workflow(name)
  local workflow, part = string.match(name, '^(.*):(%l+)$')
  if part and PARTS_OF_WORKFLOW[part] then
    return workflow, part
  end
  return name, nil
end

local function report_workflow(key, name, id)
  local workflow, part = part_of_workflow(id)
  if part == 'live' then
    report_missing('step', key, name, P .. 'f:' .. workflow, workflow, workflow .. ':')
  end
  if part then
    return report_rest(key, workflow)
  end
  report('flow', id, redis.call('HGET', key, 'state') or '', redis.call('SCARD', key .. ':live'), redis.call('PTTL', key),
    redis.call('SISMEMBER', P .. 'workflows:work', id))
end

local function report_part(key, _, id)
  if not records.has(id) and redis.call('PTTL', key) == -1 then
    report('part', key)
  end
end

local function report_lasting(key)
  if redis.call('PTTL', key) == -1 then
    report('lasting', key)
  end
end

local function report_stream(key, name)
  local consumers = redis.pcall('XINFO', 'CONSUMERS', key, 'workers')
  for _, consumer in ipairs(consumers.err and {} or consumers) do
    report('member', name, shown(consumer[2]), flag(is_registered(consumer[2])), consumer[4])
  end
end

local function report_worker(_, worker, ends)
  if tonumber(ends) < now then
    report('worker', shown(worker), digits(now - tonumber(ends)))
  end
end

local function report_idle(key, name, size)
  each_member('ZSCAN', key, name, function(_, worker)
    report('idle', size, shown(worker), flag(is_registered(worker)))
  end)
end

local function report_unique(key, _, name)
  local id = string.match(redis.call('GET', key) or '', '^|(.+)$')
  local unique = id and read_record(id).unique
  if redis.call('PTTL', key) == -1 and (not unique or string.sub(unique, 2) ~= name) then
    report('part', key)
  end
end

local function nothing() end

-- A list whose tenant takes no part is never read.
local function report_share(key, name)
  local stream, tenant = string.match(name, '^share:%l+:(%l+:%l+):(.*)$')
  if not stream or not redis.call('ZSCORE', P .. 'shares:' .. stream, tenant) then
    report('lost', name, redis.call('LLEN', key))
  end
end

-- The type of a key, and what to report of it, by its name up to the first colon. false: any type.
local KINDS = {t = {'string', report_record}, b = {'string', report_part},
  e = {'string', report_part}, h = {'list', report_part}, c = {'string', report_part},
  r = {'string', report_lasting}, l = {'hash', report_lasting}, g = {false, report_group}, woken = {'stream', report_stream},
  suspects = {'stream', report_stream}, burials = {'stream', report_stream}, suspected = {'string', nothing}, accused = {'set', report_lasting},
  waiters = {'zset', report_lasting}, awaits = {'zset', report_lasting}, open = {'set', report_part},
  orders = {'set', report_lasting}, wake = {'list', nothing}, w = {'hash', report_lasting}, sum = {'string', report_lasting},
  f = {false, report_workflow}, queue = {'zset', each_of(report_waiter)}, writers = {'zset', each_of(report_waiter)}, line = {'zset', each_of(report_waiter)}, idle = {'zset', report_idle},
  workers = {'zset', each_of(report_worker)}, groups = {'zset', nothing}, watch = {'zset', nothing},
  deadlines = {'zset', nothing}, expired = {'zset', nothing}, events = {'stream', nothing}, counters = {'hash', nothing}, mend = {'hash', nothing},
  fence = {'string', nothing}, epoch = {'hash', nothing}, leader = {'hash', nothing},
  clock = {false, nothing}, pausing = {'string', nothing}, term = {'string', nothing}, promoted = {'string', nothing},
  periodic = {'hash', nothing}, startup = {'hash', nothing}, quarantine = {false, nothing},
  config = {'hash', nothing}, limits = {false, nothing}, paused = {'hash', nothing},
  probe = {false, nothing}, u = {'string', report_unique}, active = {'hash', nothing},
  share = {'list', report_share}, shares = {'zset', nothing}, rested = {'zset', nothing}, pace = {'hash', nothing},
  weights = {'hash', nothing}, fair = {'string', nothing}, fairness = {'hash', nothing},
  ceilings = {'hash', nothing}, slots = {'hash', nothing}, capped = {'string', nothing}, paid = {'string', report_lasting}, duty = {'string', report_lasting}, watched = {'string', nothing}, ends = {'hash', report_lasting}, ended = {'list', nothing}, figures = {false, report_lasting},
  names = {'hash', report_lasting}, handed = {'set', report_lasting}, unfit = {'zset', report_lasting}, desired = {'hash', report_lasting}, mark = {'string', report_lasting},
  web = {'string', report_lasting}, seen = {'string', report_lasting}, hints = {'zset', report_lasting},
  pipelines = {'hash', report_lasting}, workflows = {'zset', nothing}, edges = {'zset', nothing},
  m = {'set', report_rest_of_step}, n = {'list', report_rest_of_step}, j = {'set', report_rest_of_step},
  k = {'hash', report_rest_of_step}, s = {'hash', report_rest_of_step}}
-- More specific names: the first two words, or the whole name.
local DEEPER = {['tasks:delayed'] = {'zset', nothing}, ['lock:mutex'] = {'string', report_holder},
  ['limiter:conc'] = {'zset', each_of(report_lease)}, ['limiter:rate'] = {'zset', report_lasting},
  ['quarantine:bytes'] = {'string', nothing}, ['web:sessions'] = {'zset', report_lasting}, ['web:bulks'] = {'hash', report_lasting},
  ['pipelines:turn'] = {'string', report_lasting}, ['workflows:work'] = {'set', nothing},
  ['web:filters'] = {'hash', nothing}}
local EXACT = {quarantine = {'stream', nothing}}

local function kind_of(name, head)
  if head == 'lock' and not string.match(name, '^lock:mutex:') then
    return string.sub(name, -2) == ':r' and {'zset', each_of(report_lease)} or {'string', report_holder}
  end
  if head == 'f' then
    local _, part = part_of_workflow(string.sub(name, 3))
    return {PARTS_OF_WORKFLOW[part] or 'hash', KINDS.f[2]}
  end
  return EXACT[name] or DEEPER[string.match(name, '^%a+:%a+')]
    or head == 'tasks' and {'stream', report_stream} or KINDS[head]
end

local function report_key(key)
  local name = string.sub(key, #P + 1)
  local head, rest = string.match(name, '^(%a+):?(.*)$')
  local kind = kind_of(name, head or '')
  if not kind then
    return report('unknown', key)
  end
  local actual = redis.call('TYPE', key).ok
  if kind[1] and kind[1] ~= actual and actual ~= 'none' then
    report('type', key, actual)
  elseif actual ~= 'none' then
    kind[2](key, name, rest)
  end
end

-- Call a function that reports something, and return its answer. If it fails, return nil and report the subject as
-- malformed, unless the cause is a key of a wrong type, which has a row already.
local function try(about, what_to_report, ...)
  local fine, answer = pcall(what_to_report, ...)
  local reason = fine and '' or reason_of(answer)
  if string.find(reason, 'NOPERM', 1, true) then
    error(answer)
  elseif not fine and not string.find(reason, 'WRONGTYPE', 1, true) then
    report('malformed', about, string.sub(reason, 1, 200))
  end
  return fine and answer or nil
end

local function report_entry(item)
  local id, gen = item[2][2] or '', item[2][4] or ''
  local record = read_record(id)
  local name, entry = pointer_of(record)
  local is_meant = record.gen == gen and (record.pointer == IN_LIST or name == what and entry == item[1])
  report('entry', what, item[1], id, flag(is_meant), flag(record.gen))
end

local function report_entries()
  local from = cursor == '0' and '-' or '(' .. cursor
  local entries = redis.call('XRANGE', P .. what, from, '+', 'COUNT', count)
  for _, item in ipairs(entries) do
    try(what .. ' ' .. item[1], report_entry, item)
  end
  return #entries == count and entries[count][1] or '0'
end

local function report_due(name)
  local page = redis.call('ZSCAN', P .. name, cursor, 'COUNT', count)
  for i = 1, #page[2], 2 do
    if not records.has(page[2][i]) then
      report('orphan', page[2][i])
    end
  end
  return page[1]
end

local function report_keys()
  local all = '*'
  local page = redis.call('SCAN', cursor, 'MATCH', P .. all, 'COUNT', count)
  for _, key in ipairs(page[2]) do
    try(key, report_key, key)
  end
  return page[1]
end

local function report_members()
  report_key(P .. what)
  return after
end

local function report_page()
  if what == 'keys' then
    return report_keys()
  elseif what == 'due' then
    return report_due('tasks:delayed')
  elseif what == 'deadlines' then
    return report_due(what)
  end
  local is_entries = is_stream(string.match(what, '^%l+:(.*)$'))
  return (is_entries and report_entries or report_members)()
end

local next_cursor = try(what, report_page) or '0'
table.insert(rows, 1, next_cursor)
return rows
