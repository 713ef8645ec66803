#!lua flags=allow-oom
-- renew: one beat of a watchdog. Extends the registration of the worker, the lease of every delivery it holds,
-- and all their locks.
-- KEYS  prefix
-- ARGV  worker or '', worker ttl ms, lock ttl ms, what the worker reports of itself, epoch and sequence seen,
--       what it knows (see advertise), why it takes no tasks or '',
--       n × (id, gen, fence, stream key or '' for a hold, entry)
-- returns {epoch, its sequence, id/gen of each that is lost …}
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch limits mutexes locks
local worker, worker_ttl, lock_ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local info, seen, knows, off, FIRST = ARGV[4], ARGV[5], ARGV[6], ARGV[7], 8
local lost = {current_epoch(seen, lock_ttl)}

-- Count a running task at a limiter whose limit was set after its start. Skip a limiter with a shorter lease: the
-- worker plans its beats by the leases it knows, and might renew this one too late.
local function join_new_limits(id, lines, of, held, owner)
  local locks, marks, joined = parse_locks(lines, lock_ttl, of), {}, false
  for i, lock in ipairs(locks) do
    marks[i] = not lock.limiter and 'x' or string.sub(held .. '--------', i, i)
    if lock.counted and marks[i] ~= 'x' and marks[i] ~= 'v' then
      resolve_limit(lock)
      if lock.limit and lock.ttl >= lock_ttl then  -- fault: new-limit-skips-holders
        write_lock(lock, owner)
        marks[i], joined = lock.mark, true
      end
    end
    if marks[i] == '' then
      marks[i] = '-'
    end
  end
  if joined then
    change(id, {held = table.concat(marks)})
  end
end

local function renew(id, gen, fence, stream_key, entry)
  local record = read_record(id)
  if record.gen ~= gen or record.fence ~= fence then  -- fault: beat-keeps-reclaimed
    return false
  end
  if stream_key == '' then
    records.keep(id, lock_ttl + LOCKS_KEPT)
  elseif record.owner ~= worker then
    return false
  else
    local claimed = redis.pcall('XCLAIM', P .. stream_key, 'workers', worker, 0, entry, 'JUSTID')  -- fault: beat-extends-nothing
    if claimed.err or #claimed == 0 then
      -- The stream or its group was deleted. The worker still runs the task, and mend must not requeue it.
      change(id, {kept = now})
    end
    if record.state == 'dying' then
      return true
    end
  end
  local locks = held_locks(lock_ttl, record)
  local owner = id .. '/' .. gen .. '/' .. fence
  if lost_lock(locks, owner) then
    return false  -- fault: renewal-revives
  end
  renew_locks(locks, owner)
  if are_limits_set() then
    join_new_limits(id, record.locks or '', stream_key ~= '' and record or nil, record.held or '', owner)
  end
  return true
end

if worker ~= '' then
  redis.call('ZADD', P .. 'workers', 'GT', digits(now + worker_ttl * 1000), worker)
  redis.call('HSET', P .. 'w:' .. worker, 'info', info, 'beat', digits(now), 'knows', knows, 'off', off)
  redis.call('PEXPIRE', P .. 'w:' .. worker, worker_ttl * 10)
end
for i = FIRST, #ARGV, 5 do
  local id, gen, fence, stream_key, entry = unpack(ARGV, i, i + 4)
  -- A renewal that fails must cost its own lease, and not the whole beat.
  local fine, kept = pcall(renew, id, gen, fence, stream_key, entry)
  if not (fine and kept) then
    lost[#lost + 1] = id .. '/' .. gen
  end
end
return lost
