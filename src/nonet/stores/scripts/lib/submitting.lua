-- lib/submitting: needs base, wake, record. How a task comes to be, and how those that live are counted.

-- When a task is due that a client wants at a time of its wall clock (µs), or now (0).
local function due_of(wall)
  wall = tonumber(wall)
  return wall > 0 and wall + offset or 0
end

-- Keep when a task may be started at the latest. Terms: 'start_by|when|1 if it then belongs into SQL',
-- when in µs: of the wall clock, or with a '+' from now. The record keeps 'logical µs|1'.
local function keep_start_by(id, terms)
  local plus, when, eligible = string.match('\n' .. terms, '\nstart_by|(%+?)(%d+)|(%d?)')
  if when then
    local deadline = digits(tonumber(when) + (plus == '' and offset or now))
    -- In this order: mend puts back what is missing in the set.
    redis.call('HSET', P .. 't:' .. id, 'start_by', deadline .. '|' .. eligible)
    redis.call('ZADD', P .. 'deadlines', deadline, id)
    wake_promoter_for(tonumber(deadline))
  end
end

-- Scripts in which a task may meet one that has its unique key set this, see lib/unique.
local claim

-- While there are ceilings, ends are counted by so many µs, for so many ms: how fast places come back.
-- Not while a newer task takes the place of one that ends, see lib/replacing: that place does not come back.
local ENDS_BY, ENDS_KEPT = 15000000, 330000
local is_replacing = false

-- Count the tasks that have not ended, in HASH active: PRIORITY:SIZE|NAME → how many. Before a record
-- is made and after it is gone, so that a script that was cut never counts too few.
local function count_active(stream, name, by)
  local field = stream .. '|' .. name
  if redis.call('HINCRBY', P .. 'active', field, by) <= 0 then
    redis.call('HDEL', P .. 'active', field)
  end
  if is_capped then
    local key = P .. 'ends:' .. digits(math.floor(now / ENDS_BY))
    redis.call('HINCRBY', key, field, by < 0 and not is_replacing and -by or 0)  -- 0: from then on something could end
    redis.call('PEXPIRE', key, ENDS_KEPT)
  end
end

-- Count tasks that were accepted, if somebody watches: see measure.
local function count_submitted(stream, by)
  if marks[5] then
    redis.call('HINCRBY', P .. 'counters', 'submitted:' .. stream, by)
  end
end

-- Create a task unless its id is known: as a record, as a remembered result, or as an ended
-- child of its group. due is what due_of says, 0 for now; terms is '' or lines 'name|value|…';
-- is_counted: count_active and count_submitted are told of it by the caller.
-- Returns 1 if made, 0 if known, or the id of the task that has its unique key: it is the same.
local function submit_one(id, name, stream, due, group, envelope, locks, terms, is_counted)
  if redis.call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) > 0 then
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
    count_active(stream, name, 1)
    count_submitted(stream, 1)
  end
  local gen = digits(now + submitted)  -- its ticket for ever, too
  submitted = submitted + 1
  local later = due > now
  local kept = kept_envelope(id, name, envelope)
  if not kept then
    redis.call('SET', P .. 'b:' .. id, envelope)
  end
  if locks ~= '' then
    redis.call('SET', P .. 'l:' .. id, locks)
  end
  if group ~= '' then
    redis.call('SADD', P .. 'g:' .. group .. ':pending', id)
  end
  local fields = {'state', later and 'delayed' or 'queued', 'gen', gen, 'name', name, 'stream', stream}
  local function add(name, value)
    fields[#fields + 1], fields[#fields + 2] = name, value
  end
  if later then
    delay(id, due)
    add('ticket', gen)
    add('due', digits(due))
  else
    local pointer = enqueue_first(id, stream, gen)
    if pointer ~= '' then
      add('pointer', pointer)
    end
  end
  if kept then
    add('b', kept)
  end
  if FORMAT > 1 then
    add('v', FORMAT)
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
  if mode and span == '0' then  -- whose key is its own as long as this says so
    redis.call('HSET', P .. 't:' .. id, 'unique', string.sub(mode, 1, 1) .. unique)
  end
  return 1
end
