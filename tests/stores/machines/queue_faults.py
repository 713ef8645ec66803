"""Deliberate errors in the scripts of the queue, each of which the state machine must notice."""

from __future__ import annotations

from stores.machines.lock_site import Fault

FINISHED = "P .. 'b:' .. id, P .. 'l:' .. id, P .. 'e:' .. id,"
KNOWN = "if redis.call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) > 0 then\n    if group"

SUBMITTING = (
    Fault("a live id is submitted again", KNOWN, KNOWN.replace("P .. 't:' .. id, ", "")),
    Fault("an ended id is submitted again", KNOWN, KNOWN.replace(", P .. 'r:' .. id", "")),
    Fault("a child is not counted", "redis.call('SADD', P .. 'g:' .. group .. ':pending', id)", ""),
    Fault("a delayed task runs at once", "local later = due > now", "local later = false"),
)

FETCHING = (
    Fault(
        "normal tasks come before realtime",
        "local PRIORITIES = {'realtime', 'normal', 'background'}",
        "local PRIORITIES = {'normal', 'realtime', 'background'}",
    ),
    Fault(
        "a worker gets more than it has slots",
        "local wanted = math.min(most(kind), looks)",
        "local wanted = looks",
    ),
    Fault(
        "what is dying is executed",
        "elseif record.state == 'dying' then\n      hand_over_burial",
        "elseif false then\n      hand_over_burial",
    ),
    Fault(
        "a void pointer is handed over",
        "if record.gen ~= pointer.gen or is_taken",
        "if not record.gen or is_taken",
    ),
    Fault(
        "what runs is handed over again",
        "(record.state ~= 'queued' and record.state ~= 'dying')",
        "false",
    ),
    Fault(
        "garbage is thrown away",
        "return quarantine(key, entry, fields, 'not a task pointer')",
        "return drop(key, entry)",
    ),
    Fault("what was saved is not handed over", "record.saved and saved_by(pointer.id) or ''", "''"),
    Fault(
        "fences do not grow",
        "local last_fence, started = math.max(tonumber(marks[4] or '') or 0, now), digits(now)",
        "local last_fence, started = 0, digits(now)",
    ),
    Fault(
        "a lost fetch is not given back",
        "if not known[key .. ' ' .. item[1]] then",
        "if false then",
    ),
)

# What is wrong with plain tasks only: submit, fetch and settle have a short way for them.
SHORT_WAYS = (
    Fault("a plain task is created again", "redis.call('EXISTS', unpack(absent)) > 0", "false"),
    Fault(
        "unusual tasks are taken for plain",
        "      due = all[i + 1]\n    else\n      return false\n",
        "      due = all[i + 1]\n",
    ),
    Fault(
        "a plain settle does not check the fence",
        "if record.gen ~= gen or record.fence ~= fence or record.held",
        "if record.gen ~= gen or record.held",
    ),
)

SETTLING = (
    Fault(
        "a settle does not check the fence",
        "if record.gen ~= delivery.gen or record.fence ~= fence then\n    return answer_again",
        "if record.gen ~= delivery.gen then\n    return answer_again",
    ),
    Fault("a repeated settle is refused", "if record.settled == delivery.fence or", "if"),
    Fault(
        "a repeated end is refused",
        "or string.match(stored, '^%a+|(%d+)[ |]') == delivery.fence then",
        "then",
    ),
    Fault(
        "a retry counts twice", "tonumber(record.attempt or '0') + 1", "2 + (record.attempt or 0)"
    ),
    Fault(
        "a retry does not wait",
        "requeue(id, state, record.stream, tonumber(delivery.gen), now + delay)",
        "requeue(id, state, record.stream, tonumber(delivery.gen), now)",
    ),
    Fault("errors are not kept", "redis.call('RPUSH', P .. 'h:' .. id, delivery.document)", ""),
    Fault(
        "a lost lock does not count", "if is_held and lost_lock(locks, owner) then", "if false then"
    ),
    Fault(
        "what is dying keeps its locks",
        "if locks then\n    releases",
        "if locks and delivery.outcome ~= 'dying' then\n    releases",
    ),
    Fault(
        "a dying task is executed after it was handed back",
        "local state = record.state == 'dying' and 'dying' or delivery.outcome == 'retry'",
        "local state = delivery.outcome == 'retry'",
    ),
    Fault("children of a commit are lost", "      submit_followers(delivery, record)\n", "\n"),
    Fault(
        "what failed submits the children of its commit",
        "if outcome == 'done' then\n      submit_followers",
        "if true then\n      submit_followers",
    ),
    Fault(
        "who lost the delivery saves over what others saved",
        "if record.gen ~= gen or record.fence ~= fence then\n  return 'STALE'",
        "if not record.gen then\n  return 'STALE'",
    ),
)

