-- lib/submitting: needs base, wake, record, counting. Creates tasks.

-- Convert a due time by the client's wall clock (µs) to logical µs; 0: now; below 0: so many µs from now.
local function due_of(wall)
  wall = tonumber(wall)
  return wall > 0 and wall + offset or wall < 0 and now - wall or 0
end

-- Store when a task must have been started. Terms contain 'start_by|when|1 if it then gets a row in SQL'; when
-- is in µs of the wall clock or, with a '+', from now. The record stores 'logical µs|1'.
local function keep_start_by(id, terms)
  local plus, when, eligible = string.match('\n' .. terms, '\nstart_by|(%+?)(%d+)|(%d?)')
  if when then
    local deadline = digits(tonumber(when) + (plus == '' and offset or now))
    -- In this order: mend restores the entry of the set from the record.
    redis.call('HSET', P .. 't:' .. id, 'start_by', deadline .. '|' .. eligible)
    redis.call('ZADD', P .. 'deadlines', deadline, id)
    wake_promoter_for(tonumber(deadline))
  end
end

local function tenant_in(terms)
  return terms ~= '' and string.match('\n' .. terms, '\ntenant|([^\n]*)') or ''
end

-- Scripts in which a task may meet the holder of its unique key set this to claim_key, see lib/unique.
local claim

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

-- Create a task unless its id is known: as a record, as a stored result, or as an ended child of its group. due
-- is the result of due_of(); terms is '' or lines 'name|value|…'; is_counted: the caller counts the task.
-- Returns 1 if created, 0 if known, or the id of the task that holds its unique key.
local function submit_one(id, name, stream, due, group, envelope, locks, terms, is_counted)
  if redis.call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) > 0 then  -- fault: known-id
    if group ~= '' then
      rejoin(group, id)
    end
    return 0
  end
  if group ~= '' and redis.call('HEXISTS', P .. 'g:' .. group .. ':results', id) == 1 then
    return 0
  end
  local mode, span, unique
  if terms ~= '' then
    mode, span, unique = string.match('\n' .. terms, '\nunique|(%l+)|(%d+)|(%x+)')
    local other = mode and claim and claim(id, mode, tonumber(span), unique)
    if other then
      return other
    end
  end
  if not is_counted then
    count_one(stream, {name = name, tenant = tenant_in(terms)}, 1, #envelope)
    count_submitted(stream, 1)
  end
  local gen = digits(now + submitted)  -- also its ticket
  submitted = submitted + 1
  local later = due > now  -- fault: delay-ignored
  redis.call('SET', P .. 'b:' .. id, envelope)
  if locks ~= '' then
    redis.call('SET', P .. 'l:' .. id, locks)
  end
  if group ~= '' then
    redis.call('SADD', P .. 'g:' .. group .. ':pending', id)  -- fault: child-uncounted
  end
  local tenant = tenant_in(terms)
  local fields = {'state', later and 'delayed' or 'queued', 'gen', gen, 'name', name, 'stream', stream}
  local function add(name, value)
    fields[#fields + 1], fields[#fields + 2] = name, value
  end
  if later then
    delay(id, due)
    add('ticket', gen)
    add('due', digits(due))
  else
    local pointer = enqueue_first(id, stream, gen, tenant)
    if pointer ~= '' then
      add('pointer', pointer)
    end
  end
  if tenant ~= '' then
    add('tenant', tenant)
  end
  local format = terms ~= '' and string.match('\n' .. terms, '\nformat|(%d+)')
  if format then
    add('v', format)
  end
  if group ~= '' then
    add('group', group)
  end
  redis.call('HSET', P .. 't:' .. id, unpack(fields))
  if terms ~= '' then
    keep_start_by(id, terms)
    local mark = string.match('\n' .. terms, '\nletter|(%x+)')
    if mark then
      redis.call('HSET', P .. 't:' .. id, 'letter', mark)
    end
  end
  if mode and span == '0' then  -- it holds its key as long as the record says so
    redis.call('HSET', P .. 't:' .. id, 'unique', string.sub(mode, 1, 1) .. unique)
  end
  return 1
end
