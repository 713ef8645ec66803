"""Every form of task class arrives as it was sent, or is refused when it is registered."""

import enum
import inspect
import math
import os
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, RootModel, SecretStr
from typing_extensions import TypedDict

from nonet import BaseTask, PeriodicVoAwareBaseTask, Priority, Size, task
from nonet.base.errors import InvalidArgumentsError, RegistrationError
from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import Envelope, decode_envelope, encode
from nonet.tasks.arguments import Arguments

T = TypeVar("T")


def travel(task: Any) -> Any:
    """The task as a worker sees it: packed, encoded, decoded, built."""
    arguments = Arguments(type(task))
    envelope = Envelope(FORMAT, "id", "tests:Task", arguments.pack(task), {}, 0.0)
    return arguments.build(decode_envelope(encode(envelope)).args)


def state(task: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(task).items() if not name.startswith("_")}


# --- the forms of a class -------------------------------------------------------------------------


@dataclass
class Plain(BaseTask):
    number: int
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen(BaseTask):
    number: int


@dataclass(slots=True)
class Slotted(BaseTask):
    number: int
    tags: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class KeywordOnly(BaseTask):
    number: int
    size: ClassVar[Size] = Size.SMALL


@dataclass
class PartlyKeywordOnly(BaseTask):
    number: int
    _: KW_ONLY
    other: int = 3


class Undecorated(BaseTask):
    number: int
    other: int = 2
    priority = Priority.REALTIME


class UndecoratedChild(Undecorated):
    third: int = 4


class UndecoratedBelowDataclass(Plain):
    extra: int = 3


class UndecoratedBase(BaseTask):
    number: int


@dataclass
class DataclassBelowUndecorated(UndecoratedBase):
    other: int


class NoArguments(BaseTask):
    async def execute(self) -> None: ...


class Model(BaseTask, BaseModel):
    model_config = ConfigDict(extra="allow")
    priority: ClassVar[Priority] = Priority.REALTIME
    json_: int = Field(alias="json", default=3)
    at: datetime = datetime(2020, 1, 1, tzinfo=UTC)


class VoModel(PeriodicVoAwareBaseTask, BaseModel):
    number: int = 1


class OwnInit(BaseTask):
    def __init__(self, number: int, other: int = 2, *, third: int = 3) -> None:
        self.seen = (number, other, third)


class KeywordInit(BaseTask):
    def __init__(self, *, number: int, **more: Decimal) -> None:
        self.seen = (number, more)


class PositionalInit(BaseTask):
    def __init__(self, number: int, other: int = 2, /, third: int = 3) -> None:
        self.seen = (number, other, third)


class OwnInitBelowDataclass(Plain):
    def __init__(self, text: str) -> None:
        super().__init__(int(text))


@dataclass
class DataclassBelowOwnInit(OwnInit):
    number: int = 1


@dataclass
class DataclassWithOwnInit(BaseTask):
    number: int

    def __init__(self, text: str) -> None:
        self.number = int(text)


class VoOnly(PeriodicVoAwareBaseTask):
    async def execute(self) -> None: ...


@dataclass
class VoDataclass(PeriodicVoAwareBaseTask):
    regex: str = ".*"


# The three forms of the decision record.


class PilotsBySuper(PeriodicVoAwareBaseTask):
    def __init__(self, *, vo: str, ce_regex: str | None = None) -> None:
        super().__init__(vo=vo, ce_regex=ce_regex)


class PilotsByAttribute(PeriodicVoAwareBaseTask):
    def __init__(self, *, vo: str, ce_regex: str) -> None:
        super().__init__(vo=vo)
        self.ce_regex = re.compile(ce_regex)


class PilotsByAnnotation(PeriodicVoAwareBaseTask):
    ce_regex: re.Pattern = re.compile(".*")  # type: ignore[type-arg]  # as the record has it


