"""Celery on Redis, in its gevent pool, without results."""

import common
from celery import Celery

app = Celery("with_celery", broker=common.URL)
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"max_connections": 500},
)


@app.task(name="nothing")
def nothing(number: int) -> None:
    common.note(number, common.BEGUN)


@app.task(name="pause")
def pause(number: int) -> None:
    common.pause_in_thread(number)


_TASKS = {"nothing": nothing, "pause": pause}

if __name__ == "__main__":
    if common.is_worker():
        pool = ("--pool", "gevent", "--concurrency", str(common.CONCURRENCY))
        quiet = ("--without-gossip", "--without-mingle", "--loglevel", "ERROR")
        common.become("celery", "-A", "with_celery", "worker", *pool, *quiet)
    common.submit_sync(lambda kind, number: _TASKS[kind].delay(number))
