"""Deliberate errors in the lock scripts, each of which the state machine must notice."""

from __future__ import annotations

from stores.machines.lock_site import Fault

FAULTS = (
    Fault("anybody may release a lock", "not is_held and holder(lock.key) ~= owner", "false"),
    Fault(
        "who takes over keeps the locks of the dead",
        "give_back(release_locks(locks, id .. '/' .. gen .. '/' .. record.fence, true))",
        "",
    ),
    Fault("a settle wakes nobody", "return general().offer_all(freed, #answers)", "return"),
    Fault(
        "a held mutex is taken the short way",
        "keys[#keys + 1], keys[#keys + 2] = mutex.key, P .. 'queue:' .. mutex.name",
        "keys[#keys + 1] = P .. 'queue:' .. mutex.name",
    ),
    Fault(
        "who takes a mutex the short way overtakes those who wait",
        "keys[#keys + 1], keys[#keys + 2] = mutex.key, P .. 'queue:' .. mutex.name",
        "keys[#keys + 1] = mutex.key",
    ),
    Fault(
        "a mutex that has expired is settled the short way",
        "or tonumber(expiry) <= now then\n      return false",
        "then\n      return false",
    ),
    Fault(
        "a mutex that was settled the short way stays",
        "gone[#gone + 1], freed[#freed + 1] = mutex.key, mutex.name",
        "freed[#freed + 1] = mutex.name",
    ),
    Fault("who comes of age keeps its rank in the queues", "if offer(me, of_age)", "if offer(me)"),
    Fault(
        "who is woken does not stand before all others",
        "stand(me, me.rank - WOKEN)",
        "stand(me, me.rank)",
    ),
    Fault(
        "who is refused again after it was woken stands before all others",
        "enter_queues(me, refusal, true)",
        "enter_queues(me, refusal)",
    ),
    Fault(
        "readers do not see waiting writers",
        "(lock.shared and 'writers:' or 'queue:')",
        "(lock.shared and 'nobody:' or 'queue:')",
    ),
    Fault("writers do not see readers", "if not expiry and lock.writer", "if false"),
    Fault(
        "a reservation that nobody took is kept",
        "now >= ends then\n    leave_queues(me)\n",
        "now >= ends then\n",
    ),
    Fault(
        "who leaves a queue offers it to nobody",
        "redis.call('ZREM', queue, member)\n    give_back({name})",
        "redis.call('ZREM', queue, member)",
    ),
    Fault(
        "who is admitted stays in its queues",
        "each_place(me, function(queue, member)\n    redis.call('ZREM', queue, member)\n  end)",
        "",
    ),
    Fault(
        "who moves to a limiter keeps its old places",
        "if places ~= me.places then\n    leave_queues(me)\n  end",
        "",
    ),
    Fault(
        "no watch on a grant that ends before those who wait look",
        "if lasts and lasts < SLOW_LOOK then",
        "if false then",
    ),
    Fault("no watch on a refusal", "watch(refusal.lock.counter, refusal.look)", ""),
    Fault(
        "a refusal watches for a whole lease of its own",
        "is_next = is_next, look = expiry}",
        "is_next = is_next, look = now + 30000000}",
    ),
    Fault(
        "what a limiter's queue waits for is taken by others",
        "if lock.items + before > free then",
        "if lock.items > free then",
    ),
    Fault(
        "what the woken were promised of a limiter is taken by others",
        "{{'-inf', '(' .. digits(me.rank - WOKEN)}, {0,",
        "{{0,",
    ),
    Fault(
        "slots of the dead count",
        "redis.call('ZREMRANGEBYSCORE', key, '-inf', digits(now))\n  return redis.call('ZCARD'",
        "return redis.call('ZCARD'",
    ),
    Fault("a mutex never expires", "owner and tonumber(expiry) > now and {", "owner and {"),
    Fault(
        "a renewal revives what ran out",
        "if lost_lock(locks, owner) then\n    return false\n  end\n  renew_locks",
        "renew_locks",
    ),
    Fault(
        "a limit set meanwhile counts no holder",
        "if lock.limit and lock.ttl >= lock_ttl then",
        "if false then",
    ),
    Fault(
        "a lock is taken before all are checked",
        "local refusal = refusal_of(me)\n  if refusal and refusal.impossible then\n    return end",
        "local refusal = refusal_of(me)\n  if refusal and not me.locks[1].limiter then\n"
        "    write_lock(me.locks[1], id)\n  end\n"
        "  if refusal and refusal.impossible then\n    return end",
    ),
    Fault(
        "items that were given back still count",
        "redis.call('DEL', P .. 'sum:' .. lock.counter)",
        "",
    ),
    Fault(
        "code that goes on keeps what it lost",
        "if not lock.limiter and holds(lock, owner) then",
        "if not lock.limiter then",
    ),
    Fault("code that goes on keeps nothing", "if delivery.still_runs then", "if false then"),
    Fault("items are always given back", "if started or redis.call('ZREM'", "if redis.call('ZREM'"),
    Fault(
        "items are never given back",
        "if started or redis.call('ZREM'",
        "if true or redis.call('ZREM'",
    ),
    Fault("items that left the window count", "sum and sum - items_of(gone)", "sum and sum"),
    Fault(
        "who is woken keeps its generation",
        "function wake_waiter(me)\n    local gen = digits(tonumber(me.gen) + 1)",
        "function wake_waiter(me)\n    local gen = me.gen",
    ),
    Fault("what the budget leaves of the queues is dropped", "watch(name, now)", ""),
    Fault(
        "what the budget leaves of a queue is dropped",
        "watch(name, had_all and not is_useful and now + SLOW_LOOK or now)",
        "",
    ),
    Fault(
        "a released lock wakes one waiter only",
        "return true, lock.exclusive, false",
        "return true, true, false",
    ),
    Fault(
        "one refused waiter stops those behind it",
        "refusal.lock.counter == name or lock.exclusive and stays, stays",
        "true, stays",
    ),
    Fault(
        "configured limits are not read",
        "and are_limits_set() then\n      local memo",
        "and false then\n      local memo",
    ),
    Fault(
        "who is of age keeps no places at limiters",
        "local everywhere = me.aged",
        "local everywhere = false",
    ),
    Fault(
        "everybody of age keeps places at limiters",
        "local everywhere = me.aged and refusal.is_next",
        "local everywhere = me.aged",
    ),
    Fault(
        "a hold that ran out is answered with its old fence",
        "if not lost_lock(locks, owner) then\n    return {'OK'",
        "if true then\n    return {'OK'",
    ),
    Fault(
        "who waits for the last limit of its class is lost when that is unset",
        "me.places ~= '' or are_limits_set() or",
        "are_limits_set() or",
    ),
    Fault(
        "a lost fetch is given back without its locks",
        "give_back(release_locks(locks, id .. '/' .. gen .. '/' .. record.fence, false))",
        "",
    ),
)

# Two that random histories meet too rarely: each has a history of its own.
ONLY_THE_FIRST = Fault(
    "only the first of a queue is compared",
    "if first[4] and tonumber(first[4]) < 0 then",
    "if false then",
)
REST_OF_A_BUDGET = Fault(
    "the rest of a budget counts as all of it",
    "local had_all = offers_left == tick_offers",
    "local had_all = tick_offers",
)
