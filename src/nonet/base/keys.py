"""The Redis keys of a namespace, and the escaping of their parts.

All keys of a namespace share the hash tag ``{ns}``, so that scripts are atomic on Redis Cluster
too. Lua scripts get the prefix ``{ns}:`` and append the same names; a test compares them with
this table. Times are in microseconds (µs) since 1970, unless noted.

    tasks:PRIORITY:SIZE     STREAM  fields id, gen; consumer group ``workers``
    woken:PRIORITY:SIZE     STREAM  same, read before the main stream of its priority
    suspects:PRIORITY:SIZE  STREAM  same, read after it: tasks with which a process died
    burials:PRIORITY:SIZE   STREAM  same, read last: dying tasks whose dead letters must be written
    suspected:SIZE          STRING  exists while suspects or burials may be unread
    accused:WORKER          SET     suspects that the worker runs
    share:KIND:STREAM:TENANT  LIST  ``ID GEN``: tasks of a tenant that wait for their turn, see
                                    lib/shares; KIND is woken or tasks, STREAM PRIORITY:SIZE
    shares:STREAM           ZSET    tenant with such a list → its virtual time
    rested:STREAM           ZSET    same for tenants without one that are ahead of the others
    pace                    HASH    STREAM → virtual time of the last task that was handed over;
                                    ``STREAM KIND`` → length of all such lists
    weights                 HASH    tenant, or ``default`` → weight
    fair                    STRING  the streams whose new tasks go to lists, between blanks; exists
                                    until all lists are empty
    fairness                HASH    what the leader published: version, streams
    tasks:delayed           ZSET    id → time (µs). Delayed and dying tasks: when they are due;
                                    waiting tasks: the next check; woken tasks: the end of their
                                    reservation, or when they age; steps that wait for others: the
                                    year 2200
    deadlines               ZSET    id → latest start (µs)
    expired                 ZSET    id → same, of dying tasks that were not started in time
    t:ID                    STRING  the record, with the locks and the envelope (lib/plain). A hold
                                    has one, too, and so has (as ID~FENCE) code that ignores its
                                    cancellation. Missing fields mean: no attempt used, in no
                                    group, ticket equal to gen, the entry of its creation; no v:
                                    format 1 (nonet.formats)
    b:ID                    STRING  an envelope of more than 1 KiB; it never changes
    h:ID                    LIST    error documents of the last 20 failed attempts
    e:ID                    STRING  error document of a dying task
    l:ID                    HASH    number of an attempt → the last lines that its code logged, of
                                    the last 20 attempts; with a TTL, from the end that of results
    c:ID                    STRING  checkpoint: data that an attempt saved for the next one
    u:KEY                   STRING  holder of a unique key: ``until when (µs) or empty|id``
    r:ID                    STRING  ``state|fence|body``, with TTL: the result, or a tombstone; for
                                    a resubmitted dead letter ``state|fence mark|body``
    ended:STATE             LIST    the history of tasks that have ended in this state, the newest
                                    last; see lib/finish
    figures:60:NUMBER       HASH    class → what workers counted in a minute, as a vector of
                                    nonet.rules.vectors; with a TTL
    figures:hours           ZSET    class that has a history → its last hour; with a TTL
    figures:hours:CLASS     LIST    ``minute vector``: what was counted in an hour, and the last
                                    minute that is in it; with a TTL
    figures:minutes:CLASS   LIST    same by minute; with a TTL
    figures:added           HASH    figures:… → the last minute in these lists; with a TTL
    figures:tenants:60:NUMBER  HASH  these keys are there of tenants, too; with a TTL
    figures:streams:60:NUMBER  HASH  and of streams, with how much there was; with a TTL
    figures:tenants:total   HASH    tenant → what workers counted since Redis was empty; with a TTL
    figures:of:WORKER       STRING  number of its last report; with a TTL
    waiters:ID              ZSET    client → when it last asked for the result (µs)
    awaits:ID               ZSET    task that this one awaits → when it last asked (µs)
    open:ID                 SET     groups that this task opened and has not sealed
    g:GID                   HASH    a callback group
    g:GID:pending           SET     children that have not ended
    g:GID:callback          HASH    the task to submit when all children have ended
    g:GID:on_failure        HASH    the task to submit instead if a child failed
    g:GID:results           HASH    child id → ``state|fence|body``
    groups                  ZSET    group id → when it may be forgotten (µs)
    f:WORKFLOW              HASH    a workflow, see lib/workflow; its steps have ids WORKFLOW:PLACE
    f:WORKFLOW:live         SET     places of steps that have not ended
    f:WORKFLOW:results      HASH    place → ``state|fence|body``
    f:WORKFLOW:graph        HASH    place → class and predecessors: the letter of the edge (s: on
                                    success, f: on failure, a: always) and the place
    f:WORKFLOW:signals      HASH    place of an event that has come → who, when, and its result
    f:WORKFLOW:failed       SET     places of steps that run again when it is resumed
    m:STEP                  SET     places of predecessors that have not ended; * is the start
    n:STEP                  LIST    edges that leave it: the letter and the place of the successor
    j:STEP                  SET     places of steps that it added and that have not ended
    k:STEP                  HASH    what follows when these have ended: edges, failed
    s:STEP                  HASH    a failed step, kept so that it can run again
    edges                   ZSET    ``END STEP`` → how many of its edges were followed; the promoter
                                    follows the others
    workflows:STATE         ZSET    workflow → since when it is in the state (µs)
    workflows:work          SET     workflows that a process cancels or resumes
    lock:mutex:…            STRING  ``owner|expiry`` (µs)
    lock:KIND:…:w           STRING  ``owner|expiry`` of the writer
    lock:KIND:…:r           ZSET    owner → expiry of each holder that shares the lock
    limiter:conc:…          ZSET    owner → expiry of each slot; :@VO:… if a VO has its own
    limiter:rate:…          ZSET    ``owner|items`` → grant time
    sum:LIMITER             STRING  the sum of these items
    queue:LOCK              ZSET    waiting task → rank, or rank - 4·10¹⁵ once woken; for paused
                                    tasks LOCK is paused:PRIORITY:SIZE:NAME
    writers:LOCK            ZSET    the waiting writers of that queue
    line:LIMITER|TENANT     ZSET    waiting task of a tenant that shares → rank
    watch                   ZSET    contended lock → next check of its queue (µs)
    handed:SIZE             SET     ``KIND:PRIORITY:NAME|UNFIT``: groups of tasks that workers
                                    handed on because they could not run them; TTL
    unfit:SIZE:GROUP        ZSET    the tasks of such a group: id → ticket; TTL
    active                  HASH    PRIORITY:SIZE|NAME → number of tasks that have not ended
    active:tenants          HASH    tenant → number of its tasks that have not ended
    active:bytes            HASH    tenant → bytes of the messages of these tasks
    active…:walk            HASH    each of these, as counted by the walk of `mend`; with a TTL
    active…:missed          HASH    its fields → ``missed by the last walk|counted|state of the
                                    stream|equal walks in a row``; with a TTL
    paid:TENANT             STRING  until when (µs) it pays off what it has submitted; with a TTL
    ceilings                HASH    namespace, stream:PRIORITY:SIZE, task:NAME, tenant:NAME,
                                    tenant-bytes:NAME or tenant-rate:NAME → the most of it
    capped                  STRING  exists while `ceilings` does: its version
    watched                 STRING  exists while metrics are scraped, so that accepted tasks are
                                    counted; with a TTL
    ends:PERIOD             HASH    PRIORITY:SIZE|NAME → ended tasks, while `capped` exists; TTL
    limits                  HASH    KIND|vo|type|key|action → limit, limit|window ms, off
    limits:config           HASH    same, as the leader published them from the file
    limits:live             HASH    same field → ``value at (µs) who``: overrides by hand
    limits:version          STRING  version of the limits that the leader published
    paused                  HASH    all, stream:PRIORITY:SIZE, task:NAME → ``at (µs)|who|reason``
    pausing                 STRING  exists while `paused` does; most scripts check only this key
    config                  HASH    the published configuration: version, document, source,
                                    revision, at (µs), who; error of the source: problem,
                                    problem_at (µs)
    events                  STREAM  fields kind, at (µs), who, text: changes by operators; capped
    counters                HASH    name of an anomaly → how often it occurred
    mark                    STRING  written before replicas are asked to confirm; with a TTL
    clock                   STRING  µs to add to the server's clock, to compensate for steps
    clock:moved             STRING  µs by which a test has moved the clock of schedules
    clock:stepped           HASH    last correction: at, by, wrong (µs); stream → what was renewed
    mend                    HASH    walk over all records: cursor, time of the last step (µs)
    fence                   STRING  last fence that was assigned
    epoch                   HASH    identity of the data set: since (µs), seq, withheld, lost (µs),
                                    first, pauses (the last epoch in which pauses were restored),
                                    layout (how the data are kept)
    duty:SIZE               STRING  the idle worker that looks for tasks unasked, and promotes,
                                    reclaims and mends for the others; with a TTL
    idle:SIZE               ZSET    worker → since; the most recent is woken first; for tasks that
                                    were handed on, a worker that knows the class
    wake:WHO                LIST    wakes a worker, the promoter or a waiting client; deleted with
                                    the worker, the others have a TTL
    orders:WORKER           SET     running tasks that the worker must cancel; with a TTL
    desired                 HASH    size → number of workers that the leader wants; with a TTL
    slots                   HASH    size → slots of one worker, as last registered
    workers                 ZSET    worker incarnation → end of its registration
    w:WORKER                HASH    a worker: info (JSON), beat (µs), off (why it fetches nothing),
                                    knows (its names:… key), takes (it fetches tasks that were
                                    handed on), drain (who asked it to drain), lost (end of the
                                    registration for which an event reported its death)
    names:…                 HASH    class that some workers know → version of its distribution; TTL
    leader                  HASH    owner, term, expiry of the scheduler's lease
    term                    STRING  last term that was assigned
    promoted                STRING  last promotion by a leader (µs)
    periodic                HASH    entry → ``last occurrence (µs)|task id|fingerprints``
    periodic:next           HASH    entry → next occurrence (µs); none: its schedule has ended
    periodic:entries        HASH    entry → its description for operators, JSON
    periodic:counts         HASH    entry|fired, skipped, missed or paused → how many occurrences;
                                    entry|last → the last submitted occurrence (µs)
    periodic:paused         HASH    entry → ``at (µs)|who|why``
    probe:COMMAND           STRING  of any type, for an instant: tests which commands are permitted
    startup                 HASH    start-up hook → ``epoch|state|error``; the state is done,
                                    failed or running
    hints:TABLE             ZSET    process that runs pipelines of the table → until when it wants
                                    hints; TTL
    pipelines               HASH    pipeline → its due rows, JSON; TTL
    pipelines:replicas      HASH    process → what it reports of its pipelines, JSON; TTL
    pipelines:turn:NAME     STRING  a process counts the rows of a pipeline; TTL
    quarantine              STREAM  messages that are not valid tasks: fields at (µs), reason, task,
                                    stream, entry, size, bytes; capped
    quarantine:bytes        STRING  total bytes of its entries
    seen:DIGEST             STRING  who has seen a finding, JSON; DIGEST is of what it is about; TTL
    web:bulks               HASH    id of a change of many dead letters → how far it is, JSON;
                                    stop:ID → who asked to stop it; TTL
    web:filters             HASH    name → list, query and who saved it, JSON: filters of operators
    web:session:DIGEST      STRING  a login of the dashboard, JSON; DIGEST is the SHA-256 of its
                                    secret; TTL
    web:sessions:USER       ZSET    digest of each session of a user → its end (s); TTL
    web:link:DIGEST         STRING  a link to log in, JSON; TTL
    web:tries:DIGEST        STRING  number of attempts to log in as a user or from an address; TTL
"""

