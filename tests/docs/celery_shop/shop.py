"""The tasks of a shop, ported from Celery."""

import os
from pathlib import Path

from nonet import (
    PREVIOUS,
    CronSchedule,
    ExponentialBackoff,
    LockedObjectType,
    Priority,
    RateLimiter,
    StopRetrying,
    Workflow,
    chord,
    context,
    failed,
    task,
)
from nonet.sync import Nonet

FOLDER = Path(os.environ.get("SHOP", "."))


@task(retry_policy=ExponentialBackoff(base_delay_seconds=1, max_retries=3))
def charge(order: int, amount: int) -> dict[str, int]:
    if order == 13:
        raise StopRetrying("the card was refused")
    if context().attempt == 1:
        raise ConnectionError("the bank is busy")
    return {"order": order, "paid": amount}


@task(soft_timeout=60, hard_timeout=90)
def render_invoice(payment: dict[str, int]) -> str:
    path = FOLDER / f"invoice-{payment['order']}.txt"
    path.write_text(f"{payment['paid']} paid")
    return str(path)


@task(
    priority=Priority.REALTIME,
    locks=[RateLimiter(LockedObjectType.TASK, "send_mail", limit=100, window_seconds=60)],
)
def send_mail(address: str, text: str) -> None:
    with (FOLDER / "mails.txt").open("a") as mails:
        mails.write(f"{address}: {text}\n")


@task
def archive(paths: list[str]) -> int:
    texts = [Path(path).read_text() for path in paths]
    (FOLDER / "archive.txt").write_text("\n".join(texts))
    return len(texts)


@task(schedule=CronSchedule("30 6 * * *"))
def daily_report() -> int:
    return len(list(FOLDER.glob("invoice-*.txt")))


def buy(order: int, amount: int, address: str) -> str:
    workflow = Workflow()
    payment = workflow.step(charge(order, amount))
    invoice = workflow.step(render_invoice.given(payment=payment))
    workflow.step(send_mail(address, "thank you"), after=invoice)
    workflow.step(send_mail(address, "we are sorry"), after=failed(invoice))
    return workflow.submit_sync().wait(timeout=60).state


def archive_invoices(payments: list[dict[str, int]]) -> int:
    workflow = chord(
        [render_invoice(payment) for payment in payments], archive.given(paths=PREVIOUS)
    )
    return workflow.submit_sync().result(workflow.last[0], timeout=60)


def remind(address: str) -> str:
    return send_mail(address, "come back").schedule_sync(delay=2, start_by=60)


def main() -> None:
    with Nonet.from_settings() as app:
        reminder = remind("bob@example.org")
        print(buy(13, 50, "eve@example.org"))
        print(buy(1, 70, "ann@example.org"))
        payments = [{"order": order, "paid": 10 * order} for order in (7, 8, 9)]
        print(archive_invoices(payments))
        print(daily_report().schedule_sync().result(timeout=60))
        app.result(reminder, timeout=60)
