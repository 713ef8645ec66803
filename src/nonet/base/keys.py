"""Every Redis key, under one hash tag, and how parts of a key are escaped.

All keys of a namespace share the tag ``{ns}``, so that every script is atomic on Redis Cluster
too. Lua scripts get the prefix ``{ns}:`` and append the same literals; a test compares them with
this table.

    tasks:PRIORITY:SIZE     STREAM  fields id, gen; consumer group ``workers``
    woken:PRIORITY:SIZE     STREAM  same, read before the main stream of its priority
    suspects:PRIORITY:SIZE  STREAM  same, read after it: tasks with which a process died
    burials:PRIORITY:SIZE   STREAM  same, read last: dying tasks, whose rows are to be written
    suspected:SIZE          STRING  there while suspects or burials may be unread
    accused:WORKER          SET     suspects that it runs
    tasks:delayed           ZSET    id → due (µs): delayed and dying tasks; waiting ones: when
                                    to look at them; woken ones: end of their reservation, or
                                    when they age
    deadlines               ZSET    id → when it may be started at the latest (µs)
    expired                 ZSET    id → same, of those that are dying as nobody started them
    t:ID                    HASH    the record: small fields; a hold has one, too, and (as ID~FENCE)
                                    code that ignores its cancellation. What it does not
                                    say: no attempt used, in no group, its ticket is its gen, and
                                    its entry that which it got when it was made (lib/record);
                                    and no v: it is of format 1 (nonet.formats)
    b:ID                    STRING  the envelope: immutable bytes; a short one is in the record
    l:ID                    STRING  the locks, one line each (see locks.encode_locks)
    h:ID                    LIST    error documents of the last 20 failed attempts
    e:ID                    STRING  error document of a dying task
    c:ID                    STRING  checkpoint: what an attempt saved for the next one
    u:KEY                   STRING  who has a unique key: ``until when (µs) or empty|id``
    r:ID                    STRING  ``state|fence|body``, with TTL: the result, or a tombstone; of a
                                    task that repeats a letter ``state|fence mark|body``
    waiters:ID              ZSET    client → when it last asked for the result (µs)
    awaits:ID               ZSET    tasks whose end is awaited in this one → when it last asked (µs)
    open:ID                 SET     groups that this task opened and has not sealed
    g:GID                   HASH    a callback group
    g:GID:pending           SET     children that have not ended
    g:GID:callback          HASH    what to submit when all children have ended
    g:GID:on_failure        HASH    what to submit instead if a child failed
    g:GID:results           HASH    child id → ``state|fence|body``
    groups                  ZSET    group id → when it may be forgotten (µs)
    lock:mutex:…            STRING  ``owner|expiry`` (µs)
    lock:rw:…:w             STRING  ``owner|expiry`` of the writer
    lock:rw:…:r             ZSET    owner → expiry of each reader
    limiter:conc:…          ZSET    owner → expiry of each slot; :@VO:… where a VO has its own
    limiter:rate:…          ZSET    ``owner|items`` → grant time
    sum:LIMITER             STRING  the sum of these items
    queue:LOCK              ZSET    waiting task → rank, or rank - 4·10¹⁵ once woken; LOCK is
                                    paused:PRIORITY:SIZE:NAME for those that are paused
    writers:LOCK            ZSET    the waiting writers among them
    watch                   ZSET    contended lock → when to look at its queue (µs)
    handed:SIZE             SET     ``KIND:PRIORITY:NAME|UNFIT``: groups of tasks that were handed
                                    on, by class and what its last workers knew of it; TTL
    unfit:SIZE:GROUP        ZSET    of such a group: id → ticket; TTL
    active                  HASH    PRIORITY:SIZE|NAME → tasks that have not ended
    active:walk             HASH    same, as the walk of `mend` has met them; with a TTL
    active:missed           HASH    same → ``missed by the last walk|counted|state of the
                                    stream|walks in a row that were alike``; with a TTL
    ceilings                HASH    namespace, stream:PRIORITY:SIZE or task:NAME → how many tasks
    capped                  STRING  there while `ceilings` is: its version
    watched                 STRING  there while somebody reads metrics, so that accepted tasks are
                                    counted; with a TTL
    ends:PERIOD             HASH    PRIORITY:SIZE|NAME → ends in that time, while `capped`; TTL
    limits                  HASH    KIND|vo|type|key|action → limit, limit|window ms, off
    limits:config           HASH    same, as the leader published them from the file
    limits:live             HASH    same field → ``value at (µs) who``: overrides by hand
    limits:version          STRING  of what the leader published
    paused                  HASH    all, stream:PRIORITY:SIZE, task:NAME → ``at (µs)|who|reason``
    pausing                 STRING  there while `paused` is: what most scripts look at
    config                  HASH    what the leader published: version, document, source, revision,
                                    at (µs), who; and what is wrong with the source: problem,
                                    problem_at (µs)
    events                  STREAM  fields kind, at (µs), who, text: changes by people; capped
    counters                HASH    what operators should know of → how often
    mark                    STRING  written before replicas are asked to confirm; with a TTL
    clock                   STRING  µs to add to the server's clock, so that time goes on evenly
    clock:moved             STRING  µs by which a test has moved the clock of schedules
    clock:stepped           HASH    last correction: at, by, wrong (µs); stream → what was renewed
    mend                    HASH    walk over all records: cursor, and when it looked last (µs)
    fence                   STRING  last fence handed out
    epoch                   HASH    which data set this is: since (µs), seq, calm, lost (µs), first,
                                    pauses: the last epoch in which pauses were put back
    idle:SIZE               ZSET    worker → since; the most recent is woken first; for what was
                                    handed on, one that knows its class
    wake:WHO                LIST    wakes a worker, the promoter or a waiting client: those of
                                    workers go with them, the others have a TTL
    orders:WORKER           SET     running tasks that the worker is to cancel; with a TTL
    desired                 HASH    size → how many workers it wants, by the leader; with a TTL
    slots                   HASH    size → slots of one worker, as the last ones said
    workers                 ZSET    worker incarnation → end of its registration
    w:WORKER                HASH    what the worker says of itself: info (JSON), beat (µs), off (why
                                    it takes nothing), knows: which names:… it has, takes: it looks
                                    for what was handed on
    names:…                 HASH    class that some workers know → version of its distribution; TTL
    leader                  HASH    owner, term, expiry of the scheduler's lease
    term                    STRING  last term handed out
    promoted                STRING  last promotion by a leader (µs)
    periodic                HASH    entry → ``last occurrence (µs)|task id|fingerprints``
    periodic:next           HASH    entry → next occurrence (µs); none: its schedule has no more
    periodic:entries        HASH    entry → what people are told of it, JSON
    periodic:counts         HASH    entry|fired, skipped, missed or paused → how many occurrences;
                                    entry|last → the last one that was submitted (µs)
    periodic:paused         HASH    entry → ``at (µs)|who|why``
    probe:COMMAND           STRING  of any type, for an instant: which commands this user may use
    startup                 HASH    start-up hook → ``epoch|state|what went wrong``; the state is
                                    done, failed or running
    quarantine              STREAM  bytes that are no task: fields at (µs), reason, task, stream,
                                    entry, size, bytes; capped
    quarantine:bytes        STRING  how many bytes its entries hold
"""

