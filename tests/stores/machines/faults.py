"""Deliberate errors in the scripts, each of which a test must notice. Names say what goes wrong."""

from __future__ import annotations

from stores.machines.site import Fault

LOCKS = (
    Fault("admitted-keeps-places"),
    Fault("aged-keeps-rank", "if offer(me) then"),
    Fault("aged-limiter-places", "local everywhere = false", "never"),
    Fault("aged-limiter-places", "local everywhere = me.aged", "always"),
    Fault("budget-drops-queue"),
    Fault("budget-drops-queues"),
    Fault("disowned-keeps-locks"),
    Fault("expired-slots-count"),
    Fault("grant-unwatched", "if false then"),
    Fault("hold-expired", "if true then"),
    Fault("items-returned", "if true then", "never"),
    Fault(
        "items-returned",
        "if redis.call('ZREM', lock.key, owner .. '|' .. lock.items) == 0 then",
        "always",
    ),
    Fault("last-limit-unset", "local is_limited = are_limits_set() or pause_of(me)"),
    Fault("leaver-offers-none"),
    Fault("limiter-queue-passed", "if lock.items > free then"),
    Fault("limiter-woken-passed", "return {{0, '(' .. digits(me.rank)}}"),
    Fault("limits-unread", "if false then"),
    Fault(
        "lock-taken-early",
        "local refusal = refusal_of(me) "
        "if refusal and not me.locks[1].limiter then write_lock(me.locks[1], id) end",
    ),
    Fault("mover-keeps-places"),
    Fault("mutex-never-expires", "holders[key] = owner and {owner, tonumber(expiry)} or {}"),
    Fault("new-limit-skips-holders", "if false then"),
    Fault("old-items-count", "sum = sum or items_of(redis.call('ZRANGE', lock.key, 0, -1))"),
    Fault("plain-mutex-kept", "freed[#freed + 1] = mutex.name"),
    Fault("plain-mutex-unchecked", "keys[#keys + 1] = P .. 'queue:' .. mutex.name", "holder"),
    Fault("readers-pass-writers", "return P .. 'queue-of-none:' .. lock.counter"),
    Fault("refusal-unwatched"),
    Fault(
        "refusal-watched-late",
        "return {lock = lock, held = true, is_next = is_next, look = now + 30000000}",
    ),
    Fault("refused-keeps-rank", "enter_queues(me, refusal)"),
    Fault("refused-stops-others", "return false, true, stays"),
    Fault("release-wakes-one", "return true, true, false"),
    Fault("released-by-others", "if false then"),
    Fault("renewal-revives"),
    Fault("reservation-kept"),
    Fault("returned-items-count"),
    Fault("settle-wakes-none", "return"),
    Fault("survivor-keeps-lost", "if not lock.limiter then"),
    Fault("survivor-keeps-none", "if false then"),
    Fault("takeover-keeps-locks"),
    Fault("woken-keeps-generation", "local gen = me.gen"),
    Fault("woken-keeps-rank", "stand(me, me.rank)"),
    Fault("writers-ignore-readers", "if false then"),
)

_SAME_REPLY = "if record.settled == delivery.fence"
_STORED_END = "if string.match(stored, '^%a+|(%d+)[ |]') == delivery.fence"
_GROUP_HEAD = "local ttl, good = group[3],"
QUEUE = (
    # Submitting and fetching
    Fault("delay-ignored", "local later = false"),
    Fault("disown-nothing", "if false then"),
    Fault("dying-executed", "elseif false then"),
    Fault("fence-reset", "local last_fence, started = 0, digits(now)"),
    Fault("garbage-dropped", "return drop(key, entry)"),
    Fault("known-id", "if redis.call('EXISTS', P .. 'r:' .. id) > 0 then", "live"),
    Fault("known-id", "if records.has(id) then", "ended"),
    Fault("new-unchecked", "return true"),
    Fault("priority-order", "local PRIORITIES = {'normal', 'realtime', 'background'}"),
    Fault("running-handed-over", "then"),
    Fault("saved-not-sent", "'', record.crashes or '0', record.suspect or '0',"),
    Fault("slots-exceeded", "local wanted = looks"),
    Fault("void-pointer", "if not record.gen or is_taken"),
    # Settling and cancelling
    Fault("cancel-not-ordered"),
    Fault("cancelled-retried", "if false then"),
    Fault("checkpoint-fence-unchecked", "if not record.gen then"),
    Fault("commit-loses-children"),
    Fault("dying-keeps-locks", "if locks and delivery.outcome ~= 'dying' then"),
    Fault("dying-revived", "local state = delivery.outcome == 'retry' and 'delayed' or 'waiting'"),
    Fault("errors-dropped"),
    Fault("failure-submits-children", "if true then"),
    Fault("lost-lock-ignored", "if false then"),
    Fault("repeat-refused", f"{_STORED_END} then", "settle"),
    Fault("repeat-refused", f"{_SAME_REPLY} then", "end"),
    Fault(
        "retry-counts-twice",
        "change(id, {settled = fence, attempt = 2 + (record.attempt or 0), error = delivery.text},",
    ),
    Fault("retry-delay-ignored", "requeue(id, state, record.stream, tonumber(delivery.gen), now)"),
    Fault(
        "running-cancelled",
        "local AT_REST = {queued = true, delayed = true, waiting = true, running = true}",
    ),
    # Ending
    Fault("error-kept", "redis.call('DEL',"),
    Fault("history-kept", "P .. 'c:' .. id)"),
    Fault(
        "id-forgotten",
        "if has_results then"
        " redis.call('SET', P .. 'r:' .. id, value .. document, 'PX', kept_ms) end",
    ),
    Fault("plain-end-kept"),
    Fault("plain-end-uncounted"),
    Fault(
        "result-forgotten-early",
        "has_results, kept_ms, ended_at = ttl > 0, digits(math.min(ttl, dedup)), digits(now)",
    ),
    Fault("retried-ends-plainly", "return record.state == 'running'"),
    # Sweeping
    Fault("beat-extends-nothing", "local claimed = {entry}"),
    Fault("beat-keeps-reclaimed", "if not record.gen then"),
    Fault("crash-limit-ignored", "if false then"),
    Fault("dead-workers-kept", "if false then"),
    Fault("deaths-uncounted"),
    Fault("innocent-blamed", "if redis.call('SISMEMBER', accused, id) == 1 then"),
    Fault(
        "promoted-early",
        "local due = redis.call('ZRANGEBYSCORE', due_key, '-inf', digits(now + 2e6))",
    ),
    Fault("requeue-keeps-generation", "gen = digits(gen)"),
    Fault("robbed-not-requeued"),
    Fault("suspects-first", ") then"),
    Fault("walk-skips-queued", "return true"),
    Fault("walk-takes-from-living", "else"),
    # Losing data
    Fault("grace-ignored"),
    Fault(
        "no-grace-after-loss",
        "redis.call('HSET', P .. 'epoch', 'since', since, 'seq', seq, 'withheld', '0',",
    ),
    Fault("plain-grace-ignored", "if false then"),
)

