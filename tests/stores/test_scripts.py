"""The Lua scripts as texts: headers, keys and who runs them. What they do is tested in stores/."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import nonet
from nonet.base import keys
from nonet.stores.connection.redis import script

FOLDER = Path(str(files("nonet.stores") / "scripts"))
NAMES = sorted(path.stem for path in FOLDER.glob("*.lua"))
LUA = {path.relative_to(FOLDER).as_posix(): path.read_text() for path in FOLDER.rglob("*.lua")}
_STORES = Path(str(files("nonet.stores")))
STORES = {str(path.relative_to(_STORES)): path.read_text() for path in _STORES.rglob("*.py")}

# The table of keys.py; an upper-case word, or what stands for escaped parts, is a variable.
TABLE = re.findall(
    r"^    ([a-z]\S*) +(?:STREAM|ZSET|HASH|STRING|LIST|SET) ", keys.__doc__ or "", re.M
)


# Its text goes along with each call, and it needs no time.
BARE = {"mark", "writable"}


def in_table(literal: str) -> bool:
    """Whether a key, or the beginning of one, stands in the table."""
    heads = [re.split("[A-Z…]", row)[0] for row in TABLE]
    return any(literal == head or (head[-1] == ":" and literal.startswith(head)) for head in heads)


def test_a_script_says_what_it_takes_and_returns() -> None:
    """Each header names the verb, KEYS, ARGV and what is returned; a part names itself."""
    for name in NAMES:
        lines = LUA[f"{name}.lua"].splitlines()
        first, *header = [line for line in lines if line.startswith(("#", "--"))]
        assert re.fullmatch(r"#!lua( flags=(allow-oom|no-writes))?", first), name
        assert header[0].startswith(f"-- {name}: ")
        parts = ("-- KEYS  prefix", "-- ARGV  ", "-- returns ", "-- @include ")
        for part in parts[:3] if name in BARE else parts:
            assert any(line.startswith(part) for line in header), f"{name}: {part}"
    for path, text in LUA.items():
        if path.startswith("lib/"):
            assert text.startswith(f"-- {path.removesuffix('.lua')}: ")


def test_a_script_includes_what_its_parts_need() -> None:
    """A part says what it needs; that comes before it. Parts may include others, too."""

    def include(text: str, included: list[str]) -> None:
        lines = re.findall(r"^-- @(include .+|defer .+) *$", text, re.M)
        parts = [re.sub(r"^include |^defer (.+) \w+$", r"\1", line) for line in lines]
        for part in " ".join(parts).split():
            text = LUA[f"lib/{part}.lua"]
            needs = re.match(r"-- lib/\w+: needs ([\w,\s-]+)\.", text)
            if needs:
                missing = set(re.findall(r"\w+", needs[1])) - set(included)
                assert not missing, f"{name}: {part} needs {missing}"
            include(text, included)
            included.append(part)
            if {"now", "records"} <= {*included}:
                included.append("base")

    for name in NAMES:
        include(LUA[f"{name}.lua"], [])
        assert not re.search("@include|@defer", script(name)[0]), name


def test_only_new_work_is_refused_when_memory_is_full() -> None:
    """What ends, moves or renews must work then."""
    refused = {name for name in NAMES if LUA[f"{name}.lua"].splitlines()[0] == "#!lua"}
    assert refused == {
        *("submit", "fire", "group_open", "hold", "retry_quarantined"),
        *("workflow_stage", "workflow_resume", "workflow_signal"),
        "keep_log",  # nothing depends on it
    }


def test_only_keys_of_the_table_are_touched() -> None:
    """Every key is the prefix and a literal that the table of keys.py lists."""
    assert {"tasks:PRIORITY:SIZE", "t:ID", "fence", "periodic:next"} <= set(TABLE)
    for path, text in LUA.items():
        literals = re.findall(r"\bP \.\. '([^']+)'", text)
        suffixes = re.findall(r"'(:[a-z_]+)'", text)
        assert [literal for literal in literals if not in_table(literal)] == [], path
        assert [s for s in suffixes if not any(row.endswith(s) for row in TABLE)] == [], path
        # Each other way to write a key starts from the prefix, too.
        assert not re.findall(r"redis\.p?call\('\w+', '[a-z]+:", text), path
    for name, text in STORES.items():
        literals = re.findall(r"_?prefix\}([a-z][a-z:]*)", text)
        assert [literal for literal in literals if not in_table(literal)] == [], name


def test_every_key_of_the_table_is_used() -> None:
    """The table lists nothing that no longer exists."""
    text = "\n".join(
        [
            *LUA.values(),
            *STORES.values(),
            (Path(nonet.__file__).parent / "tasks" / "locks.py").read_text(),
        ]
    )
    for row in TABLE:
        head = re.split("[A-Z…]", row)[0]
        tail = re.split("[A-Z…]", row)[-1]
        if head in ("tasks:", "woken:"):  # composed as kind .. ':' .. priority
            head = f"'{head[:-1]}'"
        assert head.removesuffix(":") in text, row
        assert tail in text, row


def test_every_script_is_run_by_a_store() -> None:
    """No script is left over, and none is missing."""
    text = "\n".join(STORES.values())
    asked = re.findall(r'(?:\.run(?:_confirmed)?\(\s*|run_sync\([\w., ]+|script\()"(\w+)"', text)
    assert set(asked) == set(NAMES)


def test_no_script_decodes_a_message() -> None:
    """Redis cannot decode extension types: envelopes and documents stay opaque to it."""
    found = [path for path, text in LUA.items() if re.search(r"\.unpack\(|cjson", text)]
    assert found == ["lib/records.lua"]  # which decode what they have packed


def test_times_come_from_redis_only() -> None:
    """One clock: TIME is called in one part, and large numbers keep their digits."""
    for path, text in LUA.items():
        assert text.count("'TIME'") == (path == "lib/now.lua"), path
        assert not re.search(r"os\.time|tostring\(now", text), path
