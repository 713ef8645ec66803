"""The picture of a workflow: layers, order, and no step upon another one."""

from __future__ import annotations

from hypothesis import given, strategies as st

from nonet.web.graph import (
    ADDED,
    HEIGHT,
    MOST_EDGES,
    MOST_STEPS,
    WIDTH,
    is_too_large,
    layer_counts,
    layers_of,
    picture,
)


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Steps that come after some earlier ones, and some steps that these add."""
    after: dict[str, list[str]] = {}
    for number in range(draw(st.integers(1, 25))):
        earlier = [place for place in after if "." not in place]
        before = (
            draw(st.lists(st.sampled_from(earlier), unique=True, max_size=4)) if earlier else []
        )
        after[str(number)] = [draw(st.sampled_from("sfa")) + place for place in before]
        for added in range(draw(st.integers(0, 2))):
            inner = draw(st.booleans()) and added
            after[f"{number}.{added}"] = [f"s{number}.0"] if inner else []
    return after


@given(graphs())
def test_a_step_is_right_of_what_it_waits_for(after: dict[str, list[str]]) -> None:
    """Of each predecessor, of the step that added it, and of what its predecessors added."""
    layers = layers_of(after)
    for place, before in after.items():
        above = place.rpartition(".")[0]
        assert not above or layers[above] < layers[place]
        for edge in before:
            inside = [one for one in after if one == edge[1:] or one.startswith(f"{edge[1:]}.")]
            assert all(layers[one] < layers[place] for one in inside)


@given(graphs())
def test_no_step_is_upon_another_one(after: dict[str, list[str]]) -> None:
    """All boxes are in the picture, and none overlaps."""
    found = picture(after)
    assert [box.place for box in found.boxes] == list(after)
    for number, box in enumerate(found.boxes):
        assert 0 <= box.x <= found.width - WIDTH
        assert -1e-6 <= box.y <= found.height - HEIGHT + 1e-6
        for other in found.boxes[:number]:
            assert box.x != other.x or abs(box.y - other.y) >= HEIGHT


def test_a_chain_is_straight() -> None:
    """One row, and an edge from each step to the next one."""
    found = picture({"0": [], "1": ["s0"], "2": ["s1"]})
    assert {box.y for box in found.boxes} == {8}
    assert [(line.source.place, line.target.place, line.on) for line in found.lines] == [
        ("0", "1", "s"),
        ("1", "2", "s"),
    ]


def test_a_fan_is_beside_its_middle() -> None:
    """The step before and the step behind are at the middle of the fan."""
    after = {"0": [], **{str(n): ["s0"] for n in range(1, 4)}, "4": ["s1", "s2", "s3"]}
    heights = {box.place: box.y for box in picture(after).boxes}
    assert heights["0"] == heights["2"] == heights["4"]


def test_edges_do_not_cross_needlessly() -> None:
    """Two chains that were added crosswise are drawn side by side."""
    found = picture({"0": [], "1": [], "2": ["s1"], "3": ["s0"]})
    heights = {box.place: box.y for box in found.boxes}
    assert (heights["0"] < heights["1"]) == (heights["3"] < heights["2"])


def test_added_steps_are_drawn_behind_their_step() -> None:
    """Its edge has a letter of its own; the next step comes behind all of it."""
    found = picture({"0": [], "0.0": [], "0.1": ["s0.0"], "1": ["s0"]})
    assert [line.target.place for line in found.lines if line.on == ADDED] == ["0.0"]
    assert max(found.boxes, key=lambda box: box.x).place == "1"


def test_a_large_workflow_is_counted() -> None:
    """There is no picture beyond a number of steps or of edges."""
    chain = {str(n): [f"s{n - 1}"] * (n > 0) for n in range(MOST_STEPS + 1)}
    assert is_too_large(chain)
    del chain[str(MOST_STEPS)]
    assert not is_too_large(chain)
    dense = {str(n): [f"s{m}" for m in range(n)] for n in range(40)}
    assert sum(map(len, dense.values())) > MOST_EDGES and is_too_large(dense)


def test_the_counts_of_layers() -> None:
    """Each layer has its steps by class and by state, the most frequent first."""
    after = {"0": [], **{str(n): ["s0"] for n in range(1, 4)}}
    names = {"0": "a:Extract", "1": "a:Load", "2": "a:Mail", "3": "a:Mail"}
    states = {"0": "done", "1": "queued", "2": "running", "3": "queued"}
    first, second = layer_counts(after, names, states)
    assert (first.steps, first.classes, first.states) == (1, {"a:Extract": 1}, {"done": 1})
    assert list(second.classes.items()) == [("a:Mail", 2), ("a:Load", 1)]
    assert second.states == {"queued": 2, "running": 1}


def test_a_picture_of_nothing() -> None:
    """A workflow whose steps have expired has an empty picture."""
    assert picture({}).boxes == ()
