"""RQ: only submits, see compare_sync.py."""

import common
import redis
import rq

queue = rq.Queue("compared", connection=redis.Redis.from_url(common.URL))


def nothing(number: int) -> None:
    common.note(number, common.BEGUN)


if __name__ == "__main__":
    import with_rq  # a worker would import the function under this name

    common.submit_sync(lambda _, number: queue.enqueue(with_rq.nothing, number))
