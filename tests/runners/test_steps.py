"""Which batches make a step, on one rank; tests/runners/test_streams.py has several."""

from __future__ import annotations

import pytest

from endoscope.runners.loops.distributed import Ranks
from endoscope.runners.loops.steps import Steps


def grouped(batches: int, accumulate: int, *, known: bool) -> list[list[int]]:
    """The batches of each step, as the trainer goes through them."""
    steps: list[list[int]] = [[]]
    total = batches if known else None
    for batch, parts, step_now in Steps(accumulate).over(iter(range(batches)), total, ranks=Ranks(), epoch=0):
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
        (0, 2, []),
        (3, 1, [[0], [1], [2]]),
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1], [2, 3], [4]]),
        (5, 3, [[0, 1, 2], [3, 4]]),
        (2, 7, [[0, 1]]),
    ],
)
def test_every_batch_is_in_one_step_and_the_last_step_has_what_is_left(
    batches: int, accumulate: int, expected: list[list[int]], known: bool
) -> None:
    assert grouped(batches, accumulate, known=known) == expected


@pytest.mark.parametrize("total", [9, 7])
def test_a_wrong_length_is_told_once_where_steps_depend_on_it(total: int) -> None:
    steps = Steps(3)
    with pytest.warns(UserWarning, match=f"len\\(\\) says {total} batches, and it gave 8") as told:
        made = [*steps.over(iter(range(8)), total, ranks=Ranks(), epoch=0)]
    assert len(told) == 1
    assert [*steps.over(iter(range(8)), total, ranks=Ranks(), epoch=1)] == made  # warnings are errors here
    assert all(parts > 0 for _, parts, _ in made)
    alone = list(Steps(1).over(iter(range(8)), total, ranks=Ranks(), epoch=0))
    assert [(batch, step_now) for batch, _, step_now in alone] == [(k, True) for k in range(8)]


def test_a_stream_is_read_one_step_ahead_at_most() -> None:
    drawn: list[int] = []
    batches = (drawn.append(k) or k for k in range(100))  # type: ignore[func-returns-value]
    over = Steps(2).over(batches, None, ranks=Ranks(), epoch=0)
    assert next(over) == (0, 2, False)
    assert drawn == [0, 1]
