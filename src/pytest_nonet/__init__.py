"""The pytest plugin of Nonet: fixtures `nonet_system` and `nonet_tasks`, marker ``nonet``.

It is a package of its own because pytest imports it in every run, also where nobody uses it:
nothing here imports Nonet before a test asks for a fixture. How to use it:
docs/how-to/test-your-tasks.md.
"""

from __future__ import annotations

import importlib.util
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nonet.testing import System

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "nonet(tasks=..., **options): how the fixture nonet_system opens nonet.testing.System",
    )


@pytest.fixture(scope="session")
def nonet_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Redis server of this test run; override it to use another one.

    Each `nonet_system` has a namespace of its own in it, which is deleted after the test.
    """
    from nonet.stores.connection.embedded import open_embedded  # most runs need none

    with open_embedded(tmp_path_factory.mktemp("nonet")) as server:
        yield server.url


@pytest.fixture
def nonet_tasks() -> Any:
    """The task classes and modules of `nonet_system`; override it in a module or conftest.py.

    None, the default: those that are installed.
    """
    return None


def _system(
    request: pytest.FixtureRequest, nonet_server: str, nonet_tasks: Any
) -> AbstractAsyncContextManager[System]:
    """The system as the nearest marker wants it."""
    from nonet.testing import System  # most tests need none

    options: dict[str, Any] = {"tasks": nonet_tasks}
    for marker in reversed(list(request.node.iter_markers("nonet"))):
        if marker.args:
            raise pytest.UsageError(f"pytest.mark.nonet takes keywords only, as in {_EXAMPLE}")
        options.update(marker.kwargs)
    # Other processes, of xdist for example, may use the same server.
    options.setdefault("namespace", f"test-{next(_numbers)}-{secrets.token_hex(4)}")
    return System(redis_url=nonet_server, **options)


async def _opened(
    request: pytest.FixtureRequest, nonet_server: str, nonet_tasks: Any
) -> AsyncIterator[System]:
    """A `nonet.testing.System` for this test."""
    async with _system(request, nonet_server, nonet_tasks) as system:
        yield system


def _unopened() -> None:
    """Fails: it needs pytest-asyncio."""
    pytest.fail(
        "the fixture nonet_system needs pytest-asyncio: install it, or open "
        "nonet.testing.System in the test",
        pytrace=False,
    )


_EXAMPLE = "@pytest.mark.nonet(tasks=[RemoveFile])"


def _fixture() -> Callable[..., Any]:
    """`nonet_system`, which pytest-asyncio opens and closes in the event loop of the test."""
    if importlib.util.find_spec("pytest_asyncio") is None:
        return pytest.fixture(name="nonet_system")(_unopened)
    import pytest_asyncio  # optional

    made: Callable[..., Any] = pytest_asyncio.fixture(name="nonet_system")(_opened)
    return made


nonet_system = _fixture()
