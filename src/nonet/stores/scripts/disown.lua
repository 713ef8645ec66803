#!lua flags=allow-oom
-- disown: requeue the tasks of a fetch whose reply was lost. The worker does not know that it holds them, and they
-- would block its slots until their leases expire.
-- KEYS  prefix
-- ARGV  keeping, worker, size, lock ttl ms, n × 'key entry' that the worker knows
-- returns how many tasks were requeued, or ended because they were cancelled
-- @include base wake streams record counting submitting rescue limits mutexes locks fitting pauses queues refusal waiting index group keeping finish ending
-- @defer ending workflow load_end_steps
end_steps = load_end_steps
-- @include pending
local worker, lock_ttl = ARGV[2], tonumber(ARGV[4])
local known, given = {}, 0
for i = 5, #ARGV do
  known[ARGV[i]] = true
end

local function hand_back(id, gen)
  local record = read_record(id)
  if record.gen ~= gen or (record.owner ~= worker and record.state ~= 'queued') then
    return false
  end
  if record.state ~= 'queued' then  -- otherwise Redis stopped the fetch before it took the locks
    local locks = held_locks(redis.call('GET', P .. 'l:' .. id) or '', lock_ttl, record)
    give_back(release_locks(locks, id .. '/' .. gen .. '/' .. record.fence, false))  -- fault: disowned-keeps-locks
  end
  if record.cancel and record.state == 'running' then
    end_cancelled(id, record, '0')
  else
    requeue(id, record.state == 'dying' and 'dying' or 'queued', record.stream, tonumber(gen), now)
    if record.state == 'running' then
      wait_on(id, record)
    end
  end
  return true
end

for _, stream in ipairs(streams_of(ARGV[3])) do
  local key = stream.key
  for _, item in ipairs(pending_in(key, '-', '+', 10000, worker)) do
    if not known[key .. ' ' .. item[1]] then  -- fault: disown-nothing
      given = given + (see_to(key, item[1], hand_back) and 1 or 0)
    end
  end
end
offer_all()
return given
