-- lib/submitting: needs base, wake, record, counting. Creates tasks.

-- Convert a due time by the client's wall clock (µs) to logical µs; 0: now; below 0: so many µs from now.
local function due_of(wall)
  wall = tonumber(wall)
  return wall > 0 and wall + offset or wall < 0 and now - wall or 0
end

-- The field start_by of a record, 'logical µs|1 if it then gets a row in SQL', from terms that contain 'start_by|when|1'.
-- when is in µs of the wall clock or, with a '+', from now.
local function start_by_in(terms)
  local plus, when, eligible = string.match('\n' .. terms, '\nstart_by|(%+?)(%d+)|(%d?)')
  return when and digits(tonumber(when) + (plus == '' and offset or now)) .. '|' .. eligible
end

-- Let a task expire, once its record says when.
local function watch_start(id, start_by)
  local deadline = string.match(start_by, '^%d+')
  redis.call('ZADD', P .. 'deadlines', deadline, id)
  wake_promoter_for(tonumber(deadline))
end

local function tenant_in(terms)
  return terms ~= '' and string.match('\n' .. terms, '\ntenant|([^\n]*)') or ''
end

-- Scripts in which a task may meet the holder of its unique key set this to claim_key, see lib/unique.
local claim

local submit_run
do
  -- Let a known child belong to its group. It may have come, and ended, before Redis lost the group that is built now.
  local function rejoin(group, id)
    local key = P .. 'g:' .. group
    if redis.call('HGET', key, 'state') ~= 'building' or redis.call('HEXISTS', key .. ':results', id) == 1 then
      return
    end
    local ended = redis.call('GET', P .. 'r:' .. id)
    if not ended then
      redis.call('SADD', key .. ':pending', id)
      return
    end
    redis.call('HSET', key .. ':results', id, ended)
    if not string.find(ended, '^done|') then
      redis.call('HINCRBY', key, 'failed', 1)
    end
  end

  -- Whether the id of a task is known: as a record, as a stored result, or as an ended child of its group.
  local function is_repeated(id, group)
    if records.is_known(id) then  -- fault: known-id
      if group ~= '' then
        rejoin(group, id)
      end
      return true
    end
    return group ~= '' and redis.call('HEXISTS', P .. 'g:' .. group .. ':results', id) == 1
  end

  -- The fields that few tasks have, of a task with these terms.
  local function few_fields(group, terms, mode, span, unique)
    return {group = given(group), start_by = start_by_in(terms), v = string.match('\n' .. terms, '\nformat|(%d+)'),
      letter = string.match('\n' .. terms, '\nletter|(%x+)'),
      unique = mode and span == '0' and string.sub(mode, 1, 1) .. unique or nil}  -- it holds its key as long as this says so
  end

  local function is_later(run)
    return run.due > now  -- fault: delay-ignored
  end

  -- Let workers find these tasks now, or after `due`. gens: of each. Returns the pointer of each, '' if it is the usual one.
  local function point_to(run, ids, gens, tenant)
    local pointers = {}
    if is_later(run) then
      local dues = {}
      for _, id in ipairs(ids) do
        dues[#dues + 1], dues[#dues + 2] = digits(run.due), id
      end
      redis.call('ZADD', P .. 'tasks:delayed', unpack(dues))
      wake_promoter_for(run.due)
    elseif is_shared(run.stream) then
      for i, id in ipairs(ids) do
        pointers[i] = id .. ' ' .. gens[i]
      end
      share('tasks', run.stream, tenant, pointers)
      for i in ipairs(ids) do
        pointers[i] = IN_LIST
      end
    else
      for i, id in ipairs(ids) do
        pointers[i] = enqueue_first(id, run.stream, gens[i], tenant)
      end
    end
    return pointers
  end

  -- Store the records of these tasks.
  local function record_all(run, ids, envelopes, gens, pointers, tenant, few)
    local waits = is_later(run)
    local is_plain, rest = next(few) == nil and not waits, nil
    local function fields_of(i)
      local record = {state = waits and 'delayed' or 'queued', gen = gens[i], pointer = pointers[i], name = run.name,
        stream = run.stream, tenant = tenant, locks = given(run.locks), ticket = waits and gens[i] or nil,
        due = waits and run.due or nil}
      for field, value in pairs(few) do
        record[field] = value
      end
      return record
    end
    for i, id in ipairs(ids) do
      rest = rest or records.behind_pointer(fields_of(i))
      if not (is_plain and records.put_plain(id, gens[i], pointers[i], rest, envelopes[i])) then
        records.put(id, fields_of(i), envelopes[i])
      end
    end
    records.write_all()
  end

  local mine = {}  -- the ids of the tasks that this call has created

  -- Create tasks that differ only in their ids and envelopes. run: name, stream, due (see due_of), group or '', locks,
  -- terms ('' or lines 'name|value|…'), ids, envelopes. are_new: no id is known. Returns for each task 1 created, 0 known, or
  -- the id of the task that holds its unique key; and how many were created.
  function submit_run(run, are_new)
    local group, terms, tenant = run.group, run.terms, tenant_in(run.terms)
    local mode, span, unique = string.match('\n' .. terms, '\nunique|(%l+)|(%d+)|(%x+)')
    local answers, ids, envelopes, gens, bytes = {}, {}, {}, {}, 0
    for i, id in ipairs(run.ids) do
      local other = nil
      if mine[id] or not are_new and is_repeated(id, group) then
        other = 0
      elseif mode and claim then
        other = claim(id, mode, tonumber(span), unique)
      end
      answers[i] = other or 1
      if not other then
        local n = #ids + 1
        mine[id], ids[n], envelopes[n], gens[n] = true, id, run.envelopes[i], digits(now + submitted)
        bytes, submitted = bytes + #envelopes[n], submitted + 1
      end
    end
    if #ids == 0 then
      return answers, 0
    end
    local counts = {}
    add_to(counts, run.stream, {name = run.name, tenant = tenant}, #ids, bytes)
    count_active(counts)
    count_submitted(run.stream, #ids)
    if group ~= '' then
      redis.call('SADD', P .. 'g:' .. group .. ':pending', unpack(ids))  -- fault: child-uncounted
    end
    local few = (group ~= '' or terms ~= '') and few_fields(group, terms, mode, span, unique) or {}
    record_all(run, ids, envelopes, gens, point_to(run, ids, gens, tenant), tenant, few)
    for _, id in ipairs(few.start_by and ids or {}) do
      watch_start(id, few.start_by)
    end
    return answers, #ids
  end
end

-- submit_run() for one task.
local function submit_one(id, name, stream, due, group, envelope, locks, terms)
  return submit_run({name = name, stream = stream, due = due, group = group, locks = locks, terms = terms, ids = {id},
    envelopes = {envelope}})[1]
end
