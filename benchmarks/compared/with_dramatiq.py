"""dramatiq on Redis: one process, 100 threads."""

import common
import dramatiq
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=common.URL))


@dramatiq.actor
def nothing(number: int) -> None:
    common.note(number, common.BEGUN)


@dramatiq.actor
def pause(number: int) -> None:
    common.pause_in_thread(number)


_TASKS = {"nothing": nothing, "pause": pause}

if __name__ == "__main__":
    if common.is_worker():
        threads = ("--processes", "1", "--threads", str(common.CONCURRENCY), "--skip-logging")
        common.become("dramatiq", "with_dramatiq", *threads)
    common.submit_sync(lambda kind, number: _TASKS[kind].send(number))
