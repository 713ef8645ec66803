"""The processes that run isolated tasks: a fork server and its children.

A worker starts ``python -m nonet.child_process`` and exchanges messages with it over a socket, see
`nonet.worker.children.wire`.

    forkserver   loads the task modules, forks children, enforces their limits, reports their end
    guarding     decides when to kill a child; pure
    serving      runs attempts in a child
"""
