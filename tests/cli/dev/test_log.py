"""The lines of many processes in one stream."""

from __future__ import annotations

from nonet.cli.dev.log import MergedLog, rendered

LINE = "2026-11-22T11:35:40.123Z ERROR shop.tasks: no connection task_id=a"


def test_each_line_begins_with_its_process() -> None:
    """Without colours it is as the process has written it."""
    lines: list[str] = []
    log = MergedLog(lines.append, coloured=False)
    log.add("small", LINE)
    log.say("first\nsecond")
    assert lines == [f"small  | {LINE}", "dev    | first", "dev    | second"]


def test_colours_tell_processes_and_levels() -> None:
    """What is no log line of a daemon, as the output of a task, stays as it is."""
    assert rendered("large", LINE) == (
        "\x1b[35mlarge  |\x1b[0m \x1b[2m11:35:40.123\x1b[0m \x1b[31mERROR\x1b[0m shop.tasks: "
        "no connection task_id=a"
    )
    assert rendered("web", "printed") == "\x1b[33mweb    |\x1b[0m printed"
