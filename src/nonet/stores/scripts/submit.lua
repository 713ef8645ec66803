#!lua
-- submit: create the tasks whose ids are not known, all of them or none. Fails when memory is full.
-- KEYS  prefix
-- ARGV  keeping, runs of tasks that differ only in id and envelope:
--       number, name, stream, due µs (see due_of), group or '', locks, terms, number × (id, envelope)
-- returns 1 if all were created; else for each task 1 created | 0 known | {id of the task that holds its unique
--       key}. If none was created: {'IMPOSSIBLE', id, why}: it asks a limiter for more than its limit; {'TAKEN', id,
--       workflow}: a workflow, or a step of it, has the id; or {'FULL', …}, see find_excess()
-- @include now plain
-- @defer wake wake
local FIRST_RUN, HEAD, at = 2, 7, 2

-- Whether no task and no workflow has one of these ids, and none of them may belong to a step.
local function are_new(ids)
  local keys = {}
  for _, id in ipairs(ids) do
    local workflow = string.match(id, '^(.*):[%d.]+$')
    keys[#keys + 1], keys[#keys + 2], keys[#keys + 3] = P .. 't:' .. id, P .. 'r:' .. id, P .. 'f:' .. id
    keys[#keys + 1] = workflow and P .. 'f:' .. workflow
  end
  return redis.call('EXISTS', unpack(keys)) == 0  -- fault: new-unchecked
end

-- One task takes 30 µs less of Redis if what other tasks need is not defined.
-- @defer leases records wake record counting submitting creating create

-- Most calls have only new, plain tasks of one stream, which may start now: without a group, without terms except their
-- tenant, and without a rate limiter (whose line ends in a number of items).
local stream, is_plain, ids = ARGV[FIRST_RUN + 2], not (is_capped or marks[6]), {}
while is_plain and at <= #ARGV do
  local count, _, to, due, group, locks, terms = unpack(ARGV, at, at + HEAD - 1)
  is_plain = due == '0' and group == '' and (terms == '' or string.find(terms, '^tenant|[^\n]*$')) and to == stream
    and not string.find(locks .. '\n', '%d\n')
  for i = at + HEAD, at + HEAD + 2 * count - 1, 2 do
    is_plain = is_plain and records.texts[ARGV[i]] == nil and #ARGV[i + 1] <= records.LONG_ENVELOPE
    ids[#ids + 1], records.texts[ARGV[i]] = ARGV[i], false
  end
  at = at + HEAD + 2 * count
end
local function create_any()
  for _, id in ipairs(ids) do
    records.texts[id] = nil
  end
  return create()
end
if not is_plain or not are_new(ids) then
  return create_any()
end

local created = 0
at = FIRST_RUN
while at <= #ARGV do
  local count, name, locks, tenant = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 5], string.sub(ARGV[at + 6], #'tenant|' + 1)
  local rest = records.behind_pointer({name = name, stream = stream, tenant = tenant, locks = given(locks)})
  for i = at + HEAD, at + HEAD + 2 * count - 1, 2 do
    local id, gen = ARGV[i], digits(now + created)
    -- If the stream has a later entry, the tasks need other entries. If the first task fits, all do.
    local added = redis.pcall('XADD', P .. 'tasks:' .. stream, first_entry(gen), 'id', id, 'gen', gen)
    if type(added) == 'table' then
      return create_any()
    end
    records.put_plain(id, gen, '', rest, ARGV[i + 1])
    created = created + 1
  end
  redis.call('HINCRBY', P .. 'active', stream .. '|' .. name, count)
  if tenant ~= '' then
    redis.call('HINCRBY', P .. 'active:tenants', tenant, count)
  end
  at = at + HEAD + 2 * count
end
records.write_all()
if marks[5] then
  redis.call('HINCRBY', P .. 'counters', 'submitted:' .. stream, created)
end
local size = string.match(stream, '[^:]*$')
if redis.call('ZCARD', P .. 'idle:' .. size) ~= 0 then
  wake(size, created)
end
return 1
