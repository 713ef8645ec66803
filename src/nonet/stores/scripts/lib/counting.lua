-- lib/counting: needs base. Counts the tasks that have not ended, and those that were accepted.

-- While there are ceilings, ends are counted in intervals of so many µs: they show how fast
-- places become free. A replaced task is not counted: the newer task takes its place.
local ENDS_BY = 15000000
local is_replacing = false

-- What count_active() takes for a task: NAME, or NAME|TENANT. record has the fields name and tenant.
local function counted_as(record)
  return (record.name or '') .. (record.tenant and record.tenant ~= '' and '|' .. record.tenant or '')
end

-- Count the tasks that have not ended, in HASH active: PRIORITY:SIZE|NAME → number, and those of tenants in HASH
-- active:tenants: TENANT → number. Count before a record is created and after it is deleted, so that a script that was
-- cut never counts too few. counted: see counted_as(); is_correction: no task has ended.
local function count_active(stream, counted, by, is_correction)
  local name, tenant = string.match(counted, '^([^|]*)|?(.*)$')
  local field = stream .. '|' .. name
  if redis.call('HINCRBY', P .. 'active', field, by) <= 0 then
    redis.call('HDEL', P .. 'active', field)
  end
  if tenant ~= '' and redis.call('HINCRBY', P .. 'active:tenants', tenant, by) <= 0 then
    redis.call('HDEL', P .. 'active:tenants', tenant)
  end
  if is_capped and not is_correction then
    local key = P .. 'ends:' .. digits(math.floor(now / ENDS_BY))
    local ends = by < 0 and not is_replacing and -by or 0
    -- Counting 0 ends records since when a task could end.
    redis.call('HINCRBY', key, field, ends)
    if tenant ~= '' then
      redis.call('HINCRBY', key, 'tenant:' .. tenant, ends)
    end
    local KEPT = 330000
    redis.call('PEXPIRE', key, KEPT)
  end
end

-- Count accepted tasks while metrics are collected, see measure.
local function count_submitted(stream, by)
  if marks[5] then
    redis.call('HINCRBY', P .. 'counters', 'submitted:' .. stream, by)
  end
end