FORMS = [
    Plain(1, ["a"]),
    Frozen(1),
    Slotted(1, ["a"]),
    KeywordOnly(number=1),
    PartlyKeywordOnly(1, other=5),
    Undecorated(1, 5),
    UndecoratedChild(1, 5, third=6),
    UndecoratedBelowDataclass(1, ["a"], 9),
    DataclassBelowUndecorated(1, 2),
    NoArguments(),
    Model(json=5),
    Model(json=5, note="an extra"),
    VoModel(vo="lhcb", number=2),
    OwnInit(1),
    OwnInit(1, third=5),
    KeywordInit(number=1, tax=Decimal("1.10")),
    PositionalInit(1, third=9),
    OwnInitBelowDataclass("5"),
    DataclassBelowOwnInit(5),
    DataclassWithOwnInit("5"),
    VoOnly(vo="lhcb"),
    VoDataclass("lhcb", "x.*"),
    PilotsBySuper(vo="lhcb", ce_regex="x.*"),
    PilotsBySuper(vo="lhcb"),
    PilotsByAttribute(vo="lhcb", ce_regex="x.*"),
    PilotsByAnnotation(vo="lhcb"),
    PilotsByAnnotation(vo="lhcb", ce_regex=re.compile("x.*", re.IGNORECASE)),
]


@pytest.mark.parametrize("task", FORMS, ids=lambda task: type(task).__name__)
def test_every_form_of_class_arrives_as_it_was_sent(task: BaseTask) -> None:
    arrived = travel(task)
    assert type(arrived) is type(task)
    assert state(arrived) == state(task)
    if isinstance(task, BaseModel):
        assert arrived == task


@pytest.mark.parametrize(
    "make", [lambda: Plain(1), lambda: Slotted(1), lambda: Undecorated(1), lambda: Model()]
)
def test_fields_are_read_when_the_task_is_sent(make: Callable[[], Any]) -> None:
    task = make()
    name = "json_" if isinstance(task, Model) else "number"
    setattr(task, name, 9)
    assert getattr(travel(task), name) == 9


def test_annotated_class_attributes_are_no_arguments() -> None:
    for cls in (Plain, KeywordOnly, Undecorated, Model):
        assert not {"priority", "size"} & set(inspect.signature(cls).parameters)
    assert Undecorated(1).priority is Priority.REALTIME
    assert KeywordOnly(number=1).size is Size.SMALL


# --- serialize() ----------------------------------------------------------------------------------


class Connected(BaseTask):
    def __init__(self, number: int, connection: Any = None) -> None:
        self.number, self.connection = number, connection

    def serialize(self) -> tuple[Any, ...]:
        return (self.number,)


@dataclass(kw_only=True)
class ConnectedKeywords(BaseTask):
    number: int
    cache: int = 0

    def serialize(self) -> tuple[Any, ...]:
        return (self.number,)


@pytest.mark.parametrize(
    ("task", "left_behind"),
    [
        (Connected(5, connection=object()), "connection"),
        (ConnectedKeywords(number=5, cache=1), "cache"),
    ],
)
def test_an_own_serialize_decides_what_is_sent(task: Any, left_behind: str) -> None:
    arrived = travel(task)
    assert arrived.number == 5
    assert not getattr(arrived, left_behind)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (Plain(1, ["a"]), (1, ["a"])),
        (OwnInit(1, third=5), (1, 2, 5)),
        (Model(json=5), (5, datetime(2020, 1, 1, tzinfo=UTC))),
        (KeywordInit(number=1, tax=Decimal(1)), (1,)),
    ],
)
def test_serialize_gives_all_arguments_in_order(task: BaseTask, expected: Any) -> None:
    """Also those left to their defaults, so that no later one moves into their place."""
    assert task.serialize() == expected


@dataclass
class OnlyPlain(BaseTask):
    number: int
    text: str
    share: float = 0.5
    flag: bool = False
    data: bytes = b""

    async def execute(self) -> None: ...


class Serialized(OnlyPlain):
    """Serialised as a function says that a test sets."""

    how: ClassVar[Callable[[Any], Any]]

    def serialize(self) -> Any:
        return type(self).how(self)


def test_serialize_may_return_a_mapping_but_neither_more_values_nor_anything_else() -> None:
    arguments, task = Arguments(Serialized), Serialized(1, "a")
    for how in (lambda task: {"text": "A", "number": 1}, lambda task: (1, "A")):
        Serialized.how = how
        assert arguments.build(arguments.pack(task)).text == "A"
    too_many = r"serialize\(\) returned 9 values for 5"
    for made, problem in (("text", "a tuple or a mapping, not str"), ((1,) * 9, too_many)):
        Serialized.how = lambda task, made=made: made
        with pytest.raises(InvalidArgumentsError, match=problem):
            arguments.pack(task)


