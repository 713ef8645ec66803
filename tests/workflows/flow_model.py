"""`Model`: what a workflow must do, in plain Python; the tests hold the scripts against it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

DONE, FAILED, TAKEN, UNNEEDED = "done", "failed", "taken", "unneeded"
# What an edge means for its successor, by how the predecessor has ended and by its letter.
GO, NO = "go", "no"
_MEANING = {
    (DONE, "s"): GO,
    (DONE, "f"): NO,
    (FAILED, "s"): FAILED,
    (FAILED, "f"): GO,
    (TAKEN, "s"): UNNEEDED,
    (TAKEN, "f"): GO,
    (UNNEEDED, "s"): UNNEEDED,
    (UNNEEDED, "f"): NO,
}
Edge = tuple[str, str]
"""Letter of an edge, and the place of its predecessor."""


@dataclass
class Node:
    """A step.

    Attributes:
        state: ``waiting``, ``ready``, or how its task has ended.
        fate: how it has ended by itself: done, failed or unneeded; empty: it has not.
        how: how it has ended for its edges, when the steps that it added have ended, too.
        ends: how often its task has ended.
    """

    place: str
    after: tuple[Edge, ...]
    state: str = "waiting"
    fate: str = ""
    how: str = ""
    ends: int = 0

    def end(self, state: str, fate: str) -> None:
        """Its task has ended."""
        self.state, self.fate, self.ends = state, fate, self.ends + 1

    @property
    def above(self) -> str:
        """The place of the step that added it, or empty."""
        return self.place.rpartition(".")[0]


@dataclass
class Model:
    """One workflow.

    Attributes:
        nodes: its steps, by place.
        is_cancelled: no step starts any more.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    is_cancelled: bool = False

    def add(self, steps: Iterable[tuple[str, Sequence[Edge]]]) -> None:
        """Add steps, each with its predecessors."""
        for place, after in steps:
            self.nodes[place] = Node(place, tuple(after))
        self._settle_down()

    def end(self, place: str, state: str, added: Iterable[tuple[str, Sequence[Edge]]] = ()) -> None:
        """A step has ended, in a state of tasks; a done one may have added others."""
        node = self.nodes[place]
        assert node.state == "ready"
        if not self.is_cancelled and state == "done":
            for child, after in added:
                self.nodes[child] = Node(child, tuple(after))
        node.end(state, DONE if state == "done" else FAILED)
        self._settle_down()

    def cancel_step(self, place: str) -> None:
        """A user cancels a step that does not run."""
        self.nodes[place].end("cancelled", FAILED)
        self._settle_down()

    def cancel(self, running: Iterable[str]) -> None:
        """Cancel all steps but those that run, which end by themselves."""
        self.is_cancelled = True
        for node in self.nodes.values():
            if not node.fate and node.place not in running:
                node.end("cancelled", FAILED)

    def resume(self) -> set[str]:
        """Run again what has failed; the places."""
        again = {place for place in self.nodes if self._runs_again(place)}
        for node in self.nodes.values():
            if node.place in again:
                node.how = ""
                if node.fate != DONE:
                    node.state, node.fate = "waiting", ""
        begun = {place for place in again if not self.nodes[place].fate}
        self._settle_down()
        return begun

    @property
    def state(self) -> str:
        """The state of the workflow."""
        if any(not node.fate for node in self.nodes.values()):
            return "running"
        if self.is_cancelled:
            return "cancelled"
        return FAILED if any(self._fails_all(node) for node in self.nodes.values()) else DONE

    def states(self) -> dict[str, str]:
        """The state of each step, by place."""
        return {place: node.state for place, node in self.nodes.items()}

    def ready(self) -> list[str]:
        """The places of the steps that may start."""
        return [place for place, node in self.nodes.items() if node.state == "ready"]

    def successors(self, place: str, letter: str) -> list[Node]:
        """The steps to which an edge leads."""
        return [node for node in self.nodes.values() if (letter, place) in node.after]

    def _fails_all(self, node: Node) -> bool:
        """Whether a failure fails the workflow: nothing takes it over or passes it on."""
        return node.how == FAILED and not node.above and not self.successors(node.place, "s")

    def _runs_again(self, place: str) -> bool:
        """Whether the failure of a step has failed the workflow, perhaps by way of others."""
        node = self.nodes[place]
        if node.how != FAILED:
            return False
        if next_ones := self.successors(place, "s"):
            return any(self._runs_again(one.place) for one in next_ones)
        return not node.above or self._runs_again(node.above)

    def _settle_down(self) -> None:
        has_changed = not self.is_cancelled
        while has_changed:
            has_changed = False
            for node in self.nodes.values():
                has_changed |= self._step(node)

    def _step(self, node: Node) -> bool:
        """Let one step react to the others; whether it changed."""
        if node.state == "waiting":
            return self._judge(node)
        if not node.fate or node.how:
            return False
        added = [other for other in self.nodes.values() if other.above == node.place]
        if any(not other.how for other in added):
            return False
        fate = node.fate
        if any(one.how == FAILED and not self.successors(one.place, "s") for one in added):
            fate = FAILED
        is_taken = fate == FAILED and self.successors(node.place, "f")
        node.how = TAKEN if is_taken else fate
        return True

    def _judge(self, node: Node) -> bool:
        """Decide about a step that waits for others."""
        hows = [(self.nodes[place].how, letter) for letter, place in node.after]
        meant = [_meaning(how, letter) for how, letter in hows if how]
        on_failure = [_meaning(how, letter) for how, letter in hows if how and letter == "f"]
        if FAILED in meant:
            node.end("cancelled", FAILED)
        elif len(meant) < len(hows):
            return False
        elif UNNEEDED in meant or (on_failure and GO not in on_failure):
            node.end("cancelled", UNNEEDED)
        else:
            node.state = "ready"
        return True


def _meaning(how: str, letter: str) -> str:
    return GO if letter == "a" else _MEANING[how, letter]
