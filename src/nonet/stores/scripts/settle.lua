#!lua flags=allow-oom
-- settle: end a delivery, once. Repeating a settle (a lost reply) answers as the first time;
-- one by a worker that no longer owns the delivery changes nothing.
-- KEYS  prefix
-- ARGV  id, gen, fence, stream key, entry, outcome, document, text, delay µs, started (1|0),
--       result ttl ms, dedup ttl ms, lock ttl ms, n × (what submit takes): submitted if it is done
--       outcome: done | dead   end the task with the document as its result
--                retry         one attempt used: keep document and text as its error
--                back          no attempt used: keep text as what it waits for
--                dying         never execute again: keep the document until it is in SQL
-- returns OK | STALE (not the owner) | LOST (a lock ran out: nothing was changed); HASH counters
--       counts the two refusals
-- @include base wake record limits locks index group finish
-- @defer pauses queues refusal waiting offer_all
local id, gen, fence, stream_key, entry = ARGV[1], ARGV[2], ARGV[3], P .. ARGV[4], ARGV[5]
local outcome, document, text = ARGV[6], ARGV[7], string.sub(ARGV[8], 1, 60)
local due, started = now + tonumber(ARGV[9]), ARGV[10] == '1'
local key = P .. 't:' .. id

local record = read_fields(key, {'gen', 'fence', 'settled', 'stream', 'state', 'attempt', 'held',
  'name', 'group', 'opens', 'waited'})
if record.gen ~= gen or record.fence ~= fence then
  local ended = redis.call('GETRANGE', P .. 'r:' .. id, 0, 63)
  if record.settled == fence or string.match(ended, '^%a+|(%d+)|') == fence then
    return 'OK'
  end
  redis.call('HINCRBY', P .. 'counters', 'settle:stale', 1)
  return 'STALE'
end

-- A record may have lost fields (foul play, a cut script): its stream is where it was read.
local stream = record.stream or string.match(ARGV[4], '^%a+:(.*)$')
local locks = held_locks(redis.call('GET', P .. 'l:' .. id) or '', tonumber(ARGV[13]),
  record.name or '', record.held or '')
local owner = id .. '/' .. gen .. '/' .. fence
local is_held = outcome == 'done' and not lost_lock(locks, owner)
if outcome == 'done' and not is_held then
  redis.call('HINCRBY', P .. 'counters', 'settle:lost', 1)
  return 'LOST'
end

local function release()
  local names = release_locks(locks, owner, started, is_held)
  if is_wanted(names) then
    offer_all(names)
  end
end

if outcome == 'dying' then
  -- The worker keeps the delivery while it writes to SQL.
  redis.call('SET', P .. 'e:' .. id, document)
  redis.call('HSET', key, 'state', 'dying', 'died', gen)
  release()
  return 'OK'
elseif outcome == 'retry' or outcome == 'back' then
  if outcome == 'retry' then
    redis.call('HSET', key, 'settled', fence, 'attempt', tonumber(record.attempt or '0') + 1,
      'error', text)
    redis.call('RPUSH', P .. 'h:' .. id, document)
    redis.call('LTRIM', P .. 'h:' .. id, -20, -1)
  else
    redis.call('HSET', key, 'settled', fence, 'blocker', text)
  end
  local state = record.state == 'dying' and 'dying' or outcome == 'retry' and 'delayed' or 'waiting'
  requeue(id, state, stream, tonumber(gen), due)
else
  for i = 14, outcome == 'done' and #ARGV or 0, 7 do
    local stream, due = ARGV[i + 2], due_of(ARGV[i + 3])
    if submit_one(ARGV[i], ARGV[i + 1], stream, due, ARGV[i + 4], ARGV[i + 5], ARGV[i + 6]) == 1
      and due <= now then
      wake(size_of(stream), 1)
    end
  end
  finish(id, record, outcome, fence, document, tonumber(ARGV[11]), tonumber(ARGV[12]))
end
redis.call('XDEL', stream_key, entry)  -- first, see drop() in lib/rescue
redis.call('XACK', stream_key, 'workers', entry)
release()
return 'OK'