# --- values ---------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Point(NamedTuple):
    x: int
    y: int = 0


class Shape(TypedDict):
    sides: int


class Part(BaseModel):
    amount: Decimal
    at: datetime
    parts: list["Part"] = []
    alias: int = Field(default=0, alias="class")


class Numbers(RootModel[list[int]]):
    pass


@dataclass
class Record:
    path: Path
    at: timedelta = timedelta(0)
    computed: int = field(default=0, init=False)


@dataclass
class Box(BaseTask, Generic[T]):
    value: Any


@cache
def box(hint: Any) -> type:
    made = type("Typed", (BaseTask,), {"__annotations__": {"value": hint}})
    return dataclass(made)


# Whole seconds: Python 3.11 itself reads "+00:00:00.000001" as UTC.
OFFSETS = st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
FINITE = st.decimals(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates too
PATHS = st.binary(max_size=20).map(lambda raw: Path(os.fsdecode(raw)))
PARTS = st.recursive(
    st.builds(Part, amount=FINITE, at=st.datetimes()),
    lambda inner: st.builds(
        Part, amount=st.just(Decimal("1.10")), at=st.datetimes(), parts=st.lists(inner, max_size=2)
    ),
    max_leaves=4,
)

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers() | st.integers().map(lambda n: n * 10**30) | st.just(2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: TEXT,
    bytes: st.binary(max_size=50),
    datetime: st.datetimes() | st.datetimes(timezones=OFFSETS),
    date: st.dates(),
    time: st.times() | st.times(timezones=OFFSETS),
    timedelta: st.timedeltas(timedelta(days=-999_999), timedelta(days=999_999)),
    Decimal: FINITE,
    UUID: st.uuids(),
    Path: PATHS,
    Colour: st.sampled_from(Colour),
    Point: st.builds(Point, st.integers(), st.integers()),
    Shape: st.fixed_dictionaries({"sides": st.integers()}),
    Part: PARTS,
    Numbers: st.lists(st.integers()).map(Numbers),
    Record: st.builds(Record, PATHS, st.timedeltas(timedelta(days=-9), timedelta(days=9))),
    tuple[int, str]: st.tuples(st.integers(), TEXT),
    tuple[date, ...]: st.lists(st.dates(), max_size=3).map(tuple),
    dict[Path, datetime]: st.dictionaries(PATHS, st.datetimes(timezones=OFFSETS), max_size=2),
    dict[tuple[int, date], int]: st.dictionaries(
        st.tuples(st.integers(), st.dates()), st.integers(), max_size=2
    ),
    int | str: st.integers() | TEXT,
    str | bytes: TEXT | st.binary(max_size=5),
    date | datetime: st.dates() | st.datetimes(),
    Decimal | float: FINITE | st.floats(allow_nan=False),
    Any: st.recursive(
        st.none() | st.integers() | TEXT | st.datetimes(timezones=OFFSETS) | st.uuids() | PATHS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=5,
    ),
}


@pytest.mark.parametrize("hint", VALUES, ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_values_arrive_equal_and_of_the_same_type(hint: Any, data: st.DataObject) -> None:
    value = data.draw(VALUES[hint])
    cls = box(hint)
    arrived = travel(cls(value)).value
    assert arrived == value
    assert type(arrived) is type(value)
    if isinstance(value, datetime | time):
        assert arrived.utcoffset() == value.utcoffset()


@pytest.mark.parametrize("hint", [datetime, time, Part, dict[datetime, int], Any])
@given(at=st.datetimes(), fold=st.sampled_from([0, 1]))
def test_a_naive_time_keeps_its_fold(hint: Any, at: datetime, fold: int) -> None:
    """Which pass of a repeated hour is meant, wherever the time stands in an argument."""
    at = at.replace(fold=fold)
    value: Any = {
        time: lambda: at.time(),
        Part: lambda: Part(amount=Decimal(1), at=at),
        dict[datetime, int]: lambda: {at: 1},
    }.get(hint, lambda: at)()
    arrived = travel(box(hint)(value)).value
    found = arrived.at if hint is Part else next(iter(arrived)) if type(value) is dict else arrived
    assert (arrived, found.fold) == (value, fold)


@given(TEXT, st.integers(0, 511), st.binary(max_size=20))
def test_patterns_arrive_with_their_flags(text: str, flags: int, raw: bytes) -> None:
    chosen = flags & (re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII)
    for pattern in (re.compile(re.escape(text), chosen), re.compile(re.escape(raw), chosen)):
        assert travel(box(re.Pattern)(pattern)).value == pattern


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, Decimal("-0"), Decimal("1E+400"), 10**5000], ids=list("abcde")
)
def test_extreme_numbers_arrive(value: Any) -> None:
    arrived = travel(box(type(value))(value)).value
    assert arrived == value
    assert arrived.as_tuple() == value.as_tuple() if isinstance(value, Decimal) else True


