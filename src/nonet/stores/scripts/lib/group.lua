-- lib/group: needs base, wake, record, index. Callback groups. A group fires exactly once, in the script that
-- ends its last child or seals it. HASH g:GID: state (building | sealed | fired), failed, policy, ttl, parent.

local fire_if_complete
do
  -- Submit callback or on_failure, and let the keys of the group expire. The state changes last: if the script is
  -- cut before, it is repeated, and submits nothing twice.
  local function fire_group(gid)
    local key = P .. 'g:' .. gid
    local group = redis.call('HMGET', key, 'failed', 'policy', 'ttl')
    local ttl, good = group[3], tonumber(group[1]) == 0 or group[2] == 'all_done'  -- fault: group-outcome
    local spec = redis.call('HMGET', key .. (good and ':callback' or ':on_failure'), 'id', 'name', 'stream', 'due',
      'envelope', 'locks', 'terms')
    if spec[1] then
      submit_one(spec[1], spec[2], spec[3], due_of(spec[4]), '', spec[5], spec[6], spec[7])
      wake(size_of(spec[3]), 1)
    end
    for _, suffix in ipairs({'', ':results', ':callback', ':on_failure'}) do
      redis.call('PEXPIRE', key .. suffix, ttl)
    end
    list_group(gid, tonumber(ttl))
    redis.call('HSET', key, 'state', 'fired', 'outcome', good and 'done' or 'failed',  -- fault: group-fires-again
      'fired', digits(now))
  end

  function fire_if_complete(gid)
    local key = P .. 'g:' .. gid
    if redis.call('HGET', key, 'state') == 'sealed'  -- fault: unsealed-group-fires
      and redis.call('SCARD', key .. ':pending') == 0 then
      fire_group(gid)
    end
  end
end

-- Record that a child has ended; reporting the same child again changes nothing.
local function end_child(gid, id, state, value)
  local key = P .. 'g:' .. gid
  if redis.call('EXISTS', key) == 0 then
    redis.call('SREM', key .. ':pending', id)
    return
  end
  redis.call('HSET', key .. ':results', id, value)
  local left = redis.call('PTTL', key)
  if left >= 0 then
    -- Not sealed yet, or fired: the keys of the children must not outlive the group.
    redis.call('PEXPIRE', key .. ':results', left)
    redis.call('PEXPIRE', key .. ':pending', left)
  end
  if redis.call('SISMEMBER', key .. ':pending', id) == 1 then
    if state ~= 'done' then
      redis.call('HINCRBY', key, 'failed', 1)
    end
    redis.call('SREM', key .. ':pending', id)
  end
  fire_if_complete(gid)
end

-- Fail the groups that an ended parent has opened and not sealed.
local function fail_unsealed(parent)
  for _, gid in ipairs(redis.call('SMEMBERS', P .. 'open:' .. parent)) do
    local key = P .. 'g:' .. gid
    if redis.call('HGET', key, 'state') == 'building' then
      redis.call('HINCRBY', key, 'failed', 1)
      -- An incomplete spawn must not succeed, whatever the policy.
      redis.call('HSET', key, 'state', 'sealed', 'policy', 'all_success',
        'error', 'the parent ended before it had spawned all children')
      redis.call('PERSIST', key)
    end
    fire_if_complete(gid)
  end
  redis.call('DEL', P .. 'open:' .. parent)
end
