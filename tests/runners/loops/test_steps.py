"""Which batches make a step, on one rank and on several."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from endoscope.errors import ConfigError
from endoscope.runners.loops.distributed import Ranks
from endoscope.runners.loops.steps import Steps


def grouped(batches: int, accumulate: int, *, known: bool) -> list[list[int]]:
    """The batches of each step, as the trainer goes through them."""
    steps: list[list[int]] = [[]]
    total = batches if known else None
    for batch, parts, step_now in Steps(accumulate).over(iter(range(batches)), total, ranks=Ranks()):
        steps[-1].append(batch)
        if step_now:
            assert len(steps[-1]) == parts
            steps.append([])
        else:
            assert len(steps[-1]) < parts
    assert steps.pop() == [], "batches without a step"
    return steps


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("batches", "accumulate", "expected"),
    [
        (3, 1, [[0], [1], [2]]),
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1], [2, 3], [4]]),
        (5, 3, [[0, 1, 2], [3, 4]]),
        (2, 7, [[0, 1]]),
    ],
)
def test_every_batch_is_in_one_step_and_the_last_step_has_the_rest(
    batches: int, accumulate: int, expected: list[list[int]], known: bool
) -> None:
    assert grouped(batches, accumulate, known=known) == expected


@pytest.mark.parametrize("total", [0, None])
def test_no_batch_at_all(total: int | None) -> None:
    with pytest.raises(ConfigError, match="^train_dataset: it gave no batch; is it empty"):
        list(Steps(2).over(iter([]), total, ranks=Ranks()))


@pytest.mark.parametrize("total", [9, 7])
def test_a_wrong_length_gives_no_invalid_step(total: int) -> None:
    steps = list(Steps(3).over(iter(range(8)), total, ranks=Ranks()))
    assert [batch for batch, _, _ in steps] == list(range(8))
    assert all(0 < parts <= 3 for _, parts, _ in steps)
    alone = list(Steps(1).over(iter(range(8)), total, ranks=Ranks()))
    assert [(batch, step_now) for batch, _, step_now in alone] == [(k, True) for k in range(8)]


def test_a_stream_is_read_at_most_one_step_ahead() -> None:
    read: list[int] = []
    batches = (read.append(k) or k for k in range(100))  # type: ignore[func-returns-value]
    over = Steps(2).over(batches, None, ranks=Ranks())
    assert next(over) == (0, 2, False)
    assert read == [0, 1]


@dataclass(frozen=True)
class Scripted(Ranks):
    """Rank 0 of two; the other rank has this many steps."""

    rank: int = 0
    world_size: int = 2
    other: list[int] = field(default_factory=list)

    def all(self, flag: bool) -> bool:
        self.other[0] -= 1
        return flag and self.other[0] >= 0

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other[0] >= 0]


@pytest.mark.parametrize(("other", "steps", "ended"), [(1, 1, "rank 1"), (9, 3, "rank 0"), (3, 3, None)])
@pytest.mark.filterwarnings("default:train_dataset:UserWarning")
def test_an_epoch_ends_for_all_ranks_and_a_warning_says_so_once(
    other: int, steps: int, ended: str | None, recwarn: pytest.WarningsRecorder
) -> None:
    grouping = Steps(2)
    for _ in range(2):
        ranks = Scripted(other=[other])
        assert sum(step_now for _, _, step_now in grouping.over(iter(range(5)), None, ranks=ranks)) == steps
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == (ended is not None)
    assert all(f"gives fewer batches to {ended} than to others" in message for message in messages)


def test_a_dataset_with_a_length_needs_no_communication() -> None:
    class Silent(Ranks):
        def all(self, flag: bool) -> bool:
            raise AssertionError("asked")

    assert len(list(Steps(2).over(iter(range(4)), 4, ranks=Silent(0, 2)))) == 4
    with pytest.raises(AssertionError, match="asked"):  # the twin
        list(Steps(2).over(iter(range(4)), None, ranks=Silent(0, 2)))