def test_a_secret_arrives_and_stays_secret() -> None:
    arrived = travel(box(SecretStr)(SecretStr("pass"))).value
    assert arrived.get_secret_value() == "pass"
    assert "pass" not in str(arrived)


def test_untyped_data_classes_become_mappings() -> None:
    """Where an annotation names no class, none is looked up: only data travels."""
    arrived = travel(Box({"record": Record(Path("a")), "colour": Colour.RED})).value
    assert arrived == {"record": {"path": Path("a"), "at": timedelta(0)}, "colour": "red"}


# --- refused at registration ----------------------------------------------------------------------


class Opaque:
    pass


class Span(enum.Enum):
    SHORT = (1, 2)


@dataclass
class Forgetful:
    number: InitVar[int]


@dataclass
class WithInitVar(BaseTask):
    number: InitVar[int]


class Starred(BaseTask):
    def __init__(self, *numbers: int) -> None: ...


class Ambiguous(BaseTask):
    def __init__(self, number: int, /, **more: int) -> None: ...


class Unresolved(BaseTask):
    def __init__(self, number: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821


class UnresolvedAttribute(BaseTask):
    def __init__(self, number: "math.nothing") -> None: ...  # type: ignore[name-defined]


class UnresolvedModel(BaseTask, BaseModel):
    number: "Nowhere"  # type: ignore[name-defined] # noqa: F821


class ArbitraryModel(BaseTask, BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    thing: Opaque


class MutableDefault(BaseTask):
    numbers: list[int] = []


class SharedDefault(BaseTask):
    def __init__(self, numbers: list[int] = []) -> None: ...  # noqa: B006


@task
async def shared_default(number: int, *, parts: dict[str, int] = {}) -> None:  # noqa: B006
    parts["number"] = number


class DefaultFirst(BaseTask):
    number: int = 1
    other: int  # type: ignore[misc]


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (
            box(Opaque),
            r"argument value .* \(Opaque\); use plain data, .* open a client with Depends",
        ),
        (box(list[Opaque | None]), "Opaque"),
        (ArbitraryModel, "argument thing .*instance of Opaque"),
        (box(InstanceOf[Part]), "argument value .*instance of Part"),
        (box(Callable[[], int]), "argument value .*callable"),
        (box(dict[str, list[Callable[[], int]]]), "argument value .*callable"),
        (box(type[int]), "argument value"),
        (box(Span), r"argument value .*Span\.SHORT is a tuple"),
        (box(Forgetful), "argument value .*InitVar number"),
        (WithInitVar, "number is an InitVar"),
        (Starred, r"\*numbers"),
        (Ambiguous, "positional-only number"),
        (Unresolved, "'Nowhere' is not defined"),
        (UnresolvedAttribute, "nothing"),
        (UnresolvedModel, "Nowhere|not fully defined"),
        (MutableDefault, "mutable default"),
        (SharedDefault, r"argument numbers, \[\], would be shared .* write numbers=None"),
        (shared_default, r"argument parts, \{\}, would be shared"),
        (DefaultFirst, "non-default argument 'other'"),
    ],
)
def test_a_class_that_cannot_be_sent_is_refused(cls: type, reason: str) -> None:
    with pytest.raises(RegistrationError, match=rf"(?s){cls.__qualname__}.*({reason})"):
        Arguments(cls)


# --- refused at submission ------------------------------------------------------------------------


@dataclass
class Two(BaseTask):
    first: int
    second: list[int] = field(default_factory=list)


