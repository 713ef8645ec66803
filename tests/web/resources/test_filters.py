"""Saved filters: what operators save for all, on the pages and over the API."""

from __future__ import annotations

import pytest
from httpx import AsyncClient
from web.conftest import ClientOf

from nonet import Nonet
from nonet.operate import filters
from nonet.rules.permissions import Role

FILTERS = "/api/v1/filters"


async def test_a_saved_filter_is_for_all(client: AsyncClient, client_of: ClientOf) -> None:
    """An operator saves it by the form; a viewer opens it, and can neither save nor remove one."""
    async with client_of(Role.OPERATOR) as operator:
        assert "Save this filter…" in (await operator.get("/history?state=dead&limit=10")).text
        form = {"name": "nightly & dead", "list": "history", "query": "state=dead"}
        assert (await operator.post("/filters/save", data=form)).status_code == 303
    async with client_of(Role.VIEWER) as viewer:
        text = (await viewer.get("/history")).text
        assert 'href="?state=dead"' in text and "nightly &amp; dead" in text
        assert "nightly" not in (await viewer.get("/tasks")).text
        assert "Remove a filter…" not in text
        assert (await viewer.post("/filters/save", data=form)).status_code == 403
    (found,) = (await client.get(FILTERS, params={"list": "history"})).json()["items"]
    assert found == {**form, "who": "alice"}
    (entry,) = (await client.get("/api/v1/audit?action=note")).json()["items"]
    assert entry["what"] == "filter nightly & dead: history?state=dead"
    assert (await client.delete(f"{FILTERS}/nightly & dead")).status_code == 204
    assert (await client.get(FILTERS)).json()["items"] == []
    assert (await client.delete(f"{FILTERS}/nightly & dead")).status_code == 404


async def test_what_no_list_understands_is_not_saved(
    client: AsyncClient, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither unknown parameters, nor more filters than are kept; one is replaced by its name."""
    monkeypatch.setattr(filters, "MOST", 2)

    async def save(name: str, query: str, of: str = "tasks") -> int:
        body = {"list": of, "query": query}
        return (await client.put(f"{FILTERS}/{name}", json=body)).status_code

    assert await save("a", "state=odd") == await save("a", "nothing=1") == 422
    assert await save("a", "task=A") == await save("b", "status=PENDING", "dead-letters") == 200
    assert await save("c", "task=C") == 409
    assert await save("a", "task=B") == 200
    assert [row[:3] for row in await nonet.stores.filters.all()] == [
        ("a", "tasks", "task=B"),
        ("b", "dead-letters", "status=PENDING"),
    ]
