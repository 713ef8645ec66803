-- lib/sharing: needs base, shares. Moves pointers from the lists of tenants into the streams, for fetch: always one of
-- the tenant with the least virtual time. Each task that is handed over adds 1 / weight to that time; pointers without
-- a task, and tasks that must wait for a lock, cost nothing (start-time fair queueing, Goyal et al. 1996).
local hand_out
do
  -- A fetch gives at most so many turns: with many free slots a turn is several starts, because each turn costs Redis
  -- the same whatever it moves.
  local MOST_TURNS = 8

  -- The tenants with the least virtual times; are_all: there may be no others.
  local function first_tenants(stream, most)
    most = math.min(most, MOST_TURNS)
    local flat = redis.call('ZRANGE', P .. 'shares:' .. stream, 0, most - 1, 'WITHSCORES')
    local tenants, names = {are_all = #flat < 2 * most}, {}
    for i = 1, #flat, 2 do
      names[#names + 1] = flat[i]
    end
    local weights = redis.call('HMGET', P .. 'weights', 'default', unpack(names))
    for i, name in ipairs(names) do
      local time = tonumber(flat[2 * i])
      tenants[i] = {name = name, time = time, next = time, wanted = 0, found = {}, moved = 0, number = 0, taken = {},
        step = 1 / (tonumber(weights[i + 1] or '') or tonumber(weights[1] or '1'))}
    end
    return tenants
  end

  -- The tenants that have the next turns, and how many starts each turn is.
  local function turns_of(tenants, most)
    local turns, each = {}, math.ceil(most / MOST_TURNS)
    while most > 0 do
      local first = tenants[1]
      for _, one in ipairs(tenants) do
        if one.next < first.next or one.next == first.next and one.name < first.name then
          first = one
        end
      end
      local number = math.min(each, most)
      first.wanted, first.next, most = first.wanted + number, first.next + number * first.step, most - number
      turns[#turns + 1] = {first, number}
    end
    return turns
  end

  local function list_of(kind, stream, tenant)
    return P .. 'share:' .. kind .. ':' .. stream .. ':' .. tenant.name
  end

  -- Read the pointers for the turns of each tenant, woken tasks first. Also returns whether the tenant has no others.
  local function read_lists(stream, tenants)
    local woken = {}
    for i, tenant in ipairs(tenants) do
      woken[i] = list_of('woken', stream, tenant)
    end
    local kinds = redis.call('EXISTS', unpack(woken)) > 0 and {'woken', 'tasks'} or {'tasks'}
    for _, tenant in ipairs(tenants) do
      tenant.is_empty = tenant.wanted > 0
      for _, kind in ipairs(tenant.wanted > 0 and kinds or {}) do
        local left = tenant.wanted - #tenant.found
        local pointers = redis.call('LRANGE', list_of(kind, stream, tenant), 0, left)  -- one more than the turns
        tenant.is_empty = tenant.is_empty and #pointers <= left
        tenant.taken[kind] = math.min(#pointers, left)
        for i = 1, tenant.taken[kind] do
          tenant.found[#tenant.found + 1] = pointers[i]
        end
      end
    end
  end

  -- Move the pointers of each turn. Remove them from the lists last: a pointer that is in two places, because Redis
  -- stopped the script, is void the second time. Returns whose tasks these are, by id.
  local function move(stream, tenants, turns)
    read_lists(stream, tenants)
    local tenant_of, moved = {}, {tasks = 0, woken = 0}
    local tasks_key, woken_key = P .. 'tasks:' .. stream, P .. 'woken:' .. stream
    for _, turn in ipairs(turns) do
      local tenant = turn[1]
      local last = math.min(tenant.moved + turn[2], #tenant.found)
      for i = tenant.moved + 1, last do
        local key, pointer = i <= (tenant.taken.woken or 0) and woken_key or tasks_key, tenant.found[i]
        local blank = string.find(pointer, ' ', 1, true)
        local id = string.sub(pointer, 1, blank - 1)
        redis.call('XADD', key, '*', 'id', id, 'gen', string.sub(pointer, blank + 1))
        tenant_of[id] = tenant
      end
      tenant.moved = last
    end
    for _, tenant in ipairs(tenants) do
      for kind, number in pairs(tenant.taken) do
        if number > 0 then
          redis.call('LTRIM', list_of(kind, stream, tenant), number, -1)  -- fault: turn-kept
          moved[kind] = moved[kind] + number
        end
      end
    end
    for kind, number in pairs(moved) do
      if number > 0 then
        redis.call('HINCRBY', P .. 'pace', stream .. ' ' .. kind, -number)
      end
    end
    return tenant_of
  end

  local function exact(number)
    return string.format('%.17g', number)
  end

  -- The average time between two starts while tasks wait (µs), smoothed.
  local NEW = 0.1
  local function smoothed(each, at, number)
    local measured = at and number > 0 and (now - at) / number
    return measured and (each and each + (measured - each) * math.min(1, NEW * number) or measured) or each
  end

  -- Add what each tenant has used to its virtual time. A tenant without waiting tasks no longer takes part; its time is
  -- kept while it is ahead.
  local function charge(stream, tenants)
    local was = redis.call('HMGET', P .. 'pace', stream, stream .. ' each', stream .. ' at')
    local pace, total, is_over = tonumber(was[1] or '0'), 0, tenants.are_all
    for _, tenant in ipairs(tenants) do
      local number = tenant.number
      tenant.time, total = tenant.time + number * tenant.step, total + number
      pace = number > 0 and math.max(pace, tenant.time - tenant.step) or pace
      is_over = is_over and tenant.is_empty
    end
    local each = smoothed(tonumber(was[2] or ''), tonumber(was[3] or ''), total)
    redis.call('HSET', P .. 'pace', stream, exact(pace), stream .. ' each', each and digits(each) or '',
      stream .. ' at', is_over and '' or digits(now))
    local waiting, gone, ahead = {}, {}, {}
    for _, tenant in ipairs(tenants) do
      if not tenant.is_empty then
        waiting[#waiting + 1], waiting[#waiting + 2] = exact(tenant.time), tenant.name
      else
        gone[#gone + 1] = tenant.name
        if tenant.time > pace then
          ahead[#ahead + 1], ahead[#ahead + 2] = exact(tenant.time), tenant.name
        end
      end
    end
    local shares, rested = P .. 'shares:' .. stream, P .. 'rested:' .. stream
    redis.call('ZREMRANGEBYSCORE', rested, '-inf', exact(pace))
    if #waiting > 0 then
      redis.call('ZADD', shares, unpack(waiting))
    end
    if #ahead > 0 then
      redis.call('ZADD', rested, unpack(ahead))
    end
    if #gone > 0 then
      redis.call('ZREM', shares, unpack(gone))
    end
    if is_over and redis.call('EXISTS', shares) == 0 then  -- correct what a script that was cut has miscounted
      redis.call('HDEL', P .. 'pace', stream .. ' tasks', stream .. ' woken')
    end
  end

  -- Move up to `most` pointers of a stream, let read() hand them over, and charge the tenants for those that it returns:
  -- a list of rows that begin with an id, from `first` on. Returns whether there were any tenants.
  function hand_out(stream, most, read)
    local tenants = first_tenants(stream, most)
    if #tenants == 0 then
      return false
    end
    local tenant_of = move(stream, tenants, turns_of(tenants, most))
    local rows, first = read()
    for i = first, #rows do
      local tenant = tenant_of[rows[i][1]]
      if tenant then
        tenant.number = tenant.number + 1
      end
    end
    charge(stream, tenants)
    return true
  end
end
