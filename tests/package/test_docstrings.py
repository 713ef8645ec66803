"""Docstrings of public names tell all that there is to know, and their examples run."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import contextvars
import dataclasses
import enum
import inspect
import re
import socket
import sys
import threading
import time
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import fastapi
import pytest
import sentry_sdk
from django import setup as set_up_django
from django.conf import settings as django_settings
from django.db import connections, transaction
from package import docstring_scene as scene
from public import FRAMEWORK, documented

import nonet
import nonet.contrib.fastapi
import nonet.testing
from nonet import BaseTask, ChildResult, LockedObjectType
from nonet.contrib import sentry
from nonet.tasks.injection import REGISTRY
from nonet.testing import System, run_inline

SECTIONS = ("Args", "Attributes", "Class attributes")


DOCUMENTED = documented()


def doc_of(thing: Any) -> str:
    if thing is nonet.contrib.fastapi.NonetApp:
        return alias_doc()
    return inspect.cleandoc(thing.__doc__ or "")


def alias_doc() -> str:
    """What stands below the alias of FastAPI, which has no docstring of its own at run time."""
    source = Path(nonet.contrib.fastapi.__file__).read_text(encoding="utf-8")
    (found,) = re.findall(r'(?s)NonetApp: TypeAlias = [^\n]*\n"""(.*?)"""', source)
    return inspect.cleandoc(found)


@cache
def sections(doc: str) -> dict[str, str]:
    """The blocks of a docstring, by their titles."""
    found = re.findall(r"(?m)^(\w[\w ]*):\n((?:(?: {4,}.*)?(?:\n|\Z))+)", doc)
    return {title: inspect.cleandoc(f"\n{text}") for title, text in found}


def told(thing: Any) -> set[str]:
    """The names that a docstring explains, or those to which it refers, and base classes."""
    doc = doc_of(thing)
    names: set[str] = set()
    for title in SECTIONS:
        for line in re.findall(r"(?m)^(\w[\w, ]*): ", sections(doc).get(title, "")):
            names |= set(re.split(r", *", line))
    for other in re.findall(r"(?:[Ss]ee|those of|as of|as in) `(?:nonet\.)?([\w.]+)`", doc):
        if (referred := DOCUMENTED.get(f"nonet.{other}")) is not None and referred is not thing:
            names |= told(referred)
    return names


def parameters(thing: Any) -> list[str]:
    """What a caller may give; of a class that has no constructor of its own: nothing."""
    if inspect.isclass(thing):
        if issubclass(thing, enum.Enum):
            return list(thing.__members__)
        if dataclasses.is_dataclass(thing):
            return [field.name for field in dataclasses.fields(thing) if field.init]
        if "model_fields" in dir(thing):
            return list(thing.model_fields)
        thing = vars(thing).get("__init__") or vars(thing).get("__new__")
    if not inspect.isfunction(thing):
        return []
    return [name for name in inspect.signature(thing).parameters if name not in ("self", "cls")]


def test_parameters_and_fields_are_explained() -> None:
    """Each of them is in the docstring, or in the one that it refers to."""
    missing = {}
    for name, thing in DOCUMENTED.items():
        assert doc_of(thing), f"{name} has no docstring"
        if FRAMEWORK.search(doc_of(thing)) or thing is nonet.CallbackSpawner:
            continue  # authors get one
        missing[name] = [part for part in parameters(thing) if part not in told(thing)]
    assert {name: parts for name, parts in missing.items() if parts} == {}


def test_public_names_have_an_example() -> None:
    """All but errors and members of classes have one."""
    lacking = [
        name
        for name, thing in DOCUMENTED.items()
        if name.rpartition(".")[0] not in DOCUMENTED
        and not (inspect.isclass(thing) and issubclass(thing, Exception))
        and "Example" not in sections(doc_of(thing))
    ]
    assert lacking == []


def test_returns_sections_are_sentences() -> None:
    """On the site what stands before a colon of the first line would be shown as a type."""
    for name, thing in DOCUMENTED.items():
        first = sections(doc_of(thing)).get("Returns", "").split("\n")[0]
        assert ":" not in re.sub(r"`+[^`]*`+", "", first), name


def test_pages_are_named_by_their_titles() -> None:
    """A reader of the site has no paths."""
    named = [
        name for name, thing in DOCUMENTED.items() if re.search(r"docs/\S*\.md", doc_of(thing))
    ]
    assert named == []


def examples() -> dict[str, str]:
    """The code below ``Example:`` of each docstring; `>>>` is for doctest."""
    texts = {name: doc_of(thing) for name, thing in DOCUMENTED.items()}
    found = {name: sections(text).get("Example", "") for name, text in texts.items()}
    return {name: code for name, code in found.items() if code and ">>>" not in code}


EXAMPLES = examples()


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What an example registers is not there for other tests."""
    places = dict(LockedObjectType._places)
    providers, overrides = dict(REGISTRY._providers), dict(REGISTRY.overrides)
    yield
    for name in LockedObjectType._places.keys() - places.keys():
        delattr(LockedObjectType, name.upper())
    LockedObjectType._places.clear()
    LockedObjectType._places.update(places)
    REGISTRY._providers, REGISTRY.overrides = providers, overrides
    REGISTRY._changed()
    sentry._installed.clear()
    sentry_sdk.get_global_scope().set_client(None)


