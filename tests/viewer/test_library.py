"""Which runs a server has, and what a query selects of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from starlette.datastructures import QueryParams
from tests.viewer import runs

from endoscope.runs import RunNotFoundError
from endoscope.viewer.library import Library, Refusal
from endoscope.viewer.selection import MAX_RUNS, Selection, epoch_of, needed_epoch


def select(library: Library, **query: object) -> Selection:
    return Selection.of(QueryParams([(key, str(value)) for key, value in query.items()]), library)


def test_runs_have_ids_that_stay_and_are_no_paths(tmp_path: Path) -> None:
    runs.training(tmp_path / "runs" / "first run")
    runs.evaluation(tmp_path / "runs" / "first run" / "eval")
    library = Library([tmp_path / "runs"])
    assert [entry.name for entry in library.entries()] == ["first run", "first run/eval"]
    ids = [entry.id for entry in library.entries()]
    assert len({*ids}) == 2
    assert all(id.replace("-", "").replace("_", "").isalnum() for id in ids)
    assert ids == [entry.id for entry in Library([tmp_path / "runs"]).entries()]
    assert library.run(ids[1]).kind == "evaluation"


def test_a_run_itself_may_be_named_and_is_listed_once(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a")
    library = Library([folder, tmp_path, folder])
    assert [entry.name for entry in library.entries()] == ["a"]


def test_runs_of_the_same_name_are_distinguished(tmp_path: Path) -> None:
    for top in ("x", "y"):
        runs.training(tmp_path / top / "training", epochs=1)
    library = Library([tmp_path / "x" / "training", tmp_path / "y" / "training"])
    assert [entry.name for entry in library.entries()] == ["x/training", "y/training"]


def test_a_folder_given_as_a_relative_path_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.training(tmp_path / "a", epochs=1)
    monkeypatch.chdir(tmp_path / "a")
    assert [entry.name for entry in Library(["."]).entries()] == ["a"]


def test_a_name_that_is_not_utf8_is_shown(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff"))
    runs.training(folder, epochs=1)
    (entry,) = Library([tmp_path]).entries()
    assert entry.name == "run-?"
    entry.name.encode()


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="there is no folder .*nowhere'; give a run's work_dir"):
        Library([tmp_path / "nowhere"])


def test_an_empty_folder_says_so_until_a_run_appears(tmp_path: Path) -> None:
    now = 0.0
    library = Library([runs.empty(tmp_path / "runs")], clock=lambda: now)
    assert library.entries() == []
    assert library.problems == ["there is no run in 'runs' yet"]
    with pytest.raises(Refusal, match="there is no run yet"):
        select(library)
    runs.training(tmp_path / "runs" / "a", epochs=1)
    assert library.entries() == []  # looked at a moment ago
    now += 1.0
    assert [entry.name for entry in library.entries()] == ["a"]
    assert library.problems == []


def test_a_run_that_was_removed_is_refused(tmp_path: Path) -> None:
    import shutil

    now = 0.0
    runs.training(tmp_path / "runs" / "a", epochs=1)
    library = Library([tmp_path / "runs"], clock=lambda: now)
    (entry,) = library.entries()
    assert library.run(entry.id).kind == "training"
    shutil.rmtree(entry.path)
    with pytest.raises(Refusal, match="no longer exists"):
        library.run(entry.id)
    shutil.rmtree(tmp_path / "runs")
    now += 1.0
    assert library.entries() == []
    assert library.problems == ["the folder 'runs' no longer exists"]


def test_links_to_other_folders_are_no_runs(tmp_path: Path) -> None:
    runs.training(tmp_path / "elsewhere", epochs=1)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    assert Library([tmp_path / "runs"]).entries() == []


def test_texts_lose_the_place_of_the_folders(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "runs" / "a", epochs=1)
    library = Library([tmp_path / "runs"])
    assert library.shown(f"{folder}/page_0: cut; see {tmp_path / 'runs'}") == "a/page_0: cut; see runs"


# ---------------------------------------------------------------- selection
@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    top = tmp_path_factory.mktemp("runs")
    runs.crashed(top / "crashed")
    runs.evaluation(top / "evaluation")
    runs.just_started(top / "started")
    runs.training(top / "training")
    return Library([top])


def by_name(library: Library) -> dict[str, str]:
    return {entry.name: entry.id for entry in library.entries()}


def test_a_selection_is_what_the_query_says(library: Library) -> None:
    ids = by_name(library)
    query = QueryParams(
        f"run={ids['training']}&run={ids['evaluation']}&run={ids['training']}&epoch=1&metric=loss&dp=-7"
    )
    selection = Selection.of(query, library)
    assert [entry.name for entry in selection.entries] == ["training", "evaluation"]
    assert [run.kind for run in selection.runs] == ["training", "evaluation"]
    assert (selection.epoch, selection.metric, selection.dp, selection.needed_dp()) == (1, "loss", -7, -7)
    assert selection.entry.name == selection.run.name == "training"


def test_defaults_of_a_selection(library: Library) -> None:
    selection = select(library, epoch="", dp="", metric="")
    assert (selection.entry.name, selection.epoch, selection.metric, selection.dp) == ("crashed", None, None, None)
    with pytest.raises(Refusal, match="names no datapoint"):
        selection.needed_dp()


def test_too_many_runs_are_refused(library: Library) -> None:
    with pytest.raises(Refusal, match=f"{MAX_RUNS + 1} runs are too many"):
        Selection.of(QueryParams([("run", str(k)) for k in range(MAX_RUNS + 1)]), library)


def test_the_epoch_of_a_run(library: Library) -> None:
    ids = by_name(library)
    training, evaluation, crashed, started = (
        library.run(ids[name]) for name in ("training", "evaluation", "crashed", "started")
    )

    def number(run: object, wanted: object) -> object:
        found = epoch_of(run, wanted)  # type: ignore[arg-type]
        return found.number if found is not None else "none"

    assert [number(training, wanted) for wanted in (None, 0, 2, 3, "eval")] == [2, 0, 2, "none", 2]
    assert [number(evaluation, wanted) for wanted in (None, "eval", 4)] == [None, None, None]
    assert number(crashed, None) == 0  # the second epoch has no scores
    assert number(crashed, 1) == 1
    assert number(started, None) == "none"
    with pytest.raises(Refusal, match="this run has no epoch 3") as e:
        needed_epoch(training, 3)
    assert (e.value.status, e.value.hint) == (404, "It has 3, from 0 to 2.")
    with pytest.raises(Refusal, match="no epoch yet"):
        needed_epoch(started)


def test_many_runs_do_not_stay_open(tmp_path: Path) -> None:
    for k in range(40):
        runs.write_about(tmp_path / f"run{k}")
    library = Library([tmp_path])
    opened = [library.run(entry.id) for entry in library.entries()]
    again = [library.run(entry.id) for entry in library.entries()]
    assert len(opened) == 40
    assert not any(a is b for a, b in zip(opened, again, strict=True))  # forty do not fit
    last = library.entries()[-1].id
    assert library.run(last) is again[-1]


@pytest.mark.parametrize("inside", ["", "debugger"])
def test_pages_outside_any_run_are_reported(tmp_path: Path, inside: str) -> None:
    runs.write_pages(tmp_path / "mine" / inside, {(0, 1): runs.seen_of([0, 1])})
    assert Library([tmp_path / "mine"]).problems == [
        "'mine' holds 1 pages but is not a run: move them into 'epoch_0/debugger' inside it"
    ]