ENDING = (
    Fault("a plain end does not count", "count_active(numbers)\nend", "end"),
    Fault(
        "what ended plainly stays",
        "redis.call('DEL', unpack(keys))\n  count_active(numbers)",
        "count_active(numbers)",
    ),
    Fault(
        "the locks of what ended plainly stay",
        "P .. 't:' .. id, P .. 'l:' .. id, P .. 'b:' .. id",
        "P .. 't:' .. id, P .. 'b:' .. id, P .. 'b:' .. id",
    ),
    Fault(
        "what was retried ends plainly",
        "return not record.settled and record.state == 'running'",
        "return record.state == 'running'",
    ),
    Fault("the error of what died stays", FINISHED, FINISHED.replace(" P .. 'e:' .. id,", "")),
    Fault(
        "the history of what ended stays", "P .. 'h:' .. id, P .. 'c:' .. id)", "P .. 'c:' .. id)"
    ),
    Fault(
        "without a result the id is forgotten",
        "redis.call('SET', P .. 'r:' .. id, has_results",
        "local _ = has_results and redis.call('SET', P .. 'r:' .. id, has_results",
    ),
    Fault("a result is forgotten too early", "math.max(ttl, dedup)", "math.min(ttl, dedup)"),
    Fault(
        "a group does not hear of its children",
        "if record.group then\n    end_child",
        "if false then\n    end_child",
    ),
)

GROUPS = (
    Fault(
        "the callback comes although a child failed",
        "group[3], tonumber(group[1]) == 0 or",
        "group[3], true or",
    ),
    Fault("all_done is all_success", " or group[2] == 'all_done'", ""),
    Fault("a group without children never fires", "fire_if_complete(gid)  -- also", "--"),
    Fault(
        "a group fires before it is sealed",
        "if redis.call('HGET', key, 'state') == 'sealed'",
        "if redis.call('HGET', key, 'state') ~= 'fired'",
    ),
    Fault("a group fires again", "'state', 'fired', 'outcome'", "'outcome'"),
    Fault("a group that was not sealed waits for ever", "if record.opens then", "if false then"),
    Fault(
        "a parent that runs again opens its group again", "if state then\n  return state\nend", ""
    ),
)