@pytest.mark.parametrize(
    ("task", "problems"),
    [
        (Two("x"), [r"first: Input should be a valid integer"]),  # type: ignore[arg-type]
        (Two(1, [2, "y"]), [r"second\.1: "]),  # type: ignore[list-item]
        (Two("x", 5), ["first: ", "second: "]),  # type: ignore[arg-type]
        (Box(Opaque()), ["value is a Opaque, which cannot be serialised: use plain data"]),
        (Box([1, {"a": Opaque()}]), [r"value\[1\]\['a'\] is a Opaque"]),
        (Box(Path("\ud800")), ["value is a path that no file can have"]),
        (KeywordInit(number=1, tax="much"), ["tax: Input should be a valid decimal"]),  # type: ignore[arg-type]
        (
            KeywordInit(number=1, **{"\ud800": Decimal(1)}),
            ["unable to parse raw data as a unicode"],
        ),
        (Model.model_construct(json_="x"), ["json(_)?: "]),
    ],
)
def test_each_wrong_argument_is_named_with_its_place(task: BaseTask, problems: list[str]) -> None:
    with pytest.raises(InvalidArgumentsError) as caught:
        Arguments(type(task)).pack(task)
    assert len(caught.value.problems) == len(problems)
    for found, expected in zip(caught.value.problems, problems, strict=True):
        assert re.search(expected, found)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidArgumentsError, match="nested deeper than 64 levels"):
        Arguments(Box).pack(Box(loop))


# --- a call from the command line -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "args", "kwargs", "expected"),
    [
        (Two, [1], {"second": ["2"]}, {"first": 1, "second": [2]}),
        (Two, ["1", [2]], {}, {"first": 1, "second": [2]}),
        (PositionalInit, [1, 2], {"third": 5}, {"seen": (1, 2, 5)}),
        (KeywordInit, [], {"number": 1, "tax": "1.5"}, {"seen": (1, {"tax": Decimal("1.5")})}),
        (PilotsByAnnotation, ["lhcb"], {"ce_regex": "a"}, None),
    ],
)
def test_bind_validates_the_arguments_of_a_call(
    cls: type, args: list[Any], kwargs: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    made = Arguments(cls).bind(args, kwargs)
    if expected is not None:
        assert state(made) == expected
    else:
        assert (made.vo, made.ce_regex) == ("lhcb", re.compile("a"))


@pytest.mark.parametrize(
    ("cls", "args", "kwargs", "problem"),
    [
        (Two, [1, 2, 3], {}, "takes 2 positional arguments, 3 given"),
        (Two, [1], {"first": 1}, "first: given by position and by name"),
        (Two, [], {}, "first: Field required"),
        (Two, [1], {"third": 3}, "third: Extra inputs are not permitted"),
        (KeywordOnly, [1], {}, "takes 0 positional arguments"),
        (Model, [1], {}, "takes 0 positional arguments"),
    ],
)
def test_bind_names_what_is_wrong_with_a_call(
    cls: type, args: list[Any], kwargs: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidArgumentsError, match=problem):
        Arguments(cls).bind(args, kwargs)


ANYTHING = st.one_of(
    st.integers(-(2**70), 2**70),
    st.text(),
    st.text(st.characters(categories=["Cs"]), max_size=3),
    st.floats(allow_nan=False),
    st.booleans(),
    st.binary(),
    st.none(),
    st.sampled_from([Decimal(3), "7", 2.0, Priority.NORMAL, [1]]),
)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except InvalidArgumentsError as error:
        return str(error)


@given(st.tuples(ANYTHING, ANYTHING, ANYTHING, ANYTHING, ANYTHING))
def test_plain_arguments_are_packed_and_built_as_validated_ones(values: tuple[Any, ...]) -> None:
    quick, slow = Arguments(OnlyPlain), Arguments(OnlyPlain)
    assert len(quick._plain) == 5
    slow._plain = None
    task = OnlyPlain(*values)
    packed, again = outcome(lambda: quick.pack(task)), outcome(lambda: slow.pack(task))
    assert encode(packed) == encode(again)
    named = dict(zip(quick.names, values, strict=True))
    built, built_again = outcome(lambda: quick.build(named)), outcome(lambda: slow.build(named))
    assert repr(built) == repr(built_again)
    assert outcome(lambda: quick.build({"number": 1})) == outcome(lambda: slow.build({"number": 1}))
