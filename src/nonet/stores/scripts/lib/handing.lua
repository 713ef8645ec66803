-- lib/handing: needs base, wake. How long a task rests that its worker cannot run, because it does not know
-- it or is too old.

local MANY, LONGEST = 3, 60000000

-- Whether a live worker of this size is another one as far as the class is concerned.
local function is_known_elsewhere(class, size, worker)
  local mine = knowledge_of(worker, class)
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers', digits(now), '+inf')) do
    local theirs = string.match(other, '^%a+') == size and knowledge_of(other, class)
    if theirs and theirs ~= mine then
      return true
    end
  end
  return false
end

-- first: µs, doubled with each time beyond the first few while nobody else may know it. Returns beside
-- it what did not do, for the record's field unfit: see wake_other.
local function rest_of(first, times, class, size, worker)
  local unfit = knowledge_of(worker, class) or '-'
  if times <= MANY or is_known_elsewhere(class, size, worker) then
    return first, unfit
  end
  return math.min(first * 2 ^ (times - MANY), LONGEST), unfit
end
