"""The processes in which isolated tasks run: a fork server, which guards what it forks.

A worker starts ``python -m nonet.child_process`` and speaks with it over a socket, see
`nonet.worker.children.wire`.

    forkserver   loads the task modules, forks, guards, reports how children ended
    guarding     when a child is to be killed: a pure rule
    serving      what a child does: attempts, one after the other
"""