from __future__ import annotations

from urllib.parse import quote, unquote

# How the data of a namespace are kept; lib/plain of the scripts has the same number.
LAYOUT = 1

# Patterns of the permanent keys of a namespace. Every other key expires, or is removed with its
# task, group, lock or worker.
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
    *("workflows:[!w]*", "shares:*", "rested:*", "pace", "weights", "fair", "fairness", "route*"),
    *(
        "paus*",
        "counters",
        "events",
        "clock*",
        "active",
        "active:[tb]*",
        "ended:*",
        "ceilings",
        "capped",
        "slots",
    ),
)

# Kinds of entries in the event stream, and their meaning.
EVENT_KINDS = {
    "ceilings-published": "the configuration changed a ceiling on the number of tasks",
    "fairness-published": "the configuration changed which streams tenants share, or their weights",
    "child-lost": "a child process died while it ran tasks (one event in 10 s from each worker)",
    "clock": "the clock of Redis was set",
    "config-published": "a changed configuration was published",
    "config-refused": "the configuration is invalid and was not applied",
    "dlq-discard": "dead letters were deleted by hand",
    "dlq-resubmit": "dead letters were submitted again",
    "finding-seen": "a finding was marked as seen, or no longer as seen",
    "epoch": "Redis lost its data or returned with older data (not recorded for a new Redis)",
    "limit-set": "a limit was set by hand",
    "limit-unset": "a limit set by hand was removed",
    "limits-published": "the configuration changed limits",
    "lock-released": "a lock was taken from its holder",
    "overflow-hook": "workers were missing: the hook was called, or failed",
    "pause": "work was paused",
    "quarantine-discard": "entries of the quarantine were deleted",
    "quarantine-retry": "an entry of the quarantine was submitted as a task",
    "resume": "paused work was resumed",
    "event-signalled": "an event of a workflow has come",
    "schedule-pause": "a periodic entry was paused",
    "schedule-resume": "a periodic entry was resumed",
    "schedule-put": "a schedule in the database was made or changed by hand",
    "schedule-remove": "a schedule in the database was removed by hand",
    "schedule-run": "a periodic entry was run by hand",
    "startup-hook": "a start-up hook succeeded or failed",
    "tasks-cancelled": "tasks were cancelled",
    "tasks-hastened": "delayed tasks were made due by hand",
    "tasks-resubmitted": "failed tasks were submitted again from the history",
    "web-link": "a link to log in to the dashboard was made by a command",
    "worker-lost": "a worker died or froze, and its tasks run again elsewhere",
    "workers-drained": "workers were asked to finish their tasks and end",
    "workflow-cancelled": "a workflow was cancelled",
    "workflow-resumed": "a failed workflow was resumed",
}


