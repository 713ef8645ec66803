#!lua
-- submit: create the tasks whose ids are not known, all of them or none. Fails when memory is full.
-- KEYS  prefix
-- ARGV  keeping, runs of tasks that differ only in id and envelope:
--       number, name, stream, due µs (see due_of), group or '', locks, terms, number × (id, envelope)
-- returns 1 if all were created; else for each task 1 created | 0 known | {id of the task that holds its unique
--       key}. If none was created: {'IMPOSSIBLE', id, why}: it asks a limiter for more than its limit; {'TAKEN', id,
--       workflow}: a workflow, or a step of it, has the id; or {'FULL', …}, see find_excess()
-- @include now
-- @defer wake wake
-- @defer shares share
local FIRST_RUN, HEAD, at = 2, 7, 2
-- @defer leases records wake record counting submitting creating create

-- Most calls have only new, plain tasks of one stream, which may start now: without a group, without terms except their
-- tenant, and without a rate limiter (whose line ends in a number of items). Collect the keys that must not exist for
-- them, and what to store.
local stream, is_plain, absent, stored, met = ARGV[FIRST_RUN + 2], not is_capped, {}, {}, {}
local is_shared = marks[6] and string.find(marks[6], ' ' .. stream .. ' ', 1, true)
while is_plain and at <= #ARGV do
  local count, _, to, due, group, locks, terms = unpack(ARGV, at, at + HEAD - 1)
  is_plain = due == '0' and group == '' and (terms == '' or string.find(terms, '^tenant|[^\n]*$')) and to == stream
    and not string.find(locks .. '\n', '%d\n')
  for i = at + HEAD, at + HEAD + 2 * count - 1, 2 do
    local id = ARGV[i]
    is_plain, met[id] = is_plain and not met[id], true
    local workflow, n = string.match(id, '^(.*):[%d.]+$'), #absent  -- such an id may belong to a step
    absent[n + 1], absent[n + 2], absent[n + 3], absent[n + 4] = P .. 't:' .. id, P .. 'r:' .. id, P .. 'f:' .. id,
      workflow and P .. 'f:' .. workflow
    stored[#stored + 1], stored[#stored + 2] = P .. 'b:' .. id, ARGV[i + 1]
    if locks ~= '' then
      stored[#stored + 1], stored[#stored + 2] = P .. 'l:' .. id, locks
    end
  end
  at = at + HEAD + 2 * count
end
if not is_plain or redis.call('EXISTS', unpack(absent)) > 0 then  -- fault: plain-known-id
  return create()
end

redis.call('MSET', unpack(stored))
local created = 0
at = FIRST_RUN
while at <= #ARGV do
  local count, name, terms, pointers = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 6], {}
  local tenant = string.sub(terms, #'tenant|' + 1)
  for i = is_shared and at + HEAD or #ARGV + 1, at + HEAD + 2 * count - 1, 2 do
    pointers[#pointers + 1] = ARGV[i] .. ' ' .. digits(now + created + #pointers)
  end
  if is_shared then
    share('tasks', stream, tenant, pointers)
  end
  for i = at + HEAD, at + HEAD + 2 * count - 1, 2 do
    local id, gen = ARGV[i], digits(now + created)
    if not is_shared then
      -- The entry id is made of the gen, see first_entry() in lib/record.
      local entry = string.sub(gen, 1, -4) .. '-' .. tonumber(string.sub(gen, -3))
      -- If the stream has a later entry, the tasks need other entries. If the first task fits, all do.
      local added = redis.pcall('XADD', P .. 'tasks:' .. stream, entry, 'id', id, 'gen', gen)
      if type(added) == 'table' then
        return create()
      end
    end
    if i == at + HEAD then
      redis.call('HINCRBY', P .. 'active', stream .. '|' .. name, count)
      if tenant ~= '' then
        redis.call('HINCRBY', P .. 'active:tenants', tenant, count)
      end
    end
    if terms == '' and not is_shared then
      redis.call('HSET', P .. 't:' .. id, 'state', 'queued', 'gen', gen, 'name', name, 'stream', stream)
    else
      redis.call('HSET', P .. 't:' .. id, 'state', 'queued', 'gen', gen, 'name', name, 'stream', stream, 'tenant', tenant,
        'pointer', is_shared and '-' or '')  -- IN_LIST, see lib/record
    end
    created = created + 1
  end
  at = at + HEAD + 2 * count
end
if marks[5] then
  redis.call('HINCRBY', P .. 'counters', 'submitted:' .. stream, created)
end
local size = string.match(stream, '[^:]*$')
if redis.call('ZCARD', P .. 'idle:' .. size) ~= 0 then
  wake(size, created)
end
return 1
