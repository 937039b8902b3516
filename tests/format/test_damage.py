"""Damage on disk is noticed: a datapoint reads as it was written or not at all, and what was not hit stays readable."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from tests.captures import files, opened, write
from tests.sameness import Form, canonical

from endoscope.errors import DamagedRecordError, DatapointNotFoundError, PageFormatError
from endoscope.pages import format
from endoscope.pages.verify import verify_folder
from endoscope.values import per_datapoint

FLIPS = 700
"""With the catalogue, and as many without it."""

RECORDS: list[tuple[Any, dict[str, Any]]] = [
    (3, {"stage1": {"map": torch.randn(4, 5), "name": "conv"}, "score": 0.25}),
    ([10, 11], {"stage1": torch.randn(2, 6), "each": per_datapoint(["a", "b"]), "flag": torch.tensor([True, False])}),
    (4, {"text": "only text, no tensor", "n": [1, 2.5, None]}),
    (5, {"stage1": torch.arange(7, dtype=torch.uint8), "stage2": torch.randn(20, 20).half()}),
    ([1, 0, 2], {"stage1": torch.randn(3, 2, 2), "shared": torch.arange(5)}),
    (-7, {"stage1": {"wide": torch.randn(3, dtype=torch.complex128), "many": [torch.randn(2), torch.ones(1).int()]}}),
]


@dataclass(frozen=True)
class Capture:
    """A closed capture, what it must give, and which datapoints each byte of it belongs to."""

    folder: Path
    expected: dict[int, Form]
    owners: dict[str, list[tuple[range, tuple[int, ...]]]]

    def hit(self, file: str, at: int) -> set[int]:
        """The datapoints that damage at this byte may take."""
        return {i for span, indices in self.owners[file] if at in span for i in indices}

    def is_padding(self, file: str, at: int) -> bool:
        return file.endswith(".safetensors") and not any(at in span for span, _ in self.owners[file])


def _owners(folder: Path) -> dict[str, list[tuple[range, tuple[int, ...]]]]:
    found: dict[str, list[tuple[range, tuple[int, ...]]]] = {"catalogue.jsonl": []}
    for page in files(folder, "safetensors"):
        text = page.with_suffix(".jsonl")
        lines, data = [], []
        at, whole_page = 0, []
        for raw in text.read_bytes().splitlines(keepends=True):
            line = json.loads(raw)
            indices = line.get("idx", [])
            indices = tuple(indices) if isinstance(indices, list) else (indices,)
            whole_page += indices
            lines.append((range(at, at + len(raw)), indices))
            at += len(raw)
            for block in line.get("outputs", {}).values():
                if "bytes" in block:
                    first = line["at"] + block["at"]
                    data.append((range(first, first + block["bytes"]), indices))
        lines[0] = (lines[0][0], tuple(whole_page))  # without its first line a page may be refused
        data.append((range(json.loads(text.read_bytes().splitlines()[0])["data_start"]), ()))
        found |= {text.name: lines, page.name: data}
    return found


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    folder = write(tmp_path_factory.mktemp("capture"), RECORDS, page_size_mb=0.0025)
    assert len(files(folder, "safetensors")) >= 3
    outputs = opened(folder)
    expected = {idx: canonical(outputs[idx]) for idx in outputs}
    assert len(expected) == 9
    assert verify_folder(folder) == []
    return Capture(folder, expected, _owners(folder))


@contextmanager
def changed(file: Path, change: Callable[[bytearray], None]) -> Iterator[None]:
    original = file.read_bytes()
    data = bytearray(original)
    change(data)
    file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(original)


def reading(capture: Capture, file: str) -> Counter[str]:
    """Read every datapoint; count what became of them. Anything but the original or a named refusal fails."""
    became: Counter[str] = Counter()
    with opened(capture.folder) as outputs:
        extra = set(outputs) - set(capture.expected)
        assert not extra, f"datapoints that were never written: {extra}"
        for idx, expected in capture.expected.items():
            try:
                got = canonical(outputs[idx])
            except DamagedRecordError as e:
                became[f"damaged {idx}" if Path(file).stem in str(e) else f"wrongly named {idx}: {e}"] += 1
            except DatapointNotFoundError:
                assert file in {d.file for d in outputs.damage}, outputs.damage
                became[f"not found {idx}"] += 1
            except PageFormatError as e:
                raise AssertionError(f"an error that names no datapoint: {e}") from e
            else:
                became["same" if got == expected else f"wrong {idx}"] += 1
    return became


def lost(became: Counter[str]) -> set[int]:
    return {int(re.findall(r"-?\d+", kind)[0]) for kind in became if kind != "same"}


def wrong(became: Counter[str]) -> list[str]:
    return [kind for kind in became if kind.startswith("wrong")]


@pytest.mark.parametrize("catalogue", ["kept", "deleted"])
def test_a_flipped_bit_is_noticed_and_takes_only_its_record(catalogue: str, capture: Capture, tmp_path: Path) -> None:
    folder = shutil.copytree(capture.folder, tmp_path / "copy")
    if catalogue == "deleted":
        (folder / "catalogue.jsonl").unlink()
    copy = Capture(folder, capture.expected, capture.owners)
    rng = random.Random(catalogue)
    faults = []
    for file, at, bit in places(copy, rng, FLIPS):
        with changed(folder / file, lambda data, at=at, bit=bit: data.__setitem__(at, data[at] ^ 1 << bit)):
            became = reading(copy, file)
            reported = {d.file.split(".")[0] for d in verify_folder(folder)}
        where = f"{file} byte {at} bit {bit}"
        if wrong(became):
            faults.append(f"{where}: {wrong(became)}")
        if not lost(became) <= copy.hit(file, at):
            faults.append(f"{where}: took {lost(became)}, hit {copy.hit(file, at)}")
        if not copy.is_padding(file, at) and file.split(".")[0] not in reported:
            faults.append(f"{where}: not reported by verify_folder")
    assert faults == []


def places(capture: Capture, rng: random.Random, count: int) -> Iterator[tuple[str, int, int]]:
    """Where to flip: every newline of every line file, then anywhere, the tensors more often than the reserve."""
    present = [f for f in capture.folder.iterdir() if f.suffix != ".part"]
    for file in present:
        if file.suffix == ".jsonl":
            data = file.read_bytes()
            yield from ((file.name, at, bit) for at in range(len(data)) if data[at] == 10 for bit in (0, 5))
    for _ in range(count):
        file = rng.choice(present)
        size = file.stat().st_size
        start = capture.owners[file.name][-1][0].stop if file.suffix == ".safetensors" and rng.random() < 0.7 else 0
        yield file.name, rng.randrange(min(start, size - 1), size), rng.randrange(8)


class _EqualToAll(str):
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


class _NoChecksum:
    def update(self, data: object) -> None: ...

    def hexdigest(self) -> str:
        return _EqualToAll()


def test_twin_without_checksums_wrong_values_are_seen(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xxhash, "xxh3_64", _NoChecksum)
    monkeypatch.setattr(format, "is_sealed", lambda line: True)
    seen: Counter[str] = Counter()
    starts = {"page_0.safetensors": capture.owners["page_0.safetensors"][-1][0].stop, "page_0.jsonl": 150}
    for file, start in starts.items():
        for at in range(start, (capture.folder / file).stat().st_size, 3):
            with changed(capture.folder / file, lambda data, at=at: data.__setitem__(at, data[at] ^ 4)):
                try:
                    seen[file] += len(wrong(reading(capture, file)))
                except AssertionError:
                    continue
    assert seen["page_0.safetensors"] > 20
    assert seen["page_0.jsonl"] > 3


# ---------------------------------------------------------------- truncation, insertion, deletion
@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """A single small page without its catalogue."""
    folder = write(tmp_path_factory.mktemp("pair"), RECORDS[:3], page_size_mb=0.01)
    (folder / "catalogue.jsonl").unlink()
    assert len(files(folder, "safetensors")) == 1
    outputs = opened(folder)
    return Capture(folder, {idx: canonical(outputs[idx]) for idx in outputs}, _owners(folder))


def after_cut(capture: Capture, file: str, at: int) -> set[int]:
    """The datapoints that reach beyond byte ``at``; all of them when the first line does."""
    return {i for span, indices in capture.owners[file] if span.stop > at for i in indices}


@pytest.mark.parametrize("file", ["page_0.jsonl", "page_0.safetensors"])
def test_truncation_at_every_byte(file: str, pair: Capture) -> None:
    path = pair.folder / file
    size = path.stat().st_size
    faults = []
    reserve = range(0, pair.owners[file][-1][0].stop, 37) if file.endswith(".safetensors") else range(0)
    for at in [*reserve, *range(reserve.stop, size)]:
        with changed(path, lambda data, at=at: data.__delitem__(slice(at, None))):
            became = read_what_is_left(pair, file)
            # Lines may be cut so that nothing tells of a record without tensors: it looks like a run that was killed.
            telling = file.endswith(".safetensors") or lost(became) & {3, 10, 11}
            if not (at % 4 or verify_folder(pair.folder)) and telling:
                faults.append(f"{at}: not reported")
        if wrong(became) or not lost(became) <= after_cut(pair, file, at):
            faults.append(f"{at}: {sorted(became)}")
    assert faults == []


def read_what_is_left(capture: Capture, file: str) -> Counter[str]:
    """Like `reading`; but a cut line file may end so that nothing tells of what followed."""
    became: Counter[str] = Counter()
    with opened(capture.folder) as outputs:
        for idx, expected in capture.expected.items():
            try:
                became["same" if canonical(outputs[idx]) == expected else f"wrong {idx}"] += 1
            except DamagedRecordError as e:
                became[f"damaged {idx}" if Path(file).stem in str(e) else f"wrongly named {idx}: {e}"] += 1
            except DatapointNotFoundError:
                became[f"not found {idx}"] += 1
    return became


@pytest.mark.parametrize("file", ["page_0.jsonl", "page_0.safetensors"])
@pytest.mark.parametrize("kind", ["insert", "delete"])
def test_a_byte_too_many_or_too_few(kind: str, file: str, pair: Capture) -> None:
    path = pair.folder / file
    rng = random.Random(kind + file)
    data_start = pair.owners["page_0.safetensors"][-1][0].stop
    first = data_start - 20 if file.endswith(".safetensors") else 0
    faults = []
    for at in range(first, path.stat().st_size):

        def change(data: bytearray, at: int = at) -> None:
            if kind == "insert":
                data.insert(at, rng.randrange(256))
            else:
                del data[at]

        with changed(path, change):
            became = read_what_is_left(pair, file)
            found = verify_folder(pair.folder)
        if wrong(became) or not found or not lost(became) <= after_cut(pair, file, at):
            faults.append(f"{at}: {sorted(became)}, {found}")
    assert faults == []


def test_a_line_that_is_gone_altogether(pair: Capture) -> None:
    """A whole line cut out leaves valid lines: the closing line knows how many there were."""
    path = pair.folder / "page_0.jsonl"
    for span, indices in pair.owners[path.name][1:-1]:
        with changed(path, lambda data, span=span: data.__delitem__(slice(span.start, span.stop))):
            became = read_what_is_left(pair, path.name)
            assert lost(became) == set(indices)
            assert verify_folder(pair.folder)


def test_pages_of_another_capture_are_not_mixed_up(capture: Capture, tmp_path: Path) -> None:
    """Someone copied one file of a page over: its tensors are not those of the lines."""
    other = write(tmp_path / "other", RECORDS[3:] + RECORDS[:3], page_size_mb=0.0025)
    mixed = shutil.copytree(capture.folder, tmp_path / "mixed")
    shutil.copyfile(other / "page_0.safetensors", mixed / "page_0.safetensors")
    became = reading(Capture(mixed, capture.expected, {}), "page_0.safetensors")
    assert wrong(became) == []
    assert {d.file for d in verify_folder(mixed)} == {"page_0.safetensors"}


@pytest.mark.parametrize("suffix", ["jsonl", "safetensors"])
def test_a_missing_file_of_a_page_takes_only_that_page(suffix: str, capture: Capture, tmp_path: Path) -> None:
    folder = shutil.copytree(capture.folder, tmp_path / "copy")
    held = capture.owners["page_1.jsonl"][0][1]
    (folder / f"page_1.{suffix}").unlink()
    for catalogue in ("kept", "deleted"):
        if catalogue == "deleted":
            (folder / "catalogue.jsonl").unlink()
        became = reading(
            Capture(folder, capture.expected, {}), f"page_1.{suffix}" if suffix == "safetensors" else "page_1.jsonl"
        )
        assert wrong(became) == []
        assert lost(became) <= set(held)
        assert any("page_1" in d.file for d in verify_folder(folder))


@pytest.mark.parametrize("left", [0, 1, 40])
def test_a_line_file_cut_to_nothing_beside_its_tensors_is_damage(left: int, pair: Capture, tmp_path: Path) -> None:
    """A page that was hardly begun has no tensors yet; these are there, and nothing tells what they are."""
    folder = shutil.copytree(pair.folder, tmp_path / "copy")
    os.truncate(folder / "page_0.jsonl", left)
    assert {d.file.split(".")[0] for d in opened(folder).damage} == {"page_0"}
    assert {d.file.split(".")[0] for d in verify_folder(folder)} == {"page_0"}


def test_a_lost_newline_between_long_lines_takes_no_other_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lines that run into one can be longer than any line that is written: the rest of the page is still read."""
    write(tmp_path, [(k, {"text": "x" * 900_000}) for k in range(8)], page_size_mb=50)
    (tmp_path / "catalogue.jsonl").unlink()
    monkeypatch.setattr(format, "MAX_LINE", 1_000_000)
    data = (tmp_path / "page_0.jsonl").read_bytes()
    newlines = [at for at, byte in enumerate(data) if byte == 10][1:-1]
    readable = []
    for at in newlines:
        with changed(tmp_path / "page_0.jsonl", lambda d, at=at: d.__setitem__(at, 11)):
            readable.append(len(opened(tmp_path)))
    assert min(readable) >= 6
