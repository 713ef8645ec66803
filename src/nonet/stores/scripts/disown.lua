#!lua flags=allow-oom
-- disown: requeue the tasks of a fetch whose reply was lost. The worker does not know that it holds them, and they
-- would block its slots until their leases expire.
-- KEYS  prefix
-- ARGV  keeping, worker, size, lock ttl ms, aside, n × 'key entry' that the worker knows
--       aside: how long the first task waits (µs), the second twice as long, …, because their replies do not arrive
-- returns the ids of the tasks that were requeued, or ended because they were cancelled
-- @include base wake streams record counting submitting rescue limits mutexes locks fitting pauses queues refusal waiting index group keeping finish ending
-- @defer ending workflow load_end_steps
end_steps = load_end_steps
-- @include pending
local worker, lock_ttl, aside, FIRST = ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5]), 6
local known, given = {}, {}
for i = FIRST, #ARGV do
  known[ARGV[i]] = true
end

local function hand_back(id, gen)
  local record = read_record(id)
  if record.gen ~= gen or (record.owner ~= worker and record.state ~= 'queued') then
    return false
  end
  if record.state ~= 'queued' then  -- otherwise Redis stopped the fetch before it took the locks
    local locks = held_locks(lock_ttl, record)
    give_back(release_locks(locks, id .. '/' .. gen .. '/' .. record.fence, false))  -- fault: disowned-keeps-locks
  end
  if record.cancel and record.state == 'running' then
    end_cancelled(id, record, '0')
  else
    if aside > 0 then
      change(id, {blocker = 'its fetch replies were lost: too large for the connection'})
    end
    local state = record.state == 'dying' and 'dying' or aside > 0 and 'waiting' or 'queued'
    requeue(id, state, record.stream, tonumber(gen), now + aside * (#given + 1))
    if record.state == 'running' then
      wait_on(id, record)
    end
  end
  given[#given + 1] = id
  return true
end

for _, stream in ipairs(streams_of(ARGV[3])) do
  local key = stream.key
  for _, item in ipairs(pending_in(key, '-', '+', 10000, worker)) do
    if not known[key .. ' ' .. item[1]] then  -- fault: disown-nothing
      see_to(key, item[1], hand_back)
    end
  end
end
offer_all()
return given
