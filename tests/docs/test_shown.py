"""What any page shows can be typed: each command and option exists, YAML and TOML are read."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer
import yaml
from docs.pages import ROOT, Block, Page, all_pages
from example import example_tasks

from docs import page_tasks
from nonet.cli import run as task_run
from nonet.cli.daemons import scheduler as task_scheduler, web as task_web, worker as task_worker
from nonet.config.reading import parse_config
from nonet.scheduler.configuration.configuration_loop import check
from nonet.tasks.registry import Registry

# Not the changelog, which may tell of what is gone.
_BESIDE = (
    *("SECURITY.md", "examples/README.md", "examples/shelf/README.md"),
    "charts/nonet/README.md",
)
PAGES = [Page.read(path) for path in (*all_pages(), *(ROOT / name for name in _BESIDE))]
APPS = {
    "task-run": task_run.app,
    "task-worker": task_worker.app,
    "task-scheduler": task_scheduler.app,
    "task-web": task_web.app,
}
# Not the middle of a path, a container's name or a word such as `task-run-…`.
_COMMAND = re.compile(r"(?<![\w/.:=-])(task-(?:run|worker|scheduler|web))(?= |$)")
_SHELL = ("sh", "bash", "console")
# What prose leaves out, or only names: `task-run dlq`, `--size …`, `--port N`.
INCOMPLETE = {
    *("NoArgsIsHelpError", "MissingParameter"),
    *("BadOptionUsage", "BadArgumentUsage", "BadParameter"),
}
_CONFIGURATION = {"vos", "common", "vo-overrides", "ceilings"}


def command_lines(page: Page) -> Iterator[tuple[str, bool]]:
    """Each command that a page shows, and whether it is to be copied, not a name in prose."""
    for block in page.blocks:
        if block.language in _SHELL:
            for line in block.text.replace("\\\n", " ").splitlines():
                if block.language == "console" and not line.startswith("$ "):
                    continue
                for found in _COMMAND.finditer(line):
                    yield line[found.start() :], "# " not in line[: found.start()]
    for text in re.findall(r"`([^`]+)`", page.prose):
        yield from ((text[found.start() :], False) for found in _COMMAND.finditer(text))


def words_of(line: str) -> list[str]:
    r"""The words of one command; what follows in its line is another one, or a comment.

    >>> words_of("task-run dlq discard --older-than 30d [--dry-run] | wc  # old")
    ['task-run', 'dlq', 'discard', '--older-than', '30d', '--dry-run']
    >>> words_of("task-worker --size small|medium|large")
    ['task-worker', '--size', 'small']
    """
    # Options in brackets may be left out, `a|b` is a choice, `ID…` may be repeated.
    line = re.sub(r"\[(--[^]]*)\]", r"\1", line.replace("\\|", "|"))
    line = re.sub(r"(?<=\w)(\|[\w-]+)+|…", "", line)
    line = re.sub(r"\s\d?>+&?\s*[^\s']+", "", line)  # where its output goes
    words = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
    words.whitespace_split = True
    return list(itertools.takewhile(lambda word: not word or word[0] not in ";&|()<>", words))


@cache
def _command(name: str) -> Any:
    return typer.main.get_command(APPS[name])


def refusal(words: list[str]) -> Exception | None:
    """What the parser of the real command says against these words; nothing is run."""
    if "--install-completion" in words:  # parsed, it is installed
        return None
    command, rest = _command(words[0]), words[1:]
    try:
        while True:
            context = command.make_context(command.name, rest)
            if not hasattr(command, "resolve_command"):
                return None
            rest = [*context._protected_args, *context.args]
            if not rest:
                return None
            _, command, rest = command.resolve_command(context, rest)
    except typer.Exit:  # --help, --version
        return None
    except Exception as error:
        return error


def test_command_lines_are_understood() -> None:
    """Commands, options and their values exist, and what is to be copied is complete."""
    wrong = []
    for name, line, is_whole in (
        (page.name, *found) for page in PAGES for found in command_lines(page)
    ):
        if re.search(r"\[(OPTIONS|COMMAND)\]", line):  # a synopsis, made of the command itself
            continue
        if not is_whole and line.count("'") % 2:  # it stands in quotes: 'task-run dlq'
            line = line.partition("'")[0]
        error = refusal(words_of(line))
        if error is not None and (is_whole or type(error).__name__ not in INCOMPLETE):
            wrong.append(f"{name}: {line!r}: {type(error).__name__}: {str(error)[:200]}")
    assert not wrong, "\n".join(wrong)


def test_wrong_command_lines_are_seen() -> None:
    """A name, an option, a value or an argument that there is not, at any depth, is refused."""
    for line in (
        "task-run dlq lst",
        "task-run limits list --of Task",
        "task-run status",
        "task-worker --size huge",
        "task-scheduler nonet.yaml",
    ):
        assert refusal(words_of(f"{line}  # and more")) is not None, line


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from _commands(below)


def test_each_command_has_help_and_examples_that_are_understood() -> None:
    """The examples are the last paragraph; a group that needs a subcommand may have none."""
    wrong = []
    for command in (item for name in APPS for item in _commands(_command(name))):
        help, _, examples = command.help.partition("\n\n\b\n")
        is_group = hasattr(command, "commands") and not command.invoke_without_command
        assert help and (examples or is_group), command.name
        lines = [line.partition(" # ")[0] for line in examples.replace("\\\n", " ").splitlines()]
        found = [line[match.start() :] for line in lines for match in _COMMAND.finditer(line)]
        wrong += [(line, error) for line in found if (error := refusal(words_of(line)))]
    assert not wrong


def _shown(language: str) -> list[Block]:
    return [block for page in PAGES for block in page.blocks if block.language == language]


def _is_configuration(block: Block) -> bool:
    """Whether it is one of Nonet, not of Kubernetes or another program."""
    found = yaml.safe_load(block.text)
    return isinstance(found, dict) and bool(found) and set(found) <= _CONFIGURATION


def test_yaml_is_read() -> None:
    """Each is YAML; a configuration of Nonet is good, for the example's tasks and `page_tasks`.

    If a page has tasks of its own, the test that follows the page checks that they fit.
    """
    with_tasks = {page.name for page in PAGES if any(b.language == "python" for b in page.files())}
    with example_tasks() as module:
        registry = Registry()
        registry.add_module(module)
        registry.add_module(page_tasks.__name__)
        for block in _shown("yaml"):
            if not _is_configuration(block):
                list(yaml.safe_load_all(block.text))
                continue
            config = parse_config(block.text, str(block))
            if block.page not in with_tasks:
                check(config, registry, ())


def test_toml_is_read() -> None:
    """Each is TOML."""
    for block in _shown("toml"):
        assert tomllib.loads(block.text), block


def test_python_is_read() -> None:
    """Each is Python, and what it imports of Nonet is there."""
    for block in _shown("python"):
        for node in ast.walk(ast.parse(block.text, str(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nonet":
                module = importlib.import_module(node.module or "")
                missing = [item.name for item in node.names if not hasattr(module, item.name)]
                assert not missing, block
