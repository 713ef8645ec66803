"""The processes that run isolated tasks: a fork server and its children.

A worker starts ``python -m nonet.worker.child_process`` and exchanges messages with it over a
socket, see `nonet.worker.children.wire`.

    forkserver   starts children, enforces their limits, reports their end
    kernel       what it uses of the kernel, and how it does without
    set_up       loads the task modules
    child        a child from its start to its first attempt
    guarding     decides when to kill a child; pure
    serving      runs attempts in a child
"""