ORDER = (
    Fault("aged-keeps-stream", "if false then"),
    Fault(
        "lapsed-never-ages",
        "local next_look = me.places ~= '' and math.min(aging_time(me, waits), ends) or math.huge",
    ),
    Fault("late-check-ages", "return not is_at_pause(me) and now >= aging_time(me, waits)"),
    Fault("rank-random", "rank = 10^15 + math.random(10^9), places = record.places or '',"),
    Fault("wake-forgets-aging", "redis.call('ZADD', P .. 'tasks:delayed', ends, me.id)"),
    Fault("woken-never-ages", "if false then"),
)

# The machines have no groups, leaders, older data, periodic entries and shares; few of their tasks
# have no rare fields, and few of their processes know an older epoch. Other tests of the stores
# notice these.
ELSEWHERE = (
    Fault("second-report-ignored", "elseif false then"),
    Fault("plain-mutex-expired", "if stepped or same ~= owner then"),
    Fault("plain-mutex-unchecked", "keys[#keys + 1] = mutex.key", "queue"),
    Fault(
        "unusual-taken-for-plain",
        "if not text or string.gsub(string.sub(text, 1, #head), '%+', ' ') ~= head then",
    ),
    Fault("fence-unchecked", "if record.gen ~= delivery.gen then"),
    Fault(
        "plain-fence-unchecked",
        "if not text or string.sub(text, 1, 8 + #gen) ~= string.sub(head, 1, 8 + #gen) then",
    ),
    Fault("child-uncounted"),
    Fault("empty-group-never-fires"),
    Fault("group-fires-again", "redis.call('HSET', key, 'outcome', good and 'done' or 'failed',"),
    Fault("group-not-informed", "if false then"),
    Fault("group-opened-again"),
    Fault("group-outcome", f"{_GROUP_HEAD} true", "always good"),
    Fault("group-outcome", f"{_GROUP_HEAD} tonumber(group[1]) == 0", "without policy"),
    Fault("open-group-waits-forever", "if false then"),
    Fault("unsealed-group-fires", "if redis.call('HGET', key, 'state') ~= 'fired'"),
    Fault("foreign-layout-read", "if false then"),
    Fault("older-data-unnoticed", "if not since or not seq then"),
    Fault("two-leaders", "if false then"),
    Fault("lease-never-ends", "return leader[1] == term"),
    Fault("deposed-promotes", "if false then"),
    Fault("worker-promotes", "if false then"),
    Fault(
        "cancelled-child-unknown",
        "record.group = nil local document = document_of(record.name or '', record.attempt)",
    ),
    Fault("deposed-fires", "if false then"),
    Fault("fired-twice", "if false then"),
    Fault("lists-unmended", "return false"),
    Fault("lists-unread", "if false then"),
    Fault("turn-kept"),
    Fault("two-occurrences-wait", "elseif false then"),
)

# Random histories meet these two too rarely: each has a history of its own.
FIRST_ONLY = Fault("first-only", "if false then")
BUDGET_REST = Fault("budget-rest", "local had_all = tick_offers")
REMOVES_FIRST = Fault(
    "removes-first",
    "redis.call('ZREM', due_key, id) records.drop({id}) "
    "local pointer = enqueue(kind, id, stream, gen)",
)

# Budgets so small that they are used up all the time. Everything must hold with them, too.
THRIFTY = (
    Fault("release-budget", "local offers_left = 2"),
    Fault("tick-budget", "offers_left = 12"),
)
FEW_EDGES = (
    Fault("edges-per-call", "local edges_left = 1"),
    Fault("edges-per-promotion", "local MOST_EDGES, COST_OF_AN_END = 1, 1"),
)

ALL = (
    *LOCKS,
    *QUEUE,
    *ORDER,
    *ELSEWHERE,
    FIRST_ONLY,
    BUDGET_REST,
    REMOVES_FIRST,
    *THRIFTY,
    *FEW_EDGES,
)
