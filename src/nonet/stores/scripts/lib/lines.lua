-- lib/lines: needs base, locks, shares. Fair shares at limiters: a part of lib/queues.
--
-- Beside the queue of a limiter the tasks of each tenant stand in a line, by rank. A place goes to the first task of the
-- tenant whose virtual time at this limiter is the least. A tenant pays for a task when it is woken, and gets that back if
-- the task loses its reservation. Tasks that stand in no line keep their rank: holds, tasks of streams that are not
-- shared, and those that waited before shares began.
-- ZSET line:LIMITER|TENANT: waiting task → rank

local load_lines
do
  local MOST_TENANTS, MOST_SUMMED = 100, 64

  local function line_of(limiter, tenant)
    return P .. 'line:' .. limiter .. '|' .. (tenant or '')
  end

  local function class_of(stream)
    return rank_of(0, stream, false) / CLASS
  end

  -- The end of the ranks of a class: tickets lie less than a year apart.
  local function end_of(class)
    return now + class * CLASS + CLASS / 2
  end

  local steps = {}
  -- What a task adds to the virtual time of its tenant.
  local function step_of(tenant)
    if not steps[tenant] then
      local found = redis.call('HMGET', P .. 'weights', tenant, 'default')
      steps[tenant] = 1 / (tonumber(found[1] or '') or tonumber(found[2] or '1'))
    end
    return steps[tenant]
  end

  local function is_limiter(name)
    return string.find(name, '^limiter:') ~= nil
  end

  -- Whether a task waits for its turn at a lock.
  local function takes_turns(lock, me)
    return is_limiter(lock.counter) and is_shared(me.stream)
  end

  -- Add turns to the virtual time of a tenant, or subtract them.
  local function pay(limiter, tenant, turns)
    for _, kind in ipairs({'shares:', 'rested:'}) do
      local time = redis.call('ZSCORE', P .. kind .. limiter, tenant)
      if time then
        redis.call('ZADD', P .. kind .. limiter, exact(tonumber(time) + turns * step_of(tenant)), tenant)
      end
    end
  end

  -- Give a tenant its turn back if the task was woken and has not run: that costs nothing.
  local function give_turn_back(limiter, me, member)
    local score = is_shared(me.stream) and redis.call('ZSCORE', P .. 'queue:' .. limiter, member)
    if score and tonumber(score) < 0 then
      pay(limiter, me.tenant or '', -1)
    end
  end

  -- A tenant that joins must not go before tenants that have waited: it starts with the least time of theirs.
  local function keep_pace(limiter)
    local first = redis.call('ZRANGE', P .. 'shares:' .. limiter, 0, 0, 'WITHSCORES')
    while first[1] and redis.call('EXISTS', line_of(limiter, first[1])) == 0 do  -- a script was cut
      redis.call('ZREM', P .. 'shares:' .. limiter, first[1])
      first = redis.call('ZRANGE', P .. 'shares:' .. limiter, 0, 0, 'WITHSCORES')
    end
    local pace = exact(math.max(pace_of(limiter), tonumber(first[2] or '0')))
    redis.call('HSET', P .. 'pace', limiter, pace)
    redis.call('ZREMRANGEBYSCORE', P .. 'rested:' .. limiter, '-inf', pace)
  end

  -- The last task of a tenant leaves its line. Once nothing waits, all tenants are equal again.
  local function rest(limiter, tenant)
    local shares, rested = P .. 'shares:' .. limiter, P .. 'rested:' .. limiter
    local time = tonumber(redis.call('ZSCORE', shares, tenant) or '0')
    redis.call('ZREM', shares, tenant)
    if redis.call('EXISTS', shares) == 0 then
      redis.call('DEL', rested)
      redis.call('HDEL', P .. 'pace', limiter)
    elseif time > pace_of(limiter) then
      redis.call('ZADD', rested, exact(time), tenant)
    end
  end

  -- A task begins to wait, or has a new rank. Call this before it enters the queue.
  local function enter(limiter, me, member)
    if is_limiter(limiter) and is_shared(me.stream) then
      give_turn_back(limiter, me, member)
      join(limiter, me.tenant or '')
      redis.call('ZADD', line_of(limiter, me.tenant), digits(me.rank), member)
    end
  end

  -- A task was woken, or waits no longer. Call this before it leaves the queue, or moves in it.
  local function leave(limiter, me, member, is_woken)
    local tenant, line = me.tenant or '', line_of(limiter, me.tenant)
    if not is_limiter(limiter) then
      return
    elseif not redis.call('ZSCORE', line, member) then
      if not is_woken then
        give_turn_back(limiter, me, member)
      end
      return
    end
    if is_woken then
      keep_pace(limiter)
      pay(limiter, tenant, 1)
    end
    if redis.call('ZCARD', line) == 1 then
      rest(limiter, tenant)  -- first: a task in a line whose tenant takes no part is offered places by its rank
    end
    redis.call('ZREM', line, member)
  end

  -- The lowest priority whose tasks may be next, as a class: the original priority of the first task by rank. If that
  -- task has aged, all tasks of its priority count as aged, so that a tenant whose turn comes earlier need not wait
  -- until its own task ages. Also returns the first task in the queue behind `skip` others; its tenant, nil if it
  -- stands in no line; and its rank.
  local function class_in_turn(limiter, skip)
    local queue = P .. 'queue:' .. limiter
    local first, rank = unpack(redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'WITHSCORES', 'LIMIT', skip, 1))
    local record = first and read_record(string.match(first, '^%S*')) or {}
    local tenant = record.tenant or ''
    local is_lined = first and redis.call('ZSCORE', line_of(limiter, tenant), first)
    return class_of(record.stream or ''), first, is_lined and tenant or nil, tonumber(rank or '')
  end

  -- The task to which a limiter is offered next, and its tenant if it stands in a line. passed: how many tasks were
  -- offered it but stay, because another lock refuses them; passed.of: the same by tenant.
  local function next_of(limiter, passed)
    if not is_limiter(limiter) then
      return redis.call('ZRANGEBYSCORE', P .. 'queue:' .. limiter, 0, '+inf', 'LIMIT', passed.all, 1)[1]
    end
    local class, first, tenant = class_in_turn(limiter, passed.all)
    for i = 0, tenant and MOST_TENANTS - 1 or -1 do
      local name = redis.call('ZRANGE', P .. 'shares:' .. limiter, i, i)[1]
      local member = name and redis.call('ZRANGEBYSCORE', line_of(limiter, name), 0, '(' .. digits(end_of(class)),
        'LIMIT', passed.of[name] or 0, 1)[1]
      if member then
        return member, name
      elseif not name then
        break
      end
    end
    return first, tenant
  end

  -- How many tasks go before one at a limiter, and how many items these need. me.next_at: the limiter that offers it a
  -- place as the next one, so that only woken tasks go before.
  local function before(lock, me)
    local limiter, tenant, class = lock.counter, me.tenant or '', class_of(me.stream)
    local queue, number, items = P .. 'queue:' .. limiter, 0, 0
    local function add(key, first, last, most)
      local count = most > 0 and math.min(redis.call('ZCOUNT', key, first, last), most) or 0
      number, items = number + count, items + count
      if lock.windowed and count > 0 then
        local those = redis.call('ZRANGEBYSCORE', key, first, last, 'LIMIT', 0, math.min(count, MOST_SUMMED))
        items = items + items_of(those) - #those
      end
    end
    local score = redis.call('ZSCORE', queue, lock.windowed and me.id .. ' ' .. lock.items or me.id)
    if score and tonumber(score) < 0 then  -- its turn has come
      add(queue, '-inf', '(' .. score, math.huge)
      return number, items
    end
    local open, _, _, rank = class_in_turn(limiter, 0)
    open = rank and rank < me.rank and open or class
    local last = math.max(class, open)
    add(queue, '-inf', '(' .. digits(end_of(last) - WOKEN), math.huge)
    if me.next_at == limiter then
      return number, items
    end
    local woken = number
    add(line_of(limiter, tenant), 0, '(' .. digits(me.rank), math.huge)
    local turn = time_of(limiter, tenant) + (number - woken) * step_of(tenant)
    local flat, lined = redis.call('ZRANGE', P .. 'shares:' .. limiter, 0, MOST_TENANTS - 1, 'WITHSCORES'), 0
    for i = 1, #flat, 2 do
      local name, line = flat[i], line_of(limiter, flat[i])
      lined = lined + redis.call('ZCARD', line)
      if name ~= tenant then
        local turns = (turn - tonumber(flat[i + 1])) / step_of(name)
        turns = name < tenant and math.floor(turns) + 1 or math.ceil(turns)
        local above = open < class and redis.call('ZCOUNT', line, 0, '(' .. digits(end_of(class - 1))) or 0
        add(line, 0, '(' .. digits(end_of(last)), math.max(0, turns, above))
      end
    end
    local others = #flat < 2 * MOST_TENANTS and redis.call('ZCOUNT', queue, 0, '+inf') - lined or 0
    add(queue, 0, '(' .. digits(me.rank), others)
    return number, items
  end

  function load_lines()
    return {takes_turns = takes_turns, enter = enter, leave = leave, next_of = next_of, before = before}
  end
end