NAMESPACE = r"^[A-Za-z0-9_.-]{1,64}$"
"""What the name of a namespace looks like."""
NAMESPACE_TEXT = "1 to 64 characters of A-Z, a-z, 0-9, '_', '.' and '-'"


def prefix(namespace: str) -> str:
    """Return the prefix of all keys of a namespace.

    >>> prefix("nonet")
    '{nonet}:'
    """
    return f"{{{namespace}}}:"


def escape(part: object) -> str:
    """Percent-encode ``:``, ``%``, ``|``, blanks and control characters in one part of a key.

    Escaping keeps ``("a:b", "c")`` and ``("a", "b:c")`` apart, and lines of locks parsable.

    >>> escape("CERN-DST"), escape("/lhcb/a b:c")
    ('CERN-DST', '/lhcb/a%20b%3Ac')
    """
    text = str(part)
    if text.isascii() and text.isalnum():  # fast path: quote() takes ten times as long
        return text
    return quote(text, safe="/-_.~@+=,", errors="surrogatepass")


def unescape(part: str) -> str:
    """Reverse `escape`.

    >>> unescape("/lhcb/a%20b%3Ac")
    '/lhcb/a b:c'
    """
    return unquote(part, errors="surrogatepass")


def stream(priority: str, size: str) -> str:
    """Return the name of a stream, without prefix.

    >>> stream("normal", "small")
    'tasks:normal:small'
    """
    return f"tasks:{priority}:{size}"