SWEEPING = (
    Fault("a requeue keeps the generation", "gen = digits(gen + 1)", "gen = digits(gen)"),
    Fault("deaths do not count", "redis.call('HINCRBY', key, 'deaths', 1)", ""),
    Fault("nobody dies of crashes", "if crashes >= limit and not is_newer then", "if false then"),
    Fault(
        "an innocent among others is blamed", "and redis.call('SCARD', accused) == 1 then", "then"
    ),
    Fault(
        "a suspect goes before ordinary work",
        "and is_unread('tasks', priority)) then",
        "and false) then",
    ),
    Fault(
        "a death uses an attempt",
        "redis.call('HINCRBY', key, 'deaths', 1)",
        "redis.call('HINCRBY', key, 'deaths', 1)\n  redis.call('HSET', key, 'attempt', 9)",
    ),
    Fault("dead workers are not forgotten", "forgotten < MOST and forget(worker)", "false"),
    Fault(
        "a beat does not extend the lease",
        "redis.pcall('XCLAIM', P .. stream_key, 'workers', worker, 0, entry, 'JUSTID')",
        "redis.pcall('XPENDING', P .. stream_key, 'workers')",
    ),
    Fault(
        "a beat keeps what was taken back",
        "if record.gen ~= gen or record.fence ~= fence then\n    return false",
        "if not record.gen then\n    return false",
    ),
    Fault("a walk takes from the living", "elseif not is_alive(record.owner) then", "else"),
    Fault(
        "a walk does not see what is queued",
        "return is_pointed_at(id, record)\n  end\n  return state",
        "return true\n  end\n  return state",
    ),
    Fault(
        "what is due is moved too early",
        "'ZRANGEBYSCORE', due_key, '-inf', digits(now)",
        "'ZRANGEBYSCORE', due_key, '-inf', digits(now + 2000000)",
    ),
    Fault(
        "a deposed leader promotes",
        "if not leads(term) then\n    return {0, -1, 0}",
        "if false then\n    return {0, -1, 0}",
    ),
    Fault(
        "workers promote beside a leader", "if ago >= 0 and ago < help_after then", "if false then"
    ),
    Fault(
        "who lost its lock to an operator is not executed again",
        "requeue(record.id, due > now",
        "tostring(record.id, due > now",
    ),
)

LEADING = (
    Fault("two lead", "if yields or alive and leader[1] ~= owner then", "if false then"),
    Fault(
        "whoever led fires",
        "if not leads(term) then\n  return 'DEPOSED'",
        "if false then\n  return 'DEPOSED'",
    ),
    Fault(
        "who led last fires after its lease",
        "return leader[1] == term and tonumber(leader[2]) > now",
        "return leader[1] == term",
    ),
    Fault(
        "an occurrence is fired twice", "last and tonumber(occurrence) <= tonumber(last)", "false"
    ),
    Fault(
        "two occurrences of an entry wait",
        "elseif not runs and not has_begun(previous) then",
        "elseif false then",
    ),
    Fault(
        "older data are not noticed",
        "if not since or not seq or seq < known_seq then",
        "if not since or not seq then",
    ),
    Fault("no calm after a loss", "'calm', digits(now + calm * 1000)", "'calm', '0'"),
    Fault("the calm is ignored", "expiry = expiry or calm_until(lock)", ""),
    Fault("the short way ignores the calm", "if calm_until(mutex) then", "if false then"),
    Fault(
        "a loss that is told second is ignored",
        "elseif found.first and known_since > 0 and known_since < since then",
        "elseif false then",
    ),
)

CANCELLING = (
    Fault(
        "what runs is cancelled",
        "queued = true, delayed = true, waiting = true",
        "queued = true, delayed = true, waiting = true, running = true",
    ),
    Fault(
        "a group does not hear of a cancelled child",
        "    local document = document_of(record.name",
        "    record.group = nil\n    local document = document_of(record.name",
    ),
    Fault("a worker is not told", "redis.call('SADD', orders, id)", ""),
    Fault(
        "what was cancelled is retried",
        "if record.cancel and record.state == 'running' then\n      end_cancelled",
        "if false then\n      end_cancelled",
    ),
)

SHARING = (
    Fault(
        "what had its turn stays in its list",
        "redis.call('LTRIM', list_of(kind, stream, tenant), number, -1)",
        "redis.call('LLEN', list_of(kind, stream, tenant))",
    ),
    Fault(
        "a fetch leaves the lists alone",
        "if marks[6] then\n    read_shares(priority)",
        "if false then\n    read_shares(priority)",
    ),
    Fault(
        "the walk does not look into lists",
        "if record.pointer == IN_LIST then\n    return is_in_list(id, record)",
        "if record.pointer == IN_LIST then\n    return false",
    ),
)

FAULTS = (
    *(*SUBMITTING, *FETCHING, *SHARING, *SHORT_WAYS, *CANCELLING, *SETTLING, *ENDING, *GROUPS),
    *(*SWEEPING, *LEADING),
)
