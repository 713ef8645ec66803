"""huey: 100 threads."""

import common
from huey import RedisHuey

huey = RedisHuey("compared", url=common.URL, results=False)


@huey.task()
def nothing(number: int) -> None:
    common.note(number, common.BEGUN)


@huey.task()
def pause(number: int) -> None:
    common.pause_in_thread(number)


_TASKS = {"nothing": nothing, "pause": pause}

if __name__ == "__main__":
    if common.is_worker():
        threads = ("--worker-type", "thread", "--workers", str(common.CONCURRENCY), "--quiet")
        common.become("huey_consumer", "with_huey.huey", *threads)
    import with_huey  # the consumer imports the tasks under this name

    common.submit_sync(lambda kind, number: with_huey._TASKS[kind](number))
