-- lib/settling: needs base, wake, record, counting, submitting, limits, mutexes, locks, index, group, keeping, finish.
-- Settles deliveries of all kinds, for settle.

-- @defer ending workflow load_end_steps
-- @defer ending workflow staging add_steps
-- @defer fitting pauses queues refusal waiting offer_all
-- @defer ending end_cancelled
-- @defer leaving leave_locks
-- @defer fitting handing hand_on
-- @defer limits mutexes locks index group keeping finish fitting pauses queues refusal waiting cancel ending replacing replace_older
local replace = replace_older
-- @defer unique claim_key
claim = claim_key

end_steps = load_end_steps

local COUNTED = {crash = 'crashes', suspect = 'suspect', on = 'handed'}  -- fields of the record to raise
local MEANT = {crash = 'retry', suspect = 'back', on = 'back', commit = 'done'}

-- The k-th delivery.
local function read_delivery(k)
  local at = starts[k]
  local id, gen, fence, stream, entry, outcome, document = unpack(ARGV, at, at + SHORT - 1)
  local text, delay, started, count = '', '0', '1', '0'
  if outcome ~= 'done' then
    text, delay, started, count = unpack(ARGV, at + SHORT, at + LONG - 1)
  end
  return {k = k, id = id, gen = gen, fence = fence, stream = stream, entry = entry, outcome = MEANT[outcome] or outcome,
    counted = COUNTED[outcome], document = document, text = string.sub(text, 1, 60), delay = tonumber(delay),
    is_started = started ~= '0', still_runs = started == '2', follower = at + LONG, followers = tonumber(count)}
end

-- The answer for a delivery that the caller does not own, or has settled before.
local function answer_again(delivery, record)
  local stored = redis.call('GETRANGE', P .. 'r:' .. delivery.id, 0, 63)
  if record.settled == delivery.fence or string.match(stored, '^%a+|(%d+)[ |]') == delivery.fence then  -- fault: repeat-refused
    return 'OK'
  end
  redis.call('HINCRBY', P .. 'counters', 'settle:stale', 1)
  return 'STALE'
end

-- End these steps of workflows. A workflow that fails must not prevent the end of its steps, nor harm others.
local function end_these(those)
  if pcall(end_steps, those) then
    return
  end
  for _, one in ipairs(those) do
    if not pcall(end_steps, {one}) then
      redis.call('HINCRBY', P .. 'counters', 'finish:broken', 1)
    end
  end
  pcall(end_steps, {})  -- what those that failed have collected
end

local function submit_follower(id, name, stream, wall, ...)
  local due = due_of(wall)
  if submit_one(id, name, stream, due, ...) == 1 and due <= now then
    wake(size_of(stream), 1)
  end
end

