-- lib/sight: needs base, limits, locks. Who holds a lock, as rows for people. No decision depends on them.

-- The lock with a name that `task-run locks` shows. One side stands for both of a reader/writer lock. A
-- limiter is counted where the name says (limiter:KIND:@VO:… for a VO's own), and has the limit that is
-- configured for that counter.
local function lock_named(name)
  local head, vo, rest = string.match(name, '^(limiter:%a+:)@([^:]*):(.*)$')
  local lock = new_lock(kind_named(name), vo and head .. rest or name, 0, vo or '')
  if lock.limiter then
    count_at(lock, vo and 'v' or 'x')
    lock.is_configured = vo ~= nil  -- limits that tasks declare apply to the common counter
    local value, of_vo = nil, nil
    if are_limits_set() then
      value, of_vo = configured_limit(lock)
    end
    if value and of_vo == (vo ~= nil) then
      lock.limit, lock.window = parse_limit(value)
      lock.is_configured = true
    end
  end
  return lock
end

local function id_of(owner)
  return string.match(owner, '^(.*)/%d+/%d+$') or owner
end

-- The first `most` holders of a lock, as rows of owner and expiry (µs), and how many holders it has. A rate
-- limiter has none: the grants it counts are past.
local function owners_of(lock, most)
  local found, count = {}, 0
  if lock.windowed then
    return found, count
  end
  if not lock.limiter then
    local owner, expiry = holder(lock.key)
    if owner then
      found[1], count = {owner, expiry}, 1
    end
  end
  if lock.leases then
    count = count + prune(lock.leases)
    local rows = redis.call('ZRANGEBYSCORE', lock.leases, '(' .. digits(now), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
    for i = 1, #rows, 2 do
      found[#found + 1] = {rows[i], tonumber(rows[i + 1])}
    end
  end
  return found, count
end

-- The lease (ms) that an owner declares for a lock; '' for the default. A limiter of a VO has the name of the
-- common one.
local function declared_ttl(id, lock)
  local lines = read_record(id).locks or ''
  local _, last = string.find(lines, '|' .. lock.name .. '|', 1, true)
  return last and string.match(lines, '^%d*', last + 1) or ''
end

-- What is known of an owner: id, expiry, class or 'hold', worker (or the program that holds), what the
-- worker reports of itself, when it started, 1 if that attempt still owns its task, 1 if the attempt has
-- ended but its code still runs (then it started at that end), the lease of the lock (ms or ''), 1 if no worker
-- renews it (its registration has ended), and its fence or ''.
local function holder_row(owner, expiry, lock)
  local id, gen, fence = string.match(owner, '^(.*)/(%d+)/(%d+)$')
  id = id or owner
  local record = read_record(id)
  local is_live = record.gen == gen and record.fence == fence
  local worker = is_live and record.owner or ''
  local is_program = record.name == 'hold'
  return {record.left or id, digits(expiry), record.name or '', worker,
    worker ~= '' and redis.call('HGET', P .. 'w:' .. worker, 'info') or '',
    is_live and record.started or '', is_live and 1 or 0, record.left and 1 or 0,
    is_live and declared_ttl(id, lock) or '', not is_program and not is_alive(worker) and 1 or 0,
    fence or ''}
end

local function holder_rows(owners, lock)
  local rows = {}
  for i, item in ipairs(owners) do
    rows[i] = holder_row(item[1], item[2], lock)
  end
  return rows
end