from __future__ import annotations

from urllib.parse import quote, unquote

GROUP = "workers"

# Patterns of the keys without a TTL that a namespace keeps for good; every other key expires, or is
# removed when what it belongs to ends.
STRUCTURE = (
    *(
        "tasks:*",
        "woken:*",
        "suspects:*",
        "burials:*",
        "suspected:*",
        "fence",
        "epoch",
        "mend",
        "term",
        "leader",
        "promoted",
        "periodic*",
    ),
    *("startup", "quarantine*", "workers", "idle:*", "groups", "watch", "config", "limits*"),
    *("paus*", "counters", "events", "clock*", "active", "ceilings", "capped", "slots"),
)

# Every kind of the event stream, and what it tells of.
EVENT_KINDS = {
    "ceilings-published": "the configuration has changed how many tasks there may be",
    "clock": "the clock of Redis was set",
    "config-published": "another configuration holds",
    "config-refused": "the configuration as it is now is not applied",
    "dlq-adopt": "dead letters without a namespace were taken into this one",
    "dlq-discard": "dead letters were deleted by hand",
    "dlq-purge": "old dead letters were deleted by hand",
    "dlq-resubmit": "dead letters were submitted again",
    "epoch": "Redis has lost its data, or came back with older ones; its first use is none",
    "limit-set": "a limit was set by hand",
    "limit-unset": "a limit set by hand was taken back",
    "limits-published": "the configuration has changed limits",
    "lock-released": "a lock was taken from its holder",
    "overflow-hook": "workers were missing: a hook was called, or failed",
    "pause": "work was paused",
    "quarantine-discard": "entries of the quarantine were deleted",
    "quarantine-retry": "an entry of the quarantine was submitted as a task",
    "resume": "paused work was resumed",
    "schedule-pause": "a periodic entry was paused",
    "schedule-resume": "a periodic entry was resumed",
    "schedule-run": "a periodic entry was run by hand",
    "startup-hook": "a start-up hook succeeded or failed",
    "tasks-cancelled": "tasks were cancelled",
    "tasks-hastened": "delayed tasks were made due by hand",
    "worker-lost": "a worker of a fleet died, and its tasks were handed on",
}


def prefix(namespace: str) -> str:
    """The start of every key of a namespace.

    >>> prefix("nonet")
    '{nonet}:'
    """
    return f"{{{namespace}}}:"


def escape(part: object) -> str:
    """One part of a composed key: ``:``, ``%``, ``|``, blanks and controls are percent-encoded.

    Escaping keeps ``("a:b", "c")`` and ``("a", "b:c")`` apart, and lines of locks parsable.

    >>> escape("CERN-DST"), escape("/lhcb/a b:c")
    ('CERN-DST', '/lhcb/a%20b%3Ac')
    """
    text = str(part)
    if text.isascii() and text.isalnum():  # most are, and quote() takes ten times as long
        return text
    return quote(text, safe="/-_.~@+=,", errors="surrogatepass")


def unescape(part: str) -> str:
    """What `escape` was given, as text.

    >>> unescape("/lhcb/a%20b%3Ac")
    '/lhcb/a b:c'
    """
    return unquote(part, errors="surrogatepass")


def stream(priority: str, size: str) -> str:
    """Stream name without prefix.

    >>> stream("normal", "small")
    'tasks:normal:small'
    """
    return f"tasks:{priority}:{size}"