-- Submit the tasks that follow a task that is done; add those that are steps to its workflow.
local function submit_followers(delivery, record)
  local steps = {}
  for i = delivery.follower, delivery.follower + OF_A_TASK * delivery.followers - 1, OF_A_TASK do
    if string.find(ARGV[i + 7], '^step ') then
      steps[#steps + 1] = {unpack(ARGV, i, i + 7)}
    else
      submit_follower(unpack(ARGV, i, i + 7))
    end
  end
  if #steps > 0 then
    record.adds = add_steps(delivery.id, record, steps)
  end
end

-- Queue the task again, after the delay.
local function put_back(delivery, record)
  local id, fence, delay, counted = delivery.id, delivery.fence, delivery.delay, delivery.counted
  if delivery.outcome == 'retry' then
    -- The attempt ended and its process survived, or the policy allowed another attempt after a crash.
    local is_over = not counted and (record.judge and 'judge' or 'suspect')
    change(id, {settled = fence, attempt = tonumber(record.attempt or '0') + 1, error = delivery.text},  -- fault: retry-counts-twice
      is_over and {[is_over] = ''} or nil)
    redis.call('RPUSH', P .. 'h:' .. id, delivery.document)  -- fault: errors-dropped
    redis.call('LTRIM', P .. 'h:' .. id, -20, -1)
  else
    change(id, {settled = fence, blocker = delivery.text})
  end
  if counted == 'handed' then
    delay = hand_on(id, record, record.owner or '', delay)
  elseif counted then
    records.raise(id, counted)
  end
  local state = record.state == 'dying' and 'dying' or delivery.outcome == 'retry' and 'delayed' or 'waiting'  -- fault: dying-revived
  if delivery.is_started then
    end_of_wait(id, record)
  end
  requeue(id, state, record.stream, tonumber(delivery.gen), now + delay)  -- fault: retry-delay-ignored
  if record.state == 'running' and not delivery.is_started then
    wait_on(id, record)
  end
end

-- Whether the success of a task can be written together with others: it was delivered once, no client waits for it, and
-- it concerns no other task but the steps of its workflow.
local function ends_alone(record)
  return not record.settled and record.state == 'running'  -- fault: retried-ends-plainly
    and not (record.group or record.opens or record.waited or record.unique or record.saved
      or record.suspect or record.letter)
end

-- Write what a settlement by the owner changes. Returns whether the delivery is over.
local function write(k, delivery, record)
  local id, outcome = delivery.id, delivery.outcome
  if outcome == 'dying' then
    -- The worker keeps the delivery while it writes to SQL.
    redis.call('SET', P .. 'e:' .. id, delivery.document)
    change(id, {state = 'dying', died = delivery.gen})
    return false
  elseif outcome == 'retry' or outcome == 'back' then
    if record.cancel and record.state == 'running' then  -- fault: cancelled-retried
      end_cancelled(id, record, delivery.fence)
    else
      put_back(delivery, record)
    end
  elseif outcome == 'done' and delivery.followers == 0 and ends_alone(record) then
    end_plainly(k, id, record, delivery.fence, delivery.document)
  else
    if outcome == 'done' then  -- fault: failure-submits-children
      submit_followers(delivery, record)  -- fault: commit-loses-children
    end
    finish(id, record, outcome, delivery.fence, delivery.document)
    if record.reason == 'capacity' then  -- the leader may be about to end it
      redis.call('ZREM', P .. 'expired', id)
    end
  end
  return true
end

local releases = {}

local function settle(delivery)
  local k, id, fence = delivery.k, delivery.id, delivery.fence
  local record = read_record(id)
  if record.gen ~= delivery.gen or record.fence ~= fence then  -- fault: fence-unchecked
    return answer_again(delivery, record)
  end
  local locks, owner, is_held = nil, nil, delivery.outcome == 'done'
  if record.locks or record.held then
    locks = held_locks(lock_ttl, record)
    owner = id .. '/' .. delivery.gen .. '/' .. fence
    if is_held and lost_lock(locks, owner) then  -- fault: lost-lock-ignored
      redis.call('HINCRBY', P .. 'counters', 'settle:lost', 1)
      return 'LOST'
    end
    if delivery.still_runs then  -- fault: survivor-keeps-none
      leave_locks(id, record, owner, fence, locks, lock_ttl)
    end
  end
  if record.suspect then
    redis.call('SREM', P .. 'accused:' .. (record.owner or ''), id)
  end
  if write(k, delivery, record) then
    leave_stream(P .. delivery.stream, delivery.entry)
  end
  if locks then  -- fault: dying-keeps-locks
    releases[#releases + 1] = {locks = locks, owner = owner, started = delivery.is_started,
      is_held = is_held}
  end
  return 'OK'
end

local function settle_rest()
  remove_ended()  -- its locks, above all: lib/locks remembers what it reads
  for _, k in ipairs(left) do
    local delivery = read_delivery(k)
    if met[delivery.id] then  -- a repetition must see what the first settlement did
      remove_ended()
    end
    met[delivery.id] = true
    answers[k] = try(settle, delivery)
  end
end

local function release_rest()
  for _, one in ipairs(releases) do
    local names = try(release_locks, one.locks, one.owner, one.started, one.is_held)
    for _, name in ipairs(type(names) == 'table' and names or {}) do
      freed[#freed + 1] = name
    end
  end
end

local function load_settling()
  return {settle_rest = settle_rest, release_rest = release_rest, end_these = end_these, offer_all = offer_all}
end