@pytest.fixture
def django(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Django with a database in memory; what a view opens is closed again."""
    if not django_settings.configured:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        django_settings.configure(DATABASES={"default": database})
        set_up_django()
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # examples run beside an event loop
    from nonet.contrib.django import submitting  # needs settings

    yield submitting
    submitting.project.close()
    connections.close_all()


@pytest.fixture
def module(django: types.ModuleType) -> Iterator[types.ModuleType]:
    """Where an example runs: a module with what a reader takes as given."""
    made = types.ModuleType("docstring_example")
    for source in (scene, nonet, nonet.testing, nonet.contrib.fastapi):
        names = getattr(source, "__all__", None) or [n for n in vars(source) if n[0] != "_"]
        vars(made).update({name: getattr(source, name) for name in names})
    vars(made).update(
        Annotated=typing.Annotated,
        AsyncIterator=typing.AsyncIterator,
        ContextVar=contextvars.ContextVar,
        Iterator=typing.Iterator,
        SentryMiddleware=sentry.SentryMiddleware,
        Canary=DOCUMENTED["nonet.contrib.canary.Canary"],
        FastAPI=fastapi.FastAPI,
        data=b"data",
        fastapi=fastapi,
        nonet=nonet,
        parts=["a", "b"],
        sentry_sdk=sentry_sdk,
        socket=socket,
        submit_on_commit=django.submit_on_commit,
        threading=threading,
        time=time,
        transaction=transaction,
        suppress=contextlib.suppress,
        timedelta=scene.timedelta,
        web=fastapi.FastAPI(),
    )
    nonet.register_locked_object_type("storage_element")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


async def run(code: str, names: dict[str, Any]) -> None:
    """Execute a piece of code that may await."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compiled = compile(code, "<example>", "exec", flags=flags, dont_inherit=True)
    made = types.FunctionType(compiled, names)()
    if inspect.isawaitable(made):
        await made


def is_inside_a_task(code: str) -> bool:
    """Whether it asks for the context where it stands, not in a class that it defines."""
    return bool(re.search(r"context\(\)", re.sub(r"(?ms)^(@|class|def).*?(?=^\S|\Z)", "", code)))


def is_sync(name: str, code: str) -> bool:
    """Whether it is of a program without an event loop: then it runs in a thread."""
    return name.startswith("nonet.Sync") or bool(re.search(r"_sync\(", code))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
async def test_examples_run(
    name: str,
    module: types.ModuleType,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each does without an error what it says: in a task if it is a part of one, else beside a
    system that executes what it submits."""
    code, names = EXAMPLES[name], vars(module)
    if name.startswith("nonet.contrib.sentry"):
        names["install"] = sentry.install
    environment: Mapping[str, str] = {
        "REDIS_URL": redis_url,
        "NAMESPACE": "test",
        "TASKS": scene.__name__,
        "STATE_DIR": str(tmp_path),
    }
    for variable, value in environment.items():
        monkeypatch.setenv(f"NONET_{variable}", value)
    if "mypackage" in code:
        monkeypatch.setitem(sys.modules, "mypackage", types.ModuleType("mypackage"))
        monkeypatch.setitem(sys.modules, "mypackage.tasks", scene)
    if is_inside_a_task(code):

        class Inside(BaseTask):
            files = ("a", "b")

            async def execute(self) -> None:
                await run(code, {**names, "self": self})

        children = [ChildResult("c1", "done", 1), ChildResult("c2", "dead", error="it broke")]
        await run_inline(Inside(), group_results=children, inputs=children)
        return
    needs_system = re.search(r"\b(await|async (with|for)|app|client|system)\b", code)
    if not needs_system and not is_sync(name, code):
        await run(code, names)
        return
    async with System([scene.__name__], sizes=[nonet.Size.SMALL], redis_url=redis_url) as system:
        if is_sync(name, code):
            names.update(app=system.app.sync, handle=await scene.Add(1, 2).schedule())
            names["handle"] = nonet.SyncHandle(names["handle"], system.app.sync)
            await asyncio.to_thread(exec, code, names)
            return
        names.update(app=system.app, client=system.app.client, system=system)
        names["handle"] = await scene.Add(1, 2).schedule()
        await nonet.chain(scene.Add(1, 2)).submit(id="nightly-2026-11-25")
        await scene.RemoveFile("CERN-DST", "/lhcb/a").schedule()
        for statement in ast.parse(code).body:
            await run(ast.unparse(statement), names)
            made = names.get(getattr(statement, "name", ""))
            if inspect.isclass(made) and issubclass(made, BaseTask):
                system.app.registry.add(made, module.__name__)
