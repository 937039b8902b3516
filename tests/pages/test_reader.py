"""The reader: lazy, verified, content without a catalogue, right about a live run, clear about what it lacks."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.captures import datapoint, debugger, files, opened, write
from tests.sameness import canonical

from endoscope.capturing.snapshot import snapshot
from endoscope.errors import DamagedRecordError, DatapointNotFoundError, FolderInUseError, PageError
from endoscope.pages import catalogue, format
from endoscope.pages.reader import DebugOutputs, load_debug_outputs
from endoscope.pages.store import PageStore, StoreSettings
from endoscope.pages.verify import verify_folder
from endoscope.values import per_datapoint


def values(outputs: DebugOutputs) -> dict[int, Any]:
    return {idx: outputs[idx]["x"] for idx in outputs}


# ---------------------------------------------------------------- a live run
def test_a_live_run_is_read_up_to_its_last_flush(tmp_path: Path) -> None:
    with debugger(tmp_path, page_size_mb=0.01) as d:
        outputs = opened(tmp_path)
        assert (len(outputs), outputs.pages) == (0, ())
        for idx in range(40):
            d.add_to_buffer({"x": idx, "t": torch.full((100,), idx)}, datapoint(idx))
            if idx % 10 == 9:
                assert d.flush()
                outputs.refresh()
                assert values(outputs) == {k: k for k in range(idx + 1)}
                assert outputs[idx]["t"].tolist() == [idx] * 100
                assert outputs.damage == []
        assert not outputs.pages[-1].closed
        assert verify_folder(tmp_path) == []
    outputs.refresh()
    assert len(outputs) == 40
    assert all(p.closed for p in outputs.pages)


@pytest.mark.parametrize("value", [torch.empty(0), torch.empty(3, 0), {"a": torch.empty(0), "b": 1}, "text"], ids=repr)
def test_a_live_run_whose_first_records_have_no_bytes(value: Any, tmp_path: Path) -> None:
    with debugger(tmp_path) as d:
        d.add_to_buffer({"x": value}, datapoint(0))
        d.flush()
        assert canonical(opened(tmp_path)[0]["x"]) == canonical(value)
        assert verify_folder(tmp_path) == []


def test_records_written_after_opening_are_seen_after_refresh_only(tmp_path: Path) -> None:
    with debugger(tmp_path) as d:
        d.add_to_buffer({"x": 1}, datapoint(0))
        d.flush()
        outputs = opened(tmp_path)
        d.add_to_buffer({"x": 2}, datapoint(1))
        d.add_to_buffer({"x": 3}, datapoint(0))
        d.flush()
        assert values(outputs) == {0: 1}
        outputs.refresh()
        assert values(outputs) == {0: 3, 1: 2}


def test_a_capture_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    write(tmp_path, [(0, {"x": "old", "t": torch.zeros(5)})])
    outputs = opened(tmp_path)
    assert values(outputs) == {0: "old"}
    write(tmp_path, [(0, {"x": "new", "t": torch.ones(7)}), (1, {"x": "more"})], overwrite=True)
    outputs.refresh()
    assert values(outputs) == {0: "new", 1: "more"}
    assert outputs.damage == []


@pytest.mark.parametrize("catalogue", ["kept", "deleted"])
def test_a_live_capture_that_was_replaced_is_read_anew(catalogue: str, tmp_path: Path) -> None:
    with debugger(tmp_path) as d:
        d.add_to_buffer({"x": "old"}, datapoint(0))
        d.flush()
        outputs = opened(tmp_path)
        assert values(outputs) == {0: "old"}
    with debugger(tmp_path, overwrite=True) as d:
        d.add_to_buffer({"x": "new"}, datapoint(0))
        d.flush()
        if catalogue == "kept":
            d.close()
        outputs.refresh()
        assert values(outputs) == {0: "new"}


def test_a_reader_beside_a_busy_writer_sees_whole_records_and_no_damage(tmp_path: Path) -> None:
    """Pages come, grow and close while the reader looks: whatever the moment, that is not damage."""

    def write_all() -> None:
        with debugger(tmp_path, page_size_mb=0.004) as d:
            for idx in range(400):
                d.add_to_buffer({"x": idx, "t": torch.full((200,), idx)}, datapoint(idx))

    damage: set[str] = set()
    seen = looks = 0
    with ThreadPoolExecutor(1) as pool, opened(tmp_path) as outputs:
        writing = pool.submit(write_all)
        while not writing.done():
            outputs.refresh()
            damage |= {str(d) for d in outputs.damage}
            if looks % 10 == 0:
                damage |= {str(d) for d in verify_folder(tmp_path)}
            indices = list(outputs)
            assert indices == list(range(len(indices)))
            assert len(indices) >= seen
            for idx in indices[-5:]:
                assert canonical(outputs[idx]) == canonical({"x": idx, "t": torch.full((200,), idx)})
            seen, looks = len(indices), looks + 1
    assert looks > 20
    assert damage == set()


def test_a_capture_that_goes_on_after_a_save(tmp_path: Path) -> None:
    with debugger(tmp_path, page_size_mb=0.01) as d:
        for k in range(3):
            for idx in range(20):
                d.add_to_buffer({"x": (k, idx), "t": torch.ones(400)}, datapoint(idx + k))
            assert d.save_all(tmp_path).complete
            outputs = opened(tmp_path)
            assert values(outputs) == {i: (min(k, i), i - min(k, i)) for i in range(20 + k)}
            assert verify_folder(tmp_path) == []
            assert all(page.closed for page in outputs.pages)


# ---------------------------------------------------------------- the catalogue is a cache
@pytest.fixture
def fifty(tmp_path: Path) -> Path:
    """Fifty pages or more; the 200 datapoints were written from the last to the first."""
    write(
        tmp_path, [(k, {"x": k, "t": torch.full((400,), float(k))}) for k in reversed(range(200))], page_size_mb=0.007
    )
    assert len(files(tmp_path, "safetensors")) >= 50
    return tmp_path


def check_fifty(folder: Path) -> None:
    outputs = opened(folder)
    assert list(outputs) == list(range(200))
    for idx in (0, 57, 123, 199):
        assert canonical(outputs[idx]) == canonical({"x": idx, "t": torch.full((400,), float(idx))})
    assert outputs.damage == []


def test_fifty_pages(fifty: Path) -> None:
    check_fifty(fifty)
    outputs = opened(fifty)
    assert values(outputs) == {k: k for k in range(200)}
    assert outputs.records == 200
    assert repr(outputs) == f"<DebugOutputs {str(fifty)!r}: 200 datapoints in {len(outputs.pages)} pages>"


def test_a_catalogue_that_is_missing_outdated_or_torn(fifty: Path) -> None:
    path = fifty / "catalogue.jsonl"
    whole = path.read_bytes()
    for held in (b"", whole[:100], whole[:-1], whole + whole, b"rubbish\n" + whole, whole[::-1]):
        path.write_bytes(held)
        check_fifty(fifty)
    path.unlink()
    check_fifty(fifty)


def test_a_catalogue_of_an_unfinished_run(tmp_path: Path) -> None:
    """While a run writes, its catalogue covers the closed pages only."""
    with debugger(tmp_path, page_size_mb=0.01) as d:
        for idx in range(30):
            d.add_to_buffer({"x": idx, "t": torch.ones(400)}, datapoint(idx))
        d.flush()
        lines = (tmp_path / "catalogue.jsonl").read_bytes().splitlines()
        assert 0 < len(lines) < len(files(tmp_path, "safetensors"))
        assert values(opened(tmp_path)) == {k: k for k in range(30)}
        for missing in range(len(lines)):  # a line that was lost is made good from the page
            rest = b"".join(line + b"\n" for k, line in enumerate(lines) if k != missing)
            (tmp_path / "catalogue.jsonl").write_bytes(rest)
            assert values(opened(tmp_path)) == {k: k for k in range(30)}


def test_the_latest_wins_whatever_the_catalogue_covers(tmp_path: Path) -> None:
    with debugger(tmp_path, page_size_mb=0.01) as d:
        for k in range(24):
            d.add_to_buffer({"x": k, "t": torch.ones(400)}, datapoint(k % 2))
        d.flush()
        lines = (tmp_path / "catalogue.jsonl").read_bytes().splitlines(keepends=True)
        assert len(lines) > 3
    (tmp_path / "catalogue.jsonl").write_bytes(lines[0] + lines[3])
    assert values(opened(tmp_path)) == {0: 22, 1: 23}
    with debugger(tmp_path / "again", page_size_mb=0.01) as d:  # lines of a merged catalogue cover several pages
        for k in range(24):
            d.add_to_buffer({"x": k, "t": torch.ones(400)}, datapoint(k % 2))
    merged = (tmp_path / "again" / "catalogue.jsonl").read_bytes()
    members = json.loads(merged)
    pages = [name for name, *_ in members["pages"]]
    keep = [p for p in pages if p != pages[2]]
    (tmp_path / "again" / "catalogue.jsonl").write_bytes(without_page(members, 2))
    outputs = opened(tmp_path / "again")
    assert values(outputs) == {0: 22, 1: 23}
    assert {p.name for p in outputs.pages} == {*keep, pages[2]}


def without_page(members: dict[str, Any], page: int) -> bytes:
    """A catalogue line of which one page was left out, as after a failed append."""
    import base64

    assert "counts" not in members
    records = [count for *_, count in members["pages"]]
    kept = np.repeat(np.arange(len(records)), records) != page
    arrays = {k: np.frombuffer(base64.b64decode(members[k]), "<i8")[kept] for k in ("indices", "ends")}
    pages = [p for k, p in enumerate(members["pages"]) if k != page]
    encoded = {k: base64.b64encode(a.tobytes()).decode() for k, a in arrays.items()}
    return format.sealed({"catalogue": 1, "pages": pages, **encoded})


def test_a_page_that_is_gone_does_not_hide_later_records(tmp_path: Path) -> None:
    write(tmp_path, [(k % 2, {"x": k, "t": torch.ones(400)}) for k in range(24)], page_size_mb=0.01)
    for file in tmp_path.glob("page_0.*"):
        file.unlink()
    outputs = opened(tmp_path)
    assert values(outputs) == {0: 22, 1: 23}
    assert [d.file for d in outputs.damage] == ["page_0.jsonl"]


def test_the_catalogue_of_millions_of_datapoints_fits_into_its_lines() -> None:
    """Longer lines than the longest would be taken for damage, and every page be read to find one datapoint."""
    number = np.arange(300_000)
    pages = [
        catalogue.Index(
            (catalogue.PageInfo(f"page_{k}"),), number, number * 0 + 1, number * 200, number * 200 + 200, number * 0
        )
        for k in range(8)
    ]
    lines = [catalogue.encode(index) for index in catalogue.merged(pages)]
    assert len(lines) < len(pages) + 1
    assert max(map(len, lines)) < format.MAX_LINE
    assert sum(len(catalogue.decode(line[:-1])) for line in lines) == 8 * 300_000


def test_only_the_page_of_a_datapoint_is_opened(fifty: Path) -> None:
    before = open_files()
    outputs = opened(fifty)
    assert open_files() == before
    assert outputs[57]["x"] == 57
    assert len(open_files() - before) == 2
    outputs.close()
    assert open_files() == before
    assert outputs[58]["x"] == 58
    del outputs
    assert open_files() == before


def open_files() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return {name for name in found if "page_" in name or "catalogue" in name}


# ---------------------------------------------------------------- several ranks
def write_rank(
    folder: Path, rank: int, world: int, monkeypatch: pytest.MonkeyPatch, indices: range, **settings: Any
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))
    store = PageStore(folder, StoreSettings(page_size=8_000, queue_bytes=1 << 20, **settings))
    for idx in indices:
        store.put(idx, {"x": snapshot({"rank": rank, "t": torch.full((300,), idx)})}, {})
    store.close()


@pytest.mark.parametrize("catalogues", ["kept", "deleted"])
def test_pages_of_several_ranks_are_one_capture(
    catalogues: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(3):
        write_rank(tmp_path, rank, 3, monkeypatch, range(rank, 30, 3))
    assert {re.sub(r"page_\d+", "page_N", f.name) for f in tmp_path.iterdir()} == {
        f"{kind}_rank_{r}.{suffix}"
        for r in range(3)
        for kind, suffix in [("page_N", "jsonl"), ("page_N", "safetensors"), ("catalogue", "jsonl")]
    }
    if catalogues == "deleted":
        for file in tmp_path.glob("catalogue*"):
            file.unlink()
    outputs = opened(tmp_path)
    assert {k: v["rank"] for k, v in values(outputs).items()} == {k: k % 3 for k in range(30)}
    assert all((outputs[k]["x"]["t"] == k).all() for k in outputs)
    assert verify_folder(tmp_path) == []


def test_one_rank_killed_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank, 2, monkeypatch, range(rank, 10, 2))
    for file in tmp_path.glob("*_rank_1.*"):
        file.write_bytes(b"")
    outputs = opened(tmp_path)
    assert list(outputs) == [0, 2, 4, 6, 8]


def test_ranks_replace_their_own_pages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank, 2, monkeypatch, range(rank, 10, 2))
    with pytest.raises(FolderInUseError, match="already holds pages"):
        write_rank(tmp_path, 1, 2, monkeypatch, range(1))
    write_rank(tmp_path, 1, 2, monkeypatch, range(100, 102), overwrite=True)
    assert list(opened(tmp_path)) == [0, 2, 4, 6, 8, 100, 101]


# ---------------------------------------------------------------- one debugger alone
def test_one_debugger_is_read_without_the_others(tmp_path: Path) -> None:
    given = {name: torch.full((50,), float(k)) for k, name in enumerate(["first", "second", "third"])}
    write(tmp_path, [(0, {**given, "text": "t"})], page_size_mb=0.01)
    page = tmp_path / "page_0.safetensors"
    data = bytearray(page.read_bytes())
    line = json.loads((tmp_path / "page_0.jsonl").read_bytes().splitlines()[1])
    data[line["at"] + line["outputs"]["second"]["at"] + 17] ^= 1
    page.write_bytes(data)
    outputs = opened(tmp_path)
    assert outputs.list(0) == ["first", "second", "third", "text"]
    assert canonical([outputs.read(0, n) for n in ("first", "third", "text")]) == canonical(
        [given["first"], given["third"], "t"]
    )
    with pytest.raises(
        DamagedRecordError, match=r"page_0\.safetensors, record 0, datapoint 0: checksum of the tensors does not match"
    ):
        outputs.read(0, "second")
    with pytest.raises(DamagedRecordError):
        outputs[0]
    [damage] = outputs.damage
    assert str(damage) == "page_0.safetensors, record 0 (datapoint 0): checksum of the tensors does not match"


def test_one_datapoint_of_a_batch_is_read_without_the_others(tmp_path: Path) -> None:
    batch = torch.arange(8 * 4000, dtype=torch.float32).reshape(8, 4000)
    write(tmp_path, [([*range(8)], {"x": batch})])
    page = tmp_path / "page_0.safetensors"
    data = bytearray(page.read_bytes())
    data[-5 * 16_000 + 40] ^= 1  # in the fourth datapoint
    page.write_bytes(data)
    outputs = opened(tmp_path)
    assert all(torch.equal(outputs[j]["x"], batch[j : j + 1]) for j in range(8) if j != 3)
    with pytest.raises(DamagedRecordError, match="datapoint 3"):
        outputs[3]
    assert [d.indices for d in verify_folder(tmp_path)] == [tuple(range(8))]


def test_reads_of_one_debugger_touch_only_its_bytes(tmp_path: Path) -> None:
    """The rest of the page may even be missing."""
    write(tmp_path, [(0, {"first": torch.ones(1000), "last": torch.ones(100_000)})])
    page = tmp_path / "page_0.safetensors"
    os.truncate(page, page.stat().st_size - 300_000)
    outputs = opened(tmp_path)
    assert outputs.read(0, "first").sum() == 1000
    with pytest.raises(DamagedRecordError, match="file ends before byte"):
        outputs.read(0, "last")


# ---------------------------------------------------------------- what a reader says
@pytest.fixture
def small(tmp_path: Path) -> Path:
    store = PageStore(tmp_path / "debugger", StoreSettings(page_size=100_000, queue_bytes=1 << 20))
    notes = {"absent": {"head": "the layer did not run in this forward"}, "failures": {"bad": "ValueError: no"}}
    store.put(17, {"stage4": snapshot(torch.ones(3))}, notes)
    store.put([20, 21], {"each": snapshot(per_datapoint(["a", "b"]))}, {})
    store.close()
    return tmp_path


def test_the_folder_or_the_one_above_it(small: Path) -> None:
    assert list(load_debug_outputs(small)) == list(load_debug_outputs(str(small / "debugger"))) == [17, 20, 21]


@pytest.mark.parametrize("idx", [18, -1, 2**70, -(2**70), np.int64(5), np.uint64(2**64 - 1)])
def test_a_datapoint_that_is_not_there(idx: Any, small: Path) -> None:
    outputs = opened(small)
    assert idx not in outputs
    expected = f"no datapoint {idx} in {str(small / 'debugger')!r}, which holds 3 datapoints, 17 to 21"
    with pytest.raises(KeyError, match=f"^{re.escape(expected)}$") as e:
        outputs[idx]
    assert isinstance(e.value, DatapointNotFoundError)


@pytest.mark.parametrize("idx", ["17", 17.0, 17.5, None, (17,), float("inf"), True, b"17"], ids=repr)
def test_what_is_no_index(idx: Any, small: Path) -> None:
    outputs = opened(small)
    assert idx not in outputs
    with pytest.raises(
        DatapointNotFoundError, match=f"a datapoint is found by its integer index, not by {type(idx).__name__}"
    ):
        outputs[idx]
    assert outputs.get(idx, "absent") == "absent"
    assert outputs.damage == []


@pytest.mark.parametrize("idx", [17, np.int64(17), np.uint8(17)], ids=repr)
def test_integers_of_any_kind_are_indices(idx: Any, small: Path) -> None:
    outputs = opened(small)
    assert idx in outputs
    assert outputs[idx]["stage4"].tolist() == [1, 1, 1]


def test_a_debugger_that_gave_nothing(small: Path) -> None:
    outputs = opened(small)
    with pytest.raises(DatapointNotFoundError) as e:
        outputs.read(17, "head")
    assert (
        str(e.value) == "datapoint 17 has nothing from 'head': the layer did not run in this forward; it has ['stage4']"
    )
    with pytest.raises(DatapointNotFoundError, match=r"nothing from 'bad': ValueError: no; it has \['stage4'\]"):
        outputs.read(17, "bad")
    with pytest.raises(DatapointNotFoundError, match=r"datapoint 20 has nothing from 'stage4'; it has \['each'\]"):
        outputs.read(20, "stage4")
    assert outputs.notes(17)["failures"] == {"bad": "ValueError: no"}
    assert outputs.notes(21) == {}


def test_folders_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=f"there is no folder {str(tmp_path / 'no')!r}"):
        load_debug_outputs(tmp_path / "no")
    with pytest.raises(DatapointNotFoundError, match=r"which holds no datapoint$"):
        load_debug_outputs(tmp_path)[0]
    for epoch in ("epoch_1", "epoch_2"):
        (tmp_path / epoch).mkdir()
    with pytest.raises(PageError, match=rf"holds 2 epochs; choose one, such as '{re.escape(str(tmp_path))}/epoch_2'"):
        load_debug_outputs(tmp_path)


def test_a_damaged_record_names_its_file(small: Path) -> None:
    page = small / "debugger" / "page_0.safetensors"
    data = bytearray(page.read_bytes())
    data[-3] ^= 1
    line = json.loads((small / "debugger" / "page_0.jsonl").read_bytes().splitlines()[1])
    data[line["at"]] ^= 1
    page.write_bytes(data)
    with pytest.raises(DamagedRecordError) as e:
        opened(small)[17]
    assert str(e.value) == f"{page}, record 0, datapoint 17: checksum of the tensors does not match"
    assert isinstance(e.value, (OSError, ValueError))


def test_what_is_lost_is_told_with_a_datapoint_that_is_not_found(small: Path) -> None:
    lines = (small / "debugger" / "page_0.jsonl").read_bytes()
    (small / "debugger" / "page_0.jsonl").write_bytes(lines.replace(b"stage4", b"stage5"))
    (small / "debugger" / "catalogue.jsonl").unlink()
    with pytest.raises(DatapointNotFoundError, match=r"; 1 damaged record\(s\) may have held it, see \.damage$"):
        opened(small)[17]
    [damage] = opened(small).damage
    assert str(damage) == "page_0.jsonl, record 0: checksum of the line does not match; it seems to be of datapoint 17"


def test_a_page_moved_away_is_told(small: Path) -> None:
    shutil.move(small / "debugger" / "page_0.jsonl", small / "elsewhere")
    outputs = opened(small)
    with pytest.raises(DamagedRecordError, match=r"page_0\.jsonl is missing"):
        outputs[17]
    assert all("page_0.jsonl" in str(damage) and "missing" in str(damage) for damage in outputs.damage)
    assert outputs.damage


@pytest.mark.parametrize("catalogue", ["kept", "deleted"])
def test_a_closed_page_that_was_cut_is_told(catalogue: str, small: Path) -> None:
    page = small / "debugger" / "page_0.safetensors"
    written = page.stat().st_size
    os.truncate(page, written - 1)
    if catalogue == "deleted":
        (small / "debugger" / "catalogue.jsonl").unlink()
    [damage] = opened(small).damage
    assert str(damage) == f"page_0.safetensors: {written - 1} bytes long, written as {written}"
    assert damage in verify_folder(small / "debugger")


def test_lines_that_were_cut_beside_a_catalogue_are_told(small: Path) -> None:
    lines = small / "debugger" / "page_0.jsonl"
    content = lines.read_bytes()
    lines.write_bytes(content[: content.rindex(b'{"closed"')])
    assert [str(damage) for damage in opened(small).damage] == ["page_0.jsonl: the closing line is missing"]
    lines.write_bytes(content[:-10])
    assert [str(damage) for damage in opened(small).damage] == ["page_0.jsonl: checksum of the line does not match"]


def test_a_page_with_a_torn_end_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PageStore(tmp_path, StoreSettings(page_size=100_000, queue_bytes=1 << 20))
    store.put(0, {"x": snapshot(torch.ones(3))}, {})
    assert store.flush()

    def broken(*args: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:  # what was written of the record cannot be taken back
        patched.setattr(os, "writev", broken)
        patched.setattr(os, "ftruncate", broken)
        store.put(1, {"x": snapshot(torch.ones(3))}, {})
        assert not store.flush()
    store.put(2, {"x": snapshot(torch.ones(3))}, {})
    store.close()
    outputs = opened(tmp_path)
    assert ([*outputs], outputs.damage, outputs.verify()) == ([0, 2], [], [])


def test_a_fault_in_a_line_counts_once(small: Path) -> None:
    (small / "debugger" / "catalogue.jsonl").unlink()
    with (small / "debugger" / "page_0.jsonl").open("ab") as lines:
        lines.write(b"junk\n")
    assert len(opened(small).damage) == 1


def test_a_file_that_cannot_be_opened_now_is_not_damaged(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, real = opened(small), os.open
    full = OSError(errno.EMFILE, "Too many open files")

    def refused(path: Any, *rest: Any, **more: Any) -> int:
        if "page_0" in os.fspath(path):
            raise full
        return real(path, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refused)
        assert outputs.damage == []
    page = small / "debugger" / "page_0.safetensors"
    os.truncate(page, page.stat().st_size - 1)
    assert len(outputs.damage) == 1  # looked at when it could be opened


def test_lengths_are_looked_at_once_and_never_to_find_a_datapoint(fifty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening: list[object] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: opening.append(path) or real(path, *rest, **more))  # type: ignore[func-returns-value]
    outputs = opened(fifty)
    assert 57 in outputs and 1000 not in outputs
    assert outputs[57]
    assert len(opening) <= 3  # catalogue, lines, tensors
    assert outputs.damage == []
    looked = len(opening)
    assert looked >= 100
    assert outputs.damage == []
    assert len(opening) == looked


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\x80\x04", b"\x80\x04]\x94."], ids=repr)
def test_a_damaged_pickle_page_names_its_file(damage: bytes, tmp_path: Path) -> None:
    write(tmp_path, [(0, {"x": 1})], page_format="pickle")
    (tmp_path / "page_0.pkl").write_bytes(damage)
    with pytest.raises(PageError, match=r"page_0\.pkl"):
        load_debug_outputs(tmp_path, trust_pickle=True)
