"""The tasks of a shop with Celery. This file is never run."""

import os
from pathlib import Path

from celery import Celery, chain, chord
from celery.schedules import crontab

app = Celery("shop", broker="redis://localhost", backend="redis://localhost")
app.conf.beat_schedule = {
    "report": {"task": "shop.daily_report", "schedule": crontab(hour=6, minute=30)}
}
FOLDER = Path(os.environ.get("SHOP", "."))


@app.task(bind=True, autoretry_for=(ConnectionError,), max_retries=3, retry_backoff=1)
def charge(self, order, amount):
    if order == 13:
        raise ValueError("the card was refused")
    if self.request.retries == 0:
        raise ConnectionError("the bank is busy")
    return {"order": order, "paid": amount}


@app.task(soft_time_limit=60, time_limit=90)
def render_invoice(payment):
    path = FOLDER / f"invoice-{payment['order']}.txt"
    path.write_text(f"{payment['paid']} paid")
    return str(path)


@app.task(rate_limit="100/m", priority=9)
def send_mail(address, text):
    with (FOLDER / "mails.txt").open("a") as mails:
        mails.write(f"{address}: {text}\n")


@app.task
def archive(paths):
    texts = [Path(path).read_text() for path in paths]
    (FOLDER / "archive.txt").write_text("\n".join(texts))
    return len(texts)


@app.task
def daily_report():
    return len(list(FOLDER.glob("invoice-*.txt")))


def buy(order, amount, address):
    steps = chain(charge.s(order, amount), render_invoice.s(), send_mail.si(address, "thank you"))
    return steps.apply_async(link_error=send_mail.si(address, "we are sorry"))


def archive_invoices(payments):
    return chord(render_invoice.s(payment) for payment in payments)(archive.s())


def remind(address):
    return send_mail.apply_async((address, "come back"), countdown=2, expires=60)


def main():
    remind("bob@example.org")
    buy(13, 50, "eve@example.org")
    buy(1, 70, "ann@example.org").get(timeout=60)
    payments = [{"order": order, "paid": 10 * order} for order in (7, 8, 9)]
    print(archive_invoices(payments).get(timeout=60))
    print(daily_report.delay().get(timeout=60))
