"""Views that submit."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from invoices.models import Invoice
from invoices.tasks import Counts, IsOpen, Send, SendIsolated, user
from nonet import InvalidArgumentsError
from nonet.contrib.django import submit_on_commit

KINDS = {"Send": Send, "SendIsolated": SendIsolated}


class Fails(Exception):
    """Rolls back."""


def send(request: HttpRequest, kind: str, number: int) -> JsonResponse:
    user.set("ann")
    ids: list[str] = []
    try:
        with transaction.atomic():
            Invoice.objects.create(number=number)
            task = KINDS[kind](number)
            ids.append(submit_on_commit(task) if kind == "Send" else task.schedule_sync())
            if "fail" in request.GET:
                raise Fails
    except Fails:
        pass
    return JsonResponse({"id": ids[0]})


def refuse(request: HttpRequest) -> JsonResponse:
    wrong: object = "no number"
    try:
        with transaction.atomic():
            Invoice.objects.create(number=99)
            submit_on_commit(Send(wrong))  # type: ignore[arg-type]
    except InvalidArgumentsError as error:
        left = Invoice.objects.filter(number=99).count()
        return JsonResponse({"error": str(error), "left": left})
    raise AssertionError("it was accepted")


def count(request: HttpRequest) -> JsonResponse:
    opened = [IsOpen().schedule_sync() for _ in range(3)]
    return JsonResponse({"id": Counts().schedule_sync(), "open": opened})


urlpatterns = [
    path("send/<str:kind>/<int:number>", send),
    path("refuse", refuse),
    path("count", count),
]
