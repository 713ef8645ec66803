#!lua
-- hold: take locks for code that is no task, all or none; the watchdog renews them. Who is refused
-- and waits stands in the same queues as tasks do, as one of the highest priority, and asks again
-- when its client is told, through one wake list for all its holds, or every few seconds.
-- KEYS  prefix
-- ARGV  id (made by the client), locks, lock ttl ms, who asks, client to tell or '' not to wait,
--       epoch and sequence seen, tasks and holds in which it is asked …
-- returns {'OK', fence} | {'REFUSED', name of the lock} | {'CALM', name of the lock|µs}: nobody gets it
--       for so long, after a loss of data | {'IMPOSSIBLE', why} | {'DEADLOCK', name of the lock}: it is held, in the
--       end, where it is asked for; each with epoch and its sequence
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch wake record limits locks pauses queues refusal waiting deadlock
local id, lines, lock_ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local key = P .. 't:' .. id
local since, seq = current_epoch(ARGV[6], lock_ttl)
local record = read_fields(key, {'state', 'gen', 'stream', 'ticket', 'places', 'fence', 'refusals',
  'since', 'aged', 'held'})
if record.state == 'held' then
  local locks = held_locks(redis.call('GET', P .. 'l:' .. id) or lines, lock_ttl, '',
    record.held or '')
  local owner = id .. '/0/' .. record.fence
  -- The reply to an earlier call may have been lost: its locks must not refuse their own holder.
  if not lost_lock(locks, owner) then
    return {'OK', record.fence, since, seq}
  end
  -- Somebody else may hold by now what ran out: ask anew, behind all others.
  give_back(release_locks(locks, owner, true))
  redis.call('DEL', key, P .. 'l:' .. id)
  record = {}
end
local function answer_of(refusal)
  local lock = refusal.lock
  local calm = refusal.held and not lock.limits and not holder(lock.key) and calm_until(lock)
  if calm then
    return {'CALM', lock.counter .. '|' .. digits(calm - now), since, seq}
  end
  return {'REFUSED', lock.counter, since, seq}
end
record.stream, record.ticket, record.gen = 'hold', record.ticket or digits(now), record.gen or '0'
local me = new_waiter(id, record, parse_locks(lines, lock_ttl, ''))
local refusal = refusal_of(me)
if refusal and refusal.impossible then
  leave_as_admitted(me)
  each_place(me, function(_, _, name) give_back({name}) end)
  redis.call('DEL', key, P .. 'l:' .. id)
  offer_all()
  return {'IMPOSSIBLE', why_impossible(refusal.lock), since, seq}
end
local waits = refusal and ARGV[5] ~= ''
for i = 7, waits and #ARGV or 0 do
  local lock = lock_that_depends_on(me, ARGV[i])
  if lock then
    forget_hold(me)
    offer_all()
    return {'DEADLOCK', lock, since, seq}
  end
end
if refusal and not waits then
  offer_all()
  return answer_of(refusal)
end

redis.call('HSET', key, 'name', 'hold', 'stream', 'hold', 'ticket', record.ticket, 'gen', record.gen,
  'owner', ARGV[4], 'client', ARGV[5], 'seen', digits(now))
redis.call('SET', P .. 'l:' .. id, lines)
if refusal then
  -- A promotion forgets it when it asks no more. (A TTL would leave its places to nobody.)
  park(me, refusal, HOLD_WAITS)
  offer_all()
  return answer_of(refusal)
end
local fence = digits(math.max(tonumber(redis.call('GET', P .. 'fence') or '') or 0, now) + 1)
local held = take_locks(me, id .. '/0/' .. fence)
leave_as_admitted(me)
redis.call('SET', P .. 'fence', fence)
redis.call('HSET', key, 'state', 'held', 'gen', '0', 'fence', fence, 'held', held,
  'started', digits(now), unpack(NOT_WAITING))
redis.call('PEXPIRE', key, lock_ttl * 2)
redis.call('PEXPIRE', P .. 'l:' .. id, lock_ttl * 2)
offer_all()
return {'OK', fence, since, seq}
