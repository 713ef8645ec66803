-- lib/handing: needs base. How long a task rests that its worker cannot run, because it does not know
-- it or is too old.

local MANY, LONGEST = 3, 60000000

-- What a worker knows of a class: of which layout it reads messages, and the version of the class.
-- Workers of one release know the same.
local seen = {}
local function knowledge_of(worker, class)
  local knows = redis.call('HGET', P .. 'w:' .. worker, 'knows') or ''
  local place = knows .. ' ' .. class
  if seen[place] == nil then
    local version = redis.call('HGET', P .. 'names:' .. knows, class)
    seen[place] = version and string.match(knows, '^%d*') .. ' ' .. version or false
  end
  return seen[place]
end

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

-- first: µs, doubled with each time beyond the first few while nobody else may know it.
local function rest_of(first, times, class, size, worker)
  if times <= MANY or is_known_elsewhere(class, size, worker) then
    return first
  end
  return math.min(first * 2 ^ (times - MANY), LONGEST)
end
