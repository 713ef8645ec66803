-- lib/fitting: needs base, wake. Finds workers for a task: those that may know the class of a task that was handed on,
-- and those of a size.

local knowledge_of, does_fit, wake_other
do
  local names, versions, fit = {}, {}, {}

  -- The format of tasks that a worker reads with a digest of its encryption keys, and its version of a class; false
  -- if it does not know the class. Workers of one release with the same keys know the same.
  function knowledge_of(worker, class)
    names[worker] = names[worker] or redis.call('HGET', P .. 'w:' .. worker, 'knows') or ''
    local place = names[worker] .. ' ' .. class
    if versions[place] == nil then
      local version = redis.call('HGET', P .. 'names:' .. names[worker], class)
      versions[place] = version and string.match(names[worker], '^[^-]*') .. ' ' .. version or false
    end
    return versions[place]
  end

  -- Whether a worker may be able to run a task that was handed on: it knows the class, in a version that is not
  -- in unfit.
  function does_fit(worker, class, unfit)
    local knows = knowledge_of(worker, class)
    return knows and not string.find(',' .. unfit .. ',', ',' .. knows .. ',', 1, true)
  end

  -- The idle workers that may be able to run it, the most recently idle one first.
  local function find_fit(size, class, unfit)
    local found = {}
    for _, worker in ipairs(redis.call('ZRANGE', P .. 'idle:' .. size, 0, -1, 'REV')) do
      if does_fit(worker, class, unfit) then
        found[#found + 1] = worker
      end
    end
    return found
  end

  -- Wake an idle worker for a task that was handed on. Of the workers that may know its class, wake the one that
  -- has been idle longest, so that each gets its turn: the most recently idle one is often the worker that has just
  -- handed the task on. A worker that this call has woken takes several tasks. Returns whether a worker was woken.
  function wake_other(size, class, unfit)
    local kind = size .. ' ' .. unfit .. ' ' .. class
    fit[kind] = fit[kind] or find_fit(size, class, unfit)
    while #fit[kind] > 0 do
      local worker = table.remove(fit[kind])
      if is_alive(worker) and redis.call('ZREM', P .. 'idle:' .. size, worker) == 1 then
        redis.call('LPUSH', P .. 'wake:' .. worker, '1')
        fit[kind].is_woken = true
        return true
      end
    end
    return fit[kind].is_woken or false
  end
end

local is_served
do
  local served = {}

  -- Page by page: there may be a thousand workers.
  local function finds_worker(size)
    local first, PAGE = 0, 20
    repeat
      local page = redis.call('ZRANGE', P .. 'workers', '+inf', digits(now), 'BYSCORE', 'REV',
        'LIMIT', first, PAGE)
      for _, worker in ipairs(page) do
        if string.match(worker, '^%a+') == size then
          return true
        end
      end
      first = first + PAGE
    until #page < PAGE
    return false
  end

  -- Whether any worker of a size is alive, busy or not.
  function is_served(size)
    if served[size] == nil then
      served[size] = finds_worker(size)
    end
    return served[size]
  end
end
