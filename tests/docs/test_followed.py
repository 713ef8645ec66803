"""What following a page finds: or else pages that are wrong would pass."""

from __future__ import annotations

import pytest
from docs.followed import Terminal, fits, followed
from docs.pages import Page


@pytest.mark.parametrize(
    ("shown", "output", "fitting"),
    [
        ("5\n", "5\n", True),
        ("5\n", "6\n", False),
        ("5\n", "5\n5\n", False),
        ("5\n5\n", "5\n", False),
        ("a  b\n", "  a b   \n\n", True),  # columns are as wide as they need
        ("bed8x3rbadjrcrm9i8mb\n", "eca4g346sx6w2mbjpptn\n", True),
        ("bed8x3rbadjrcrm9i8mb\n", "eca4g346\n", False),
        ("2026-11-22 11:35:40Z (in 59 s)\n", "2027-01-02 01:35:40Z (in 8.5 s)\n", True),
        ("held by 12@host\n", "held by 345@another.host\n", True),
        ("worker …: drained\n", "worker 12@host: drained\n", True),
        ("worker …: drained\n", "worker 12@host: cut off\n", False),
        ("…\n2 passed\n", "2 passed\n", True),
        ("…\n2 passed\n", "..\n\nslow\n2 passed\n", True),
        ("…\n2 passed\n", "1 failed\n", False),
        ("a\n…\nb\n", "a\nb\nc\n", False),
        ("", "error\n", False),
    ],
)
def test_shown_output_is_compared(shown: str, output: str, fitting: bool) -> None:
    """Only ids, times and the like may differ, and what a page leaves out."""
    assert fits(shown, output) is fitting


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("```sh\nfalse\ntrue\n```\n", "failed: .'false'"),
        ("```sh\necho a\n```\n\n```text\nb\n```\n", "the page shows"),
        ("```sh\necho PytestDeprecationWarning: x\n```\n\n```text\n…\n```\n", "DeprecationWarning"),
        ("```python\n# a.py\nprint(1)\n```\n```sh\npython3 b.py\n```\n", "can't open file"),
    ],
)
def test_a_wrong_page_fails(source: str, complaint: str) -> None:
    """A command that fails, another output, and a file of another name."""
    with pytest.raises(AssertionError, match=complaint), followed(Page("wrong.md", source)):
        pass


def test_the_shell_is_one_for_the_whole_page() -> None:
    """Variables, the folder and files last from block to block."""
    source = (
        "```sh\nmkdir a; cd a; b=2\n```\n```text\n# c.txt\nhello\n```\n"
        "```sh\necho $b; pwd; tail -n 1 ../c.txt\n```\n```text\n2\n…/work/a\nhello\n```\n"
    )
    with followed(Page("right.md", source)) as terminal:
        assert terminal.left() == []


def test_an_endless_command_is_ended_and_its_output_shown() -> None:
    """The shell itself ends, too, although nothing reads its output any more."""
    endless = pytest.raises(AssertionError, match=r"it has not ended:\n.*\n(more\n)+")
    with endless, Terminal() as terminal:
        terminal.type("echo")
        terminal.type("while :; do echo more; done", seconds=1)


def test_processes_left_behind_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that a page forgets is found while the terminal is open, and ended with it."""
    monkeypatch.setattr("docs.followed._END_SECONDS", 0)
    source = "```sh\nsleep 1000 &\nuntil grep -q sleep /proc/$!/cmdline; do :; done\n```\n"
    with followed(Page("forgetful.md", source)) as terminal:
        (left,) = terminal.left()
        assert "sleep 1000" in left


@pytest.mark.server
def test_a_forked_command_is_known_by_its_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads and writes, gets signals, gives its exit code, and is found when it stays behind."""
    source = (
        "```python\n# mytasks.py\nfrom nonet import task\n\n"
        "@task\nasync def double(n: int) -> int:\n    return 2 * n\n```\n"
        "```sh\nexport NONET_TASKS=mytasks PYTHONPATH=$PWD\n"
        "export NONET_REDIS_URL=embedded:// NONET_STATE_DIR=$PWD/state\n"
        "start() { rm -f log; task-worker --size small 2>log & worker=$!\n"
        "until grep -qs ' ready' log; do sleep 0.1; done; }\n"
        """start; echo '{"task": "double", "args": [2]}' | task-run submit\n"""
        "kill $worker; wait $worker; echo ended with $?\n"
        "task-run status missing || echo ended with $?\n"
        "start; kill -9 $worker; wait $worker || echo ended with $?\n```\n"
        "```text\nabcdefghijkmnpqrstuv\nended with 0\nerror…\nended with 4\nended with 137\n```\n"
    )
    with followed(Page("forked.md", source), installed=True) as terminal:
        assert terminal.left() == []
        terminal.type("start")
        monkeypatch.setattr("docs.followed._END_SECONDS", 0)
        assert any("preloaded.py" in command for command in terminal.left())
