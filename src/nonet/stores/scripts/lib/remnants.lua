-- lib/remnants: needs base, record, group, finish, ending. Fails groups that are damaged, or that wait for
-- children that are gone, so that their waiters are notified.

local KEYS_OF_GROUP = {{'', 'hash'}, {':pending', 'set'}, {':results', 'hash'}, {':callback', 'hash'},
  {':on_failure', 'hash'}}
local STATES_OF_GROUP = {building = true, sealed = true, fired = true}

-- What is wrong with the keys of a group, or nil; keys of a wrong type are deleted.
local function damage_of_group(key)
  local problem = nil
  for _, part in ipairs(KEYS_OF_GROUP) do
    local actual = redis.call('TYPE', key .. part[1]).ok
    if actual ~= part[2] and actual ~= 'none' then
      redis.call('DEL', key .. part[1])
      problem = 'its key g:…' .. part[1] .. ' was a Redis ' .. actual
    end
  end
  local group = read_fields(key, {'state', 'failed', 'ttl'})
  if not STATES_OF_GROUP[group.state or ''] then
    return problem or 'its state was invalid'
  elseif not string.find(group.failed or '', '^%d+$') then
    return problem or 'its number of failed children was invalid'
  elseif not string.find(group.ttl or '', '^%d+$') then
    return problem or 'its ttl was invalid'
  end
  return problem
end

-- Treat a group as one whose parent has ended without sealing it.
local function fail_group(key, problem)
  local was = read_fields(key, {'fired', 'ttl'})
  redis.call('HSET', key, 'state', was.fired and 'fired' or 'sealed', 'failed', 1, 'policy', 'all_success',
    'ttl', ttl_of_group(was.ttl), 'error', problem)
  redis.call('HSETNX', key, 'total', 0)
  redis.call('HSETNX', key, 'opened', digits(now))
  redis.call('HSETNX', key, 'parent', '')
  redis.call('PERSIST', key)
end

-- Some of the pending children that have no record.
local function missing_children(key)
  local found, MOST = {}, 100
  for _, child in ipairs(redis.call('SSCAN', key .. ':pending', '0', 'COUNT', MOST)[2]) do
    if redis.call('EXISTS', P .. 't:' .. child) == 0 then
      found[#found + 1] = child
    end
  end
  return found
end

local function end_missing(gid, child)
  local ended = redis.call('GET', P .. 'r:' .. child)
  if ended then
    return end_child(gid, child, string.match(ended, '^%a+') or 'dead', ended)
  end
  local document = made_document('', 0, 'its record is gone from Redis', 'quarantined')
  finish(child, {group = gid, waited = true}, 'dead', '0', document)
end

-- Whether the tasks that a group waits for have been gone for more than `wait` µs. The relay submits lost durable
-- tasks again within that time.
local function is_gone_for_good(key, is_gone, wait)
  local since = tonumber(redis.call('HGET', key, 'missing') or '')
  if not is_gone then
    redis.call('HDEL', key, 'missing')
  elseif not since then
    redis.call('HSET', key, 'missing', digits(now))
  end
  return is_gone and since ~= nil and now - since > wait
end

-- name: of one of the keys of a group. A fired group expires by itself.
local function mend_group(name, wait)
  local gid = name
  for i = 2, #KEYS_OF_GROUP do
    local suffix = KEYS_OF_GROUP[i][1]
    gid = string.sub(name, -#suffix) == suffix and string.sub(name, 1, -#suffix - 1) or gid
  end
  local key = P .. 'g:' .. gid
  local is_lasting = redis.call('PTTL', P .. 'g:' .. name) == -1
  local left = redis.call('PTTL', key)
  if gid ~= name and (left ~= -2 or not is_lasting) then
    if is_lasting and left >= 0 then  -- written again after the group had fired
      redis.call('PEXPIRE', P .. 'g:' .. name, left)
    end
    return
  elseif not is_lasting and redis.pcall('HEXISTS', key, 'fired') == 1 then
    return
  end
  local problem = damage_of_group(key)
  if problem then
    fail_group(key, problem)
  end
  local group = read_fields(key, {'state', 'parent'})
  local orphaned = group.state == 'building' and is_lasting and group.parent
    and redis.call('EXISTS', P .. 't:' .. group.parent) == 0
  local missing = group.state == 'sealed' and missing_children(key) or {}
  if is_gone_for_good(key, orphaned or #missing > 0, wait) then
    if orphaned then
      fail_group(key, 'the parent ended before it had spawned all children')
    end
    for _, child in ipairs(missing) do
      end_missing(gid, child)
    end
  end
  fire_if_complete(gid)
end
