#!lua
-- hold: take all locks or none for code that is not a task. The watchdog renews them. A refused program may wait:
-- it joins the queues in which tasks wait, with the highest priority, and asks again every few seconds, or when its
-- client is woken. A client has one wake list for all its holds.
-- KEYS  prefix
-- ARGV  id (made by the client), locks, lock ttl ms, who asks, client to wake or '' not to wait,
--       epoch and sequence seen, ids of the tasks and holds that enclose the call …
-- returns {'OK', fence} | {'REFUSED', name of the lock} | {'WITHHELD', name of the lock|µs}: after a loss of data no
--       one gets the lock for that long | {'IMPOSSIBLE', why} | {'DEADLOCK', name of the lock}: its holder waits,
--       directly or through others, for the code that asks; each followed by the epoch and its sequence
-- @include base
-- @defer events beginning begin_epoch
-- @include epoch wake record limits mutexes locks fitting pauses queues refusal waiting deadlock
local id, lines, lock_ttl, who, client, seen = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]
local since, seq = current_epoch(seen, lock_ttl)
local record = read_record(id)
if record.state == 'held' then
  local locks = held_locks(lock_ttl, record)
  local owner = id .. '/0/' .. record.fence
  -- An earlier call may have taken the locks although its reply was lost. They must not refuse their own holder.
  if not lost_lock(locks, owner) then  -- fault: hold-expired
    return {'OK', record.fence, since, seq}
  end
  -- A lease has expired, so another holder may have the lock by now. Ask again, behind all others.
  give_back(release_locks(locks, owner, true))
  records.drop({id})
  record = {}
end
local function answer_of(refusal)
  local lock = refusal.lock
  local withheld = refusal.held and not lock.limiter and not holder(lock.key) and withheld_until(lock)
  if withheld then
    return {'WITHHELD', lock.counter .. '|' .. digits(withheld - now), since, seq}
  end
  return {'REFUSED', lock.counter, since, seq}
end
record.stream, record.ticket, record.gen = 'hold', record.ticket or digits(now), record.gen or '0'
local me = new_waiter(id, record, parse_locks(lines, lock_ttl))
local refusal = refusal_of(me)
if refusal and refusal.impossible then
  leave_as_admitted(me)
  each_place(me, function(_, _, name) give_back({name}) end)
  records.drop({id})
  offer_all()
  return {'IMPOSSIBLE', why_impossible(refusal.lock), since, seq}
end
local waits = refusal and client ~= ''
for i = 7, waits and #ARGV or 0 do
  local asked_in = ARGV[i]
  local lock = lock_that_depends_on(me, asked_in)
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

record.state, record.name, record.owner, record.client, record.seen = record.state or 'waiting', 'hold', who, client, now
record.locks = given(lines)
records.put(id, record, '')
records.write_all()
if refusal then
  -- Set no TTL: the places in the queues would outlive the record. A promotion removes a hold that stops asking.
  park(me, refusal, HOLD_WAITS)
  offer_all()
  return answer_of(refusal)
end
local fence = digits(math.max(tonumber(redis.call('GET', P .. 'fence') or '') or 0, now) + 1)
local held = take_locks(me, id .. '/0/' .. fence)
leave_as_admitted(me)
redis.call('SET', P .. 'fence', fence)
change(id, {state = 'held', gen = '0', fence = fence, held = held, started = digits(now)}, NOT_WAITING)
records.keep(id, lock_ttl + LOCKS_KEPT)
offer_all()
return {'OK', fence, since, seq}
