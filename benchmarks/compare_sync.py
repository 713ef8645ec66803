"""Compare how fast a program without an event loop submits: ``make compare-sync``.

The systems are those of Python's synchronous world. Each submits tasks one by one from one thread,
against a Redis of its own without persistence; every round runs all of them in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics

from compare import COMMON, ROOT, SYSTEMS, Site, System, install

_TASKS = 10_000
_COMPARED = {
    "nonet_sync": System("Nonet", (str(ROOT), *COMMON)),
    "huey": SYSTEMS["huey"],
    "rq": System("RQ", ("rq==2.6.1", "redis==7.1.0", "hiredis==3.5.0")),
    "dramatiq": SYSTEMS["dramatiq"],
    "celery": SYSTEMS["celery"],
}


def main() -> None:
    """Print the median rate of each system, and its ratio to that of Nonet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how many times to measure each")
    rounds = parser.parse_args().rounds
    for name, system in _COMPARED.items():
        install(name, system)
    rates = asyncio.run(_measure(rounds))
    ours = statistics.median(rates["nonet_sync"])
    print(f"submit one by one, tasks/s; rounds: {rounds}")
    for name, system in _COMPARED.items():
        median = statistics.median(rates[name])
        print(f"{system.title:<10} {median:>8,.0f}   {median / ours:.2f}")


async def _measure(rounds: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in _COMPARED}
    for _ in range(rounds):
        for name, kept in rates.items():
            with Site(name) as site:
                submitted = await site.submit("nothing", _TASKS)
            kept.append(_TASKS / submitted["seconds"])
    return rates


if __name__ == "__main__":
    main()
