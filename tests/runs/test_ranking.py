"""Order, failures, change and disagreement, against the plainest way to compute them."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from endoscope.runs import ranking
from endoscope.runs.fields import Direction
from endoscope.runs.ranking import Column

NAN, INF = math.nan, math.inf
Score = float | None  # None: the datapoint has none


def column(scores: list[Score], direction: Direction) -> Column:
    values = np.array([NAN if score is None else score for score in scores])
    return Column(values, np.array([score is None for score in scores], bool), direction)


# ---------------------------------------------------------------- the plain way, on lists
def badness(score: Score, direction: Direction) -> tuple[int, float]:
    """Sorts ascending to worst first."""
    if score is None:
        return 2, 0.0
    if math.isnan(score):
        return 0, 0.0
    return 1, score if direction == "higher" else -score


def plain_order(scores: list[Score], direction: Direction) -> list[int]:
    return sorted(range(len(scores)), key=lambda k: (badness(scores[k], direction), k))


def plain_fails(scores: list[Score], direction: Direction, percentile: Fraction) -> list[bool]:
    """Group by group of equal scores, the worst first, for as long as a group fits."""
    having = [score for score in scores if score is not None]
    room = math.ceil(percentile * len(having) / 100) - sum(map(math.isnan, having))
    numbers = sorted({score for score in having if not math.isnan(score)}, reverse=direction == "lower")
    chosen: list[float] = []
    for number in numbers:
        size = having.count(number)
        if room <= 0 or (size > room and chosen):
            break
        if number == numbers[-1] and percentile < 100:
            break
        chosen.append(number)
        room -= size
    return [score is not None and (math.isnan(score) or score in chosen) for score in scores]


def test_a_right_answer_is_no_failure() -> None:
    right, wrong = [1.0] * 348, [0.0] * 11
    found = column([*right, *wrong], "higher").fails()
    assert found.tolist() == [False] * 348 + [True] * 11  # 5 % of 359 would be 18
    assert column([1.0] * 20, "higher").fails().sum() == 0
    assert column([0.0] * 40 + [1.0] * 60, "higher").fails().sum() == 40  # all of the worst, though more than 5
    assert column([0.0] * 3 + [0.5] * 40 + [1.0] * 57, "higher").fails().sum() == 3
    assert column([2.0], "lower").fails().sum() == 0


def plain_worsening(now: Score, before: Score, direction: Direction) -> tuple[int, float]:
    """Sorts ascending to the largest worsening first."""
    if now is None or before is None:
        return 3, 0.0
    if math.isnan(now) and not math.isnan(before):
        return 0, 0.0
    if math.isnan(before) and not math.isnan(now):
        return 1, INF
    if now == before or math.isnan(now):
        return 1, 0.0
    worse = now - before if direction == "lower" else before - now
    return 1, -worse


def plain_disagreement(scores: list[Score]) -> tuple[int, float]:
    having = [score for score in scores if score is not None]
    numbers = [score for score in having if not math.isnan(score)]
    if len(having) < 2:
        return 2, -_spread(numbers)
    if numbers and len(numbers) < len(having):
        return 0, -_spread(numbers)
    return 1, -_spread(numbers)


def _spread(numbers: list[float]) -> float:
    return max(numbers) - min(numbers) if numbers and max(numbers) != min(numbers) else 0.0


# ---------------------------------------------------------------- hard cases, many of them
def some_scores(rng: random.Random, length: int) -> list[Score]:
    """Few different values, so that many are equal; NaN, infinities and gaps among them."""
    choice: list[Score] = [0.0, 0.5, 1.0, -2.0, 0.1 + 0.2, 0.3, NAN, INF, -INF, None]
    weights = [rng.random() for _ in choice]
    return rng.choices(choice, weights, k=length)


SEEDS = range(60)
DIRECTIONS: tuple[Direction, ...] = ("higher", "lower")
EDGES: list[list[Score]] = [[], [None], [NAN], [INF], [1.0], [None, None], [NAN, NAN, NAN], [INF, -INF, NAN, None]]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_one_run_against_the_plain_way(direction: Direction) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        for scores in (some_scores(rng, rng.randrange(1, 60)), *EDGES):
            found = column(scores, direction)
            order = plain_order(scores, direction)
            assert found.worst_first().tolist() == order
            keys = [badness(score, direction) for score in scores]
            assert found.ranks().tolist() == [1 + sum(other < key for other in keys) for key in keys]
            assert [found.place(k) for k, score in enumerate(scores) if score is not None] == [
                (1 + sum(other < key for other in keys), sum(not other < key and not key < other for other in keys))
                for key, score in zip(keys, scores, strict=True)
                if score is not None
            ]
            for percentile in map(Fraction, ("0", "0.1", "5", "7", "12.5", "33.3", "50", "99.9", "100")):
                assert found.fails(percentile).tolist() == plain_fails(scores, direction, percentile)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_change_against_the_plain_way(direction: Direction) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        length = rng.randrange(0, 80)
        now, before = some_scores(rng, length), some_scores(rng, length)
        found = ranking.change(column(now, direction), column(before, direction))
        order = sorted(range(length), key=lambda k: (plain_worsening(now[k], before[k], direction), k))
        assert found.worst_first().tolist() == order
        for k in range(length):
            a, b = now[k], before[k]
            assert found.missing[k] == (a is None or b is None)
            if a is not None and b is not None:
                expected = 0.0 if a == b else a - b
                assert found.values[k] == expected or (math.isnan(found.values[k]) and math.isnan(expected))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_several_runs_against_the_plain_way(direction: Direction) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        length = rng.randrange(1, 60)
        runs = [some_scores(rng, length) for _ in range(rng.randrange(1, 5))]
        columns = [column(scores, direction) for scores in runs]
        fails = [plain_fails(scores, direction, Fraction(20)) for scores in runs]
        keys = [[badness(score, direction) for score in scores] for scores in runs]
        ranks = [
            [sum(key < each[k] for key in each) if score is not None else length for k, score in enumerate(run)]
            for run, each in zip(runs, keys, strict=True)
        ]
        often = [sum(each[k] for each in fails) for k in range(length)]
        expected = sorted(range(length), key=lambda k: (-often[k], min(run[k] for run in ranks), k))
        assert ranking.common_first(columns, [one.fails(Fraction(20)) for one in columns]).tolist() == expected
        differing = sorted(range(length), key=lambda k: (plain_disagreement([run[k] for run in runs]), k))
        assert ranking.disagreement_first(columns).tolist() == differing


# ---------------------------------------------------------------- by hand
def test_the_worst_are_those_that_a_person_would_name() -> None:
    scores: list[Score] = [0.5, NAN, 0.9, None, INF, -INF, 0.5]
    assert column(scores, "higher").worst_first().tolist() == [1, 5, 0, 6, 2, 4, 3]
    assert column(scores, "lower").worst_first().tolist() == [1, 4, 2, 0, 6, 5, 3]


def test_equal_scores_have_equal_ranks() -> None:
    assert column([0.0, 1.0, 0.0, 1.0, 2.0, None, None], "lower").ranks().tolist() == [4, 2, 4, 2, 1, 6, 6]
    assert column([0.0, 1.0, NAN, NAN, INF, 1.0], "lower").ranks().tolist() == [6, 4, 1, 1, 3, 4]
    assert column([1.0] * 12, "higher").ranks().tolist() == [1] * 12


def test_a_percentage_is_taken_as_it_is_written() -> None:
    """0.07 * 100 is a little more than 7 in binary, and would be rounded up to 8."""
    hundred = column([float(k) for k in range(100)], "higher")
    assert hundred.fails(Fraction("7")).sum() == 7
    assert hundred.fails(Fraction("7.001")).sum() == 8
    assert hundred.fails(Fraction("0")).sum() == 0
    assert hundred.fails().sum() == 5


def test_nan_always_fails_and_a_gap_never() -> None:
    scores: list[Score] = [NAN, NAN, None, 1.0, 2.0]
    assert column(scores, "lower").fails(Fraction(1)).tolist() == [True, True, False, False, False]
    assert column(scores, "lower").fails(Fraction(100)).tolist() == [True, True, False, True, True]


def test_a_column_takes_each_datapoint_from_its_own_place() -> None:
    from endoscope.runs import ScoreTable

    table = ScoreTable(
        None,
        None,
        {"loss": "lower"},
        {},
        {},
        np.array([-4, 17, 101]),
        {"loss": np.array([0.5, NAN, 3.0])},
        {"loss": np.array([False, True, False])},
    )
    found = ranking.column(table, "loss", "lower", np.array([-5, -4, 17, 18, 101, 102]))
    assert found.missing.tolist() == [True, False, True, True, False, True]
    assert found.values[[1, 4]].tolist() == [0.5, 3.0]
    assert ranking.column(table, "other", "lower", table.indices).missing.all()
    assert ranking.column(None, "loss", "lower", table.indices).missing.all()
    whole = ranking.column(table, "loss", "lower", table.indices)  # as it stands there
    assert whole.missing.tolist() == [False, True, False]
    assert whole.fails(Fraction(50)).tolist() == [False, False, True]
