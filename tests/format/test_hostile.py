"""Files made by an enemy, with valid checksums: refused in seconds and little memory; the rest stays readable."""

from __future__ import annotations

import base64
import json
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from safetensors.torch import save_file
from tests.captures import opened
from tests.format.opening import GOOD, GOOD_VALUE
from tests.sameness import canonical
from tests.warm import Outcome, WarmProcess

from endoscope.capturing.snapshot import snapshot
from endoscope.errors import UntrustedPickleError
from endoscope.pages import format
from endoscope.pages.format import seal, sealed
from endoscope.pages.reader import load_debug_outputs
from endoscope.pages.sink import SafetensorsSink
from endoscope.pages.verify import verify_folder
from endoscope.pages.writer import PageWriter

DATA_START = 4096
SECONDS, MEGABYTES = 5, 300

Hostile = Callable[[Path], Any]


def healthy(folder: Path) -> Path:
    """A folder with one healthy page, number 7; the enemy's come beside it."""
    folder.mkdir(exist_ok=True)
    writer = PageWriter(SafetensorsSink(folder, page_size=10_000, rank=None, first_page=7), queue_bytes=1 << 20)
    writer.put(GOOD, {name: snapshot(value) for name, value in GOOD_VALUE.items()}, {})
    writer.close()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return healthy(tmp_path)


def look(warm: WarmProcess, folder: Path, *indices: int) -> dict[str, Any]:
    """Open the folder in a child; whatever it holds, the healthy page is read, quickly and in little memory."""
    [seen] = _look(warm, [folder], *indices)
    return seen


def look_at_each(
    warm: WarmProcess, parent: Path, attacks: Mapping[str, Hostile], *indices: int
) -> dict[str, dict[str, Any]]:
    """Make a folder for each attack, and open all of them in one child, quickly and in little memory."""
    folders = {name: healthy(parent / str(k)) for k, name in enumerate(attacks)}
    for name, attack in attacks.items():
        attack(folders[name])
    return dict(zip(attacks, _look(warm, [*folders.values()], *indices), strict=True))


def _look(warm: WarmProcess, folders: Sequence[Path], *indices: int) -> list[dict[str, Any]]:
    names = [str(folder) for folder in folders]
    outcome: Outcome = warm.run("tests.format.opening:look", folders=names, indices=list(indices), kill_after_s=60)
    assert outcome.status == 0, (outcome.status, f"died after {len(outcome.said)} folders", outcome.stderr)
    for seen in outcome.said:
        assert seen["foreign"] == {}
        assert seen["good"], seen
    assert outcome.cpu_seconds < SECONDS
    assert outcome.peak_growth_mb < MEGABYTES
    return [dict(seen) for seen in outcome.said]


def groups(attacks: Mapping[str, Hostile], size: int = 20) -> list[dict[str, Hostile]]:
    """The attacks a few at a time: each child stays within the limits for all of its folders together."""
    names = list(attacks)
    return [{name: attacks[name] for name in names[k : k + size]} for k in range(0, len(names), size)]


# ---------------------------------------------------------------- making pages
def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def first_line(name: str = "page_0", **members: Any) -> bytes:
    return sealed({"endoscope_page": 1, "data": f"{name}.safetensors", "data_start": DATA_START, **members})


def page(folder: Path, *lines: bytes, data: bytes = b"", first: bytes | None = None, name: str = "page_0") -> None:
    (folder / f"{name}.jsonl").write_bytes((first_line(name) if first is None else first) + b"".join(lines))
    (folder / f"{name}.safetensors").write_bytes(bytes(DATA_START) + data)


def block(value: Any, data: bytes = b"", **members: Any) -> dict[str, Any]:
    """One debugger's outputs, under a valid checksum of ``data``."""
    return {"at": 0, "bytes": len(data), "sum": xxhash.xxh3_64_hexdigest(data), "value": value, **members}


def record(outputs: Any, *, idx: Any = 0, at: Any = DATA_START, **members: Any) -> bytes:
    return sealed({"idx": idx, "at": at, "outputs": outputs, **members})


def ref(**members: Any) -> dict[str, Any]:
    return {"$": "tensor", "dtype": "float32", "shape": [2], "at": 0, **members}


DATA = bytes(range(16))


def with_value(value: Any, data: bytes = DATA, **members: Any) -> Hostile:
    return lambda folder: page(folder, record({"x": block(value, data, **members)}), data=data)


# ---------------------------------------------------------------- one value is refused
def nested(opening: bytes, closing: bytes, depth: int) -> Hostile:
    value = opening * depth + b"0" + closing * depth
    return lambda folder: page(folder, seal(b'{"idx":0,"at":%d,"outputs":{"x":{"value":%s}}' % (DATA_START, value)))


def deep_notes(depth: int) -> Hostile:
    notes = b"[" * depth + b"]" * depth
    return lambda folder: page(folder, seal(b'{"idx":0,"at":4096,"outputs":{},"notes":{"a":%s}' % notes))


def batch(value: Any, data: bytes = DATA, count: int = 2, **members: Any) -> Hostile:
    line = record({"x": block(value, data, **members)}, idx=list(range(count)))
    return lambda folder: page(folder, line, data=data)


ROWS = [xxhash.xxh3_64_hexdigest(DATA[:4]), xxhash.xxh3_64_hexdigest(DATA[4:8])]
NOTHING = xxhash.xxh3_64_hexdigest(b"")
COO = {"indices": ref(dtype="int64", shape=[2, 1], at=0), "values": ref(shape=[1], at=16)}
COO_DATA = bytes(16) + b"\0\0\x80?"

DEEP: dict[str, Hostile] = {
    **{f"{n} lists deep": nested(b"[", b"]", n) for n in (100, 300, 400, 500, 700, 900, 990)},
    **{f"{n} dicts deep": nested(b'{"a":', b"}", n) for n in (100, 300, 400, 500, 900)},
    **{f"{n} tuples deep": nested(b'{"$":"tuple","items":[', b"]}", n) for n in (100, 150, 200, 300, 400)},
    **{f"{n} keyed dicts deep": nested(b'{"$":"dict","items":[[0,', b"]]}", n) for n in (100, 150, 200, 300)},
    **{f"notes {n} deep": deep_notes(n) for n in (100, 300, 400, 500, 700, 900, 990, 100_000)},
}

REFUSED: dict[str, Hostile] = {
    **{f"{n} lists deep": nested(b"[", b"]", n) for n in (100_000, 5_000_000)},
    "100000 dicts deep": nested(b'{"a":', b"}", 100_000),
    "100000 tuples deep": nested(b'{"$":"tuple","items":[', b"]}", 100_000),
    **{f"bytes {b!r}": with_value(ref(), bytes=b) for b in (-1, 1 << 62, 1 << 70, 8.0, "8", True, None, [8])},
    **{f"block at {a!r}": with_value(ref(), at=a) for a in (-1, 1 << 62, 1 << 70, 1.0, "0", None)},
    **{f"tensor at {a!r}": with_value(ref(at=a)) for a in (-1, -8, 9, 1 << 62, 1 << 70, 0.0, "0", True, None)},
    **{
        f"shape {json.dumps(s)[:30]}": with_value(ref(shape=s))
        for s in (
            [-2],
            [-1, -2],
            [1 << 40],
            [1 << 70],
            [2.0],
            ["2"],
            [True],
            [None],
            "2",
            2,
            None,
            {"0": 2},
            [[2]],
            [1] * 70,
        )
    },
    "a shape of nothing times much": with_value(ref(shape=[0, 1 << 47, 1 << 47])),
    "a shape of nothing times very much": with_value(ref(shape=[0, *[(1 << 48) - 1] * 20])),
    **{
        f"dtype {d!r}": with_value(ref(dtype=d))
        for d in ("float128", "object", "torch.float32", "", None, 1, ["float32"])
    },
    "overlapping tensors": with_value([ref(), ref(at=4)]),
    "the same bytes twice": with_value([ref(), ref()]),
    "a checksum that is none": with_value(ref(), sum=None),
    "another checksum": with_value(ref(), sum="0" * 16),
    "rows of no batch": with_value(ref(batch="slice")),
    "rows of another batch": batch(ref(batch="slice", shape=[3]), count=2, sums=ROWS, sum=NOTHING),
    "rows of an unknown kind": batch(ref(batch="half"), count=2, sums=ROWS, sum=NOTHING),
    "rows of an unhashable kind": batch(ref(batch=["slice"]), count=2, sums=ROWS, sum=NOTHING),
    "no sums": batch(ref(batch="slice"), count=2, sum=NOTHING),
    "too few sums": batch(ref(batch="slice"), count=2, sums=ROWS[:1], sum=NOTHING),
    "too many sums": batch(ref(batch="slice"), count=2, sums=[*ROWS, *ROWS], sum=NOTHING),
    "sums that are text": batch(ref(batch="slice"), count=2, sums="".join(ROWS), sum=NOTHING),
    "sums that are a dict": batch(ref(batch="slice"), count=2, sums={"0": ROWS[0], "1": ROWS[1]}, sum=NOTHING),
    "each of too few": batch({"$": "each", "values": []}, data=b"", sum=NOTHING),
    "each of a dict": batch({"$": "each", "values": {"a": 1}}, data=b"", sum=NOTHING),
    "a tensor where there are no bytes": lambda f: page(f, record({"x": {"value": ref()}})),
    "no value": lambda f: page(f, record({"x": {"at": 0, "bytes": 0}})),
    **{f"outputs {o!r}": lambda f, o=o: page(f, record({"x": o})) for o in (None, 1, [], "x", {}, True)},
    **{f"all outputs {o!r}": lambda f, o=o: page(f, record(o)) for o in (None, 1, [], "x", True)},
    **{f"record at {a!r}": lambda f, a=a: page(f, record({}, at=a)) for a in (None, 0, -1, "4096", 4096.0, True, [])},
    "record at 2**80": lambda f: page(f, record({"x": block(ref(), DATA)}, at=1 << 80), data=DATA),
    "an unknown kind": with_value({"$": "python", "code": "print()"}),
    **{f"kind {k!r}": with_value({"$": k}) for k in (0, True, [], {}, ["tensor"], {"$": "tensor"}, "", "__class__")},
    "base64 rubbish": with_value({"$": "bytes", "base64": "????"}),
    "base64 of other letters": with_value({"$": "bytes", "base64": "ä" * 8}),
    "summary of a number": with_value({"x": 1, "stats": {"$": "summary", "of": 1}}),
    "summary of a list": with_value({"x": 1, "stats": {"$": "summary", "of": ["x"]}}),
    "summary of nothing": with_value({"x": 1, "stats": {"$": "summary"}}),
    "floats of half a float": with_value({"$": "floats", "base64": b64(bytes(12))}),
    "floats that are rubbish": with_value({"$": "floats", "base64": "????"}),
    "floats without any": with_value({"$": "floats"}),
    "each of too few floats": batch({"$": "each", "values": {"$": "floats", "base64": ""}}, data=b"", sum=NOTHING),
    "a coo tensor out of its shape": with_value(
        {"$": "sparse_coo", "shape": [0, 0], "coalesced": True, "parts": COO}, COO_DATA
    ),
    "a coo tensor of a negative shape": with_value(
        {"$": "sparse_coo", "shape": [-1, 2], "coalesced": True, "parts": COO}, COO_DATA
    ),
    "a coo tensor of a shape beyond 64 bits": with_value(
        {"$": "sparse_coo", "shape": [1 << 70, 2], "coalesced": True, "parts": COO}, COO_DATA
    ),
    "scales for fewer channels": with_value(
        {
            "$": "quantized",
            "dtype": "torch.qint8",
            "axis": 0,
            "parts": {
                "values": ref(dtype="int8", shape=[4], at=8),
                "scales": ref(shape=[1], at=0),
                "zeros": ref(dtype="int32", shape=[1], at=4),
            },
        }
    ),
    "an axis beyond the shape": with_value(
        {
            "$": "quantized",
            "dtype": "torch.qint8",
            "axis": 7,
            "parts": {
                "values": ref(dtype="int8", shape=[1], at=8),
                "scales": ref(shape=[1], at=0),
                "zeros": ref(dtype="int32", shape=[1], at=4),
            },
        }
    ),
    "a quantised tensor of fewer bytes": with_value(
        {
            "$": "quantized",
            "dtype": "torch.qint32",
            "scale": 1.0,
            "zero": 0,
            "parts": {"values": ref(dtype="int8", shape=[4])},
        }
    ),
    "text that grows a thousandfold": with_value(
        {"$": "text_array", "shape": [50_001], "values": ["x" * 50_000, *[""] * 50_000]}, b""
    ),
    "an array of another shape": with_value(
        {"$": "array", "dtype": "<U1", "shape": [1 << 40], "base64": b64(bytes(4))}, b""
    ),
    "an array of a negative shape": with_value(
        {"$": "array", "dtype": "<U1", "shape": [-1, -1], "base64": b64(bytes(4))}, b""
    ),
    "an array of very long text": with_value(
        {"$": "array", "dtype": "<U999999999", "shape": [1], "base64": b64(bytes(4))}, b""
    ),
    "an array of no text, much of it": with_value(
        {"$": "array", "dtype": "<U0", "shape": [1 << 40], "base64": ""}, b""
    ),
    "an array of objects": with_value({"$": "array", "dtype": "|O8", "shape": [1], "base64": b64(bytes(8))}, b""),
}


@pytest.mark.parametrize("attacks", groups(REFUSED), ids=lambda attacks: next(iter(attacks)))
def test_a_record_is_refused(attacks: dict[str, Hostile], tmp_path: Path, warm: WarmProcess) -> None:
    seen = look_at_each(warm, tmp_path, attacks, 0)
    assert [name for name in attacks if 0 in seen[name]["values"] or "[0]" not in seen[name]["refused"]] == []


@pytest.mark.parametrize("dtype", format.DTYPES)
def test_tensors_at_odd_places_do_not_end_the_process(dtype: str, folder: Path, warm: WarmProcess) -> None:
    """Torch takes alignment for granted; a file need not have it."""
    size = format.DTYPES[dtype].torch.itemsize
    data = bytes(5 * size + 16)
    lines = [
        record(
            {"x": block(ref(dtype=dtype, shape=[5], at=at), data, sum=xxhash.xxh3_64_hexdigest(data[: 5 * size]))},
            idx=at,
        )
        for at in range(16)
    ]
    page(folder, *lines, data=data)
    look(warm, folder, *range(16))


@pytest.mark.parametrize("attacks", groups(DEEP, 10), ids=lambda attacks: next(iter(attacks)))
def test_deep_values_are_read_or_refused(attacks: dict[str, Hostile], tmp_path: Path, warm: WarmProcess) -> None:
    """Far deeper than any that is written; not so deep that the parser of JSON gives up."""
    look_at_each(warm, tmp_path, attacks, 0)


def test_twin_healthy_records_are_not_refused(folder: Path, warm: WarmProcess) -> None:
    page(
        folder,
        record({"x": block(ref(), DATA[:8])}),
        record({"x": block(ref(batch="slice"), DATA[:8], sums=ROWS, sum=NOTHING)}, idx=[1, 2]),
        record({"x": {"value": {"$": "tuple", "items": [1]}}}, idx=3, notes={"absent": {"y": "why"}}),
        data=DATA,
    )
    seen = look(warm, folder, 0, 1, 2, 3)
    assert seen["values"] == [0, 1, 2, 3]
    assert seen["verified"] == seen["damage"] == []
    assert [*opened(folder)[3].values()] == [(1,)]


# ---------------------------------------------------------------- wrong types everywhere
JUNK = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "x",
    "9" * 5000,
    [],
    {},
    [[]],
    [None],
    ["x", "y"],
    {"a": 1},
    {"$": "tuple", "items": []},
]


KINDS: dict[str, dict[str, Any]] = {
    "float": {"value": "nan"},
    "dict": {"items": [[1, 2]]},
    "tuple": {"items": [1]},
    "namedtuple": {"type": "m.T", "fields": ["a"], "items": [1]},
    "dataclass": {"type": "m.T", "items": [["a", 1]]},
    "enum": {"type": "m.E", "name": "A", "value": 1},
    "set": {"items": [1]},
    "frozenset": {"items": [1]},
    "bytes": {"base64": b64(b"abc")},
    "numpy_scalar": {"dtype": "float32", "base64": b64(bytes(4))},
    "complex": {"items": ["1.0", "nan"]},
    "path": {"value": "a/b", "windows": False},
    "timedelta": {"items": [1, 2, 3]},
    "datetime": {"value": "2020-01-01T00:00:00"},
    "date": {"value": "2020-01-01"},
    "time": {"value": "00:00:00"},
    "opaque": {"type": "m.T", "text": "repr"},
    "text_array": {"shape": [1], "values": ["a"]},
    "array": {"dtype": "<U1", "shape": [1], "base64": b64(bytes(4))},
    "each": {"values": [1]},
    "sparse_coo": {"shape": [2, 2], "coalesced": True, "parts": COO},
    "sparse_compressed": {
        "layout": "torch.sparse_csr",
        "shape": [1, 1],
        "parts": {
            "outer": ref(dtype="int64", shape=[2], at=0),
            "within": ref(dtype="int64", shape=[1], at=16),
            "values": ref(shape=[1], at=24),
        },
    },
    "quantized": {"dtype": "torch.qint8", "scale": 1.0, "zero": 0, "parts": {"values": ref(dtype="int8", shape=[4])}},
}
NUMPY_DTYPES = [
    "O", "V8", "f8,f8", "(2,3)f4", "(99999,99999)f4", "M8[s]", "S5", "U5", "a5", "f8,", ",", "(f8", "f8)", "(2,f8",
    "1f4", "=f4", ">f4", "f16", "c32", "{'names':['a'],'formats':['f8']}", "\0", "float128", "2**9f4", "f" * 999,
    "__import__('os')", "(" * 200 + "f4", "i4, (9**9**9)f4", "f4;1",
]  # fmt: skip


def mutations() -> Iterator[tuple[dict[str, Any], bytes]]:
    for kind, fields in KINDS.items():
        data = {"sparse_coo": COO_DATA, "quantized": bytes(4)}.get(kind, b"")
        if kind == "sparse_compressed":
            data = np.array([0, 1, 0], "<i8").tobytes() + bytes(4)
        yield {"$": kind, **fields}, data
        for name in fields:
            yield {"$": kind, **{k: v for k, v in fields.items() if k != name}}, data
            for junk in JUNK:
                yield {"$": kind, **fields, name: junk}, data
    for dtype in NUMPY_DTYPES:
        yield {"$": "numpy_scalar", "dtype": dtype, "base64": b64(bytes(64))}, b""
        yield {"$": "array", "dtype": dtype, "shape": [1], "base64": b64(bytes(64))}, b""


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_wrong_types_in_every_field_of_every_kind(folder: Path, warm: WarmProcess) -> None:
    lines, data, count = [], b"", 0
    for value, held in mutations():
        outputs = {"x": block(value, held)}
        lines.append(record(outputs, idx=count, at=DATA_START + len(data)))
        data += held + bytes(-len(held) % 8)
        count += 1
    page(folder, *lines, data=data)
    outputs = [i for i in range(count) if i != GOOD]
    seen = look(warm, folder, *outputs)
    assert count > 600
    assert len(seen["values"]) + sum(k.startswith("[") for k in seen["refused"]) == len(outputs)
    assert len(seen["refused"]) > 300


IDX = [None, "0", 0.0, True, [], [None], [0, "1"], {}, 1 << 63, -(1 << 63) - 1, 10**30, [[0]], [0, 1.0]]
NOTES = [
    1, "x", [], None, {"absent": 5}, {"absent": ["nothing"]}, {"absent": "nothing"}, {"failures": {"nothing": 5}},
    {"absent": {"nothing": {"$": "tuple", "items": []}}}, {"a": ref()}, {"$": "tensor"}, {"$": "python"}, {"$": []},
    {"$": "tuple", "items": [1]}, {"absent": {"$": "tuple", "items": ["nothing"]}},
]  # fmt: skip


def test_notes_of_wrong_types(tmp_path: Path, warm: WarmProcess) -> None:
    attacks: dict[str, Hostile] = {
        str(notes): lambda f, notes=notes: page(f, record({"x": {"value": 1}}, notes=notes)) for notes in NOTES
    }
    seen = look_at_each(warm, tmp_path, attacks, 0)
    assert {name: seen[name]["values"] for name in attacks} == {name: [0] for name in attacks}


def test_indices_of_wrong_types(tmp_path: Path, warm: WarmProcess) -> None:
    two = record({"x": {"value": 2}}, idx=5)
    attacks: dict[str, Hostile] = {
        repr(idx): lambda f, idx=idx: page(f, record({"x": {"value": 1}}, idx=idx), two) for idx in IDX
    }
    seen = look_at_each(warm, tmp_path, attacks, 5)
    assert [name for name in attacks if 5 not in seen[name]["values"] or not seen[name]["damage"]] == []


# ---------------------------------------------------------------- values that are large only in name
BOMBS: dict[str, tuple[Any, bytes]] = {
    "a sparse tensor of 2**80 elements": (
        {"$": "sparse_coo", "shape": [1 << 40, 1 << 40], "coalesced": True, "parts": COO},
        COO_DATA,
    ),
    "a sparse tensor of 2**60 elements": (
        {"$": "sparse_coo", "shape": [1 << 30, 1 << 30], "coalesced": False, "parts": COO},
        COO_DATA,
    ),
    "a compressed tensor of wide rows": (
        {
            "$": "sparse_compressed",
            "layout": "torch.sparse_csr",
            "shape": [1, 1 << 60],
            "parts": KINDS["sparse_compressed"]["parts"],
        },
        np.array([0, 1, 0], "<i8").tobytes() + bytes(4),
    ),
}


def test_a_line_of_empty_lists_is_no_bomb(folder: Path, warm: WarmProcess) -> None:
    """Three bytes of a line become seventy in memory."""
    page(folder, seal(b'{"idx":0,"at":4096,"outputs":{"x":{"value":[%s0]}}' % (b"[]," * 8_000_000)))
    look(warm, folder, 0)


@pytest.mark.parametrize("name", BOMBS)
def test_a_value_large_in_name_only_takes_no_memory(name: str, folder: Path, warm: WarmProcess) -> None:
    value, data = BOMBS[name]
    page(folder, record({"x": block(value, data)}), data=data)
    look(warm, folder, 0)
    page(folder, record({"x": block({**value, "batch": "slice"}, data)}, idx=[0, 1]), data=data)
    look(warm, folder, 0, 1)


SUMMARY = {"$": "summary", "of": "t"}
COSTLY: dict[str, tuple[Any, bytes]] = {
    "2**26 rows of nothing": ({"t": ref(shape=[1 << 26, 0]), "s": SUMMARY}, b""),
    "2**40 rows of nothing": ({"t": ref(shape=[1 << 40, 0]), "s": SUMMARY}, b""),
    "a sparse tensor of 2**28 values": (
        {"t": {"$": "sparse_coo", "shape": [1, 1 << 28], "coalesced": True, "parts": COO}, "s": SUMMARY},
        COO_DATA,
    ),
    "2**22 rows of one byte": ({"t": ref(dtype="uint8", shape=[1 << 22, 1]), "s": SUMMARY}, bytes(1 << 22)),
    "as many rows as are made, each to be scaled": (
        {"t": ref(shape=[1 << 16, 2]), "s": SUMMARY},
        np.tile(np.array([1e-30, 2e-30], "<f4"), 1 << 16).tobytes(),
    ),
    "60000 summaries of one tensor": (
        {"t": ref(shape=[1, 1 << 18]), "s": SUMMARY, **{f"s{k}": SUMMARY for k in range(60_000)}},
        bytes(1 << 20),
    ),
    "20000 summaries of as many tensors": (
        [{"t": ref(shape=[1, 2], at=8 * k), "s": SUMMARY} for k in range(20_000)],
        bytes(8 * 20_000),
    ),
}


@pytest.mark.parametrize("attack", COSTLY)
def test_the_numbers_of_a_tensor_are_bounded(attack: str, folder: Path, warm: WarmProcess) -> None:
    """Those that would cost too much are not made, and say so; the record is whole."""
    value, data = COSTLY[attack]
    page(folder, record({"x": block(value, data)}), data=data)
    seen = look(warm, folder, 0)
    assert seen["values"] == [0]
    assert seen["verified"] == []


# ---------------------------------------------------------------- whole files
def sparse_file(path: Path, size: int, start: bytes = b"") -> None:
    with open(path, "wb") as f:
        f.write(start)
        f.truncate(size)


def line_of(size: int) -> bytes:
    return seal(b'{"idx":0,"at":4096,"outputs":{"x":{"value":"%s"}}' % (b"x" * size))


def replaced(target: str, how: Callable[[Path], Any]) -> Hostile:
    """A healthy page, one of whose files is then replaced."""

    def make(folder: Path) -> None:
        page(folder, record({"x": block(ref(), DATA[:8])}), data=DATA)
        (folder / target).unlink(missing_ok=True)
        how(folder / target)

    return make


def bind_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # socket names are short
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path.name)
    finally:
        os.chdir(here)


def outside(path: Path) -> None:
    """A link to a healthy page of another folder."""
    other = path.parent / "other"
    other.mkdir()
    page(other, record({"x": block(ref(), DATA[:8])}), data=DATA)
    path.symlink_to(other / path.name)


REPLACEMENTS: dict[str, Callable[[Path], Any]] = {
    "a link to /dev/zero": lambda p: p.symlink_to("/dev/zero"),
    "a link to another page": outside,
    "a dangling link": lambda p: p.symlink_to("/nowhere/at/all"),
    "a link to itself": lambda p: p.symlink_to(p.name),
    "a pipe": os.mkfifo,
    "a socket": bind_socket,
    "a folder": lambda p: p.mkdir(),
}
FILES: dict[str, Hostile] = {
    **{
        f"{what} for {f}": replaced(f, how)
        for what, how in REPLACEMENTS.items()
        for f in ("page_0.jsonl", "page_0.safetensors")
    },
    "a sparse line file of 100 MB": replaced("page_0.jsonl", lambda p: sparse_file(p, 100 << 20)),
    "a sparse line file of 1 TB": replaced("page_0.jsonl", lambda p: sparse_file(p, 1 << 40)),
    "100 MB without a newline": replaced("page_0.jsonl", lambda p: sparse_file(p, 100 << 20, first_line())),
    "1 TB without a newline": replaced("page_0.jsonl", lambda p: sparse_file(p, 1 << 40, first_line())),
    "a line of 100 MB": lambda f: page(f, line_of(100 << 20)),
    "a record of 1 TB in a sparse page": replaced(
        "page_0.safetensors",
        lambda p: (
            sparse_file(p, 1 << 41),
            page_text(p.parent, record({"x": block(ref(shape=[1 << 38]), b"", bytes=1 << 40)})),
        ),
    ),
    "an empty tensor file": replaced("page_0.safetensors", lambda p: p.touch()),
    "a newer version": lambda f: page(f, record({}), first=first_line(endoscope_page=2)),
    "a much newer version": lambda f: page(f, record({}), first=first_line(endoscope_page=10**30)),
    "a version that is text": lambda f: page(f, record({}), first=first_line(endoscope_page="1")),
    **{
        f"data_start {s!r}": lambda f, s=s: page(f, record({}), first=first_line(data_start=s))
        for s in (None, -1, 0, "8", 9.0, [])
    },
    "a first line that is a list": lambda f: page(f, record({}), first=seal(b"[1")),
    "a foreign line file": replaced("page_0.jsonl", lambda p: p.write_text('{"step": 1, "loss": 0.5}\n' * 50)),
    "binary rubbish": replaced("page_0.jsonl", lambda p: p.write_bytes(bytes(range(256)) * 50)),
    "only newlines": replaced("page_0.jsonl", lambda p: p.write_bytes(b"\n" * 100_000)),
}


def page_text(folder: Path, *lines: bytes) -> None:
    (folder / "page_0.jsonl").write_bytes(first_line() + b"".join(lines))


@pytest.mark.parametrize("attacks", groups(FILES, 10), ids=lambda attacks: next(iter(attacks)))
def test_a_file_is_refused(attacks: dict[str, Hostile], tmp_path: Path, warm: WarmProcess) -> None:
    for name, seen in look_at_each(warm, tmp_path, attacks, 0).items():
        assert 0 not in seen["values"], name
        assert any("page_0" in d for d in seen["damage"] + seen["verified"]), name
        assert any("page_0" in d for d in seen["verified"]), name


def test_a_newer_version_says_what_to_do(folder: Path, warm: WarmProcess) -> None:
    page(folder, record({}), first=first_line(endoscope_page=2))
    [damage] = look(warm, folder)["damage"]
    assert damage == "page_0.jsonl: written as format 2; this version reads format 1: upgrade endoscope to read it"


def test_foreign_files_are_left_alone(folder: Path, warm: WarmProcess) -> None:
    save_file({"weight": torch.ones(3)}, folder / "page_0.safetensors")
    save_file({"weight": torch.ones(3)}, folder / "model.safetensors")
    (folder / "events.jsonl").write_text("not json\n")
    (folder / "page_x.jsonl").write_text("not ours\n")
    (folder / "page_3.pkl.txt").write_text("not ours\n")
    seen = look(warm, folder)
    assert seen["damage"] == ["page_0.jsonl: page_0.jsonl is missing"]


# ---------------------------------------------------------------- the catalogue
def ints(*values: int) -> str:
    return b64(np.array(values, "<i8").tobytes())


def catalogue(**members: Any) -> bytes:
    """A valid catalogue line for page_0 with the record `ONE`, with members replaced."""
    healthy = {"catalogue": 1, "pages": pages(), "indices": ints(0), "ends": ints(len(first_line()) + len(ONE))}
    return sealed({**healthy, **members})


def pages(
    name: Any = "page_0", dropped: Any = 0, data_start: Any = DATA_START, start: Any = None, records: Any = 1
) -> Any:
    """What a catalogue says of one page."""
    return [[name, dropped, data_start, len(first_line()) if start is None else start, records]]


ONE = record({"x": {"value": 1}})
TWO = record({"x": {"value": 2}}, idx=1)
HUGE = 1 << 62

CATALOGUES: dict[str, bytes] = {
    "another folder": catalogue(pages=pages("../other/page_0")),
    "an absolute path": catalogue(pages=pages("/etc/passwd")),
    "another file": catalogue(pages=pages("model")),
    "a page that is not there": catalogue(pages=pages("page_3")),
    "a page number of 5000 digits": catalogue(pages=pages("page_" + "9" * 5000)),
    "a rank of 5000 digits": catalogue(pages=pages("page_0_rank_" + "9" * 5000)),
    "a page name with a null": catalogue(pages=pages("page_0\0")),
    "no pages": catalogue(pages=[]),
    "no pages and no records": catalogue(pages=[], indices="", ends=""),
    **{
        f"pages {p!r}": catalogue(pages=p)
        for p in (None, 1, "ab", ["ab"], [[]], [["page_0"]], [["page_0", 0]], {"page_0": 0}, pages(0))
    },
    **{
        f"{member} {n!r}": catalogue(pages=pages(**{member: n}))
        for member in ("dropped", "data_start", "start", "records")
        for n in (None, "1", 1.0, True, -1, HUGE - 1, HUGE, 10**30, [])
    },
    "datapoints of no record": catalogue(pages=pages(records=0), indices=ints(0, 1), ends=""),
    "one datapoint of no record": catalogue(pages=pages(records=0), ends=""),
    "records of no datapoint": catalogue(indices="", counts=ints(0)),
    "records of no datapoint, uncounted": catalogue(indices=""),
    "two datapoints of one record, uncounted": catalogue(indices=ints(0, 1)),
    "a negative count": catalogue(counts=ints(-1)),
    "more counts than records": catalogue(indices=ints(0, 1), counts=ints(1, 1)),
    "counts that overflow": catalogue(
        pages=pages(records=4), indices=ints(*range(8)), counts=ints(HUGE, HUGE, HUGE, HUGE + 8), ends=ints(1, 2, 3, 4)
    ),
    "offsets beyond the file": catalogue(pages=pages(start=HUGE - 100), ends=ints(HUGE)),
    "a line of 2**62 bytes": catalogue(pages=pages(start=0), ends=ints(HUGE)),
    "a negative end": catalogue(ends=ints(-1)),
    "a negative start": catalogue(pages=pages(records=2), indices=ints(1, 0), ends=ints(-100, -50)),
    "an end before the start": catalogue(pages=pages(start=100), ends=ints(50)),
    "an end before the one before": catalogue(pages=pages(records=2), indices=ints(1, 0), ends=ints(300, 200)),
    "an end right at the start": catalogue(ends=ints(len(first_line()))),
    "an empty line": catalogue(ends=ints(len(first_line()) + 1)),
    "the smallest end": catalogue(ends=ints(-(1 << 63))),
    "offsets of another record": catalogue(
        pages=pages(start=len(first_line()) + len(ONE)), ends=ints(len(first_line()) + len(ONE) + len(TWO))
    ),
    "an index of another record": catalogue(indices=ints(77)),
    "offsets inside a record": catalogue(pages=pages(start=len(first_line()) + 5)),
    "offsets of the first line": catalogue(pages=pages(start=0), ends=ints(len(first_line()))),
    "more records in pages than ends": catalogue(pages=pages() + pages("page_7")),
    "arrays of odd lengths": catalogue(indices=b64(b"abc")),
    "arrays that are no base64": catalogue(indices="????"),
    **{f"arrays {a!r}": catalogue(indices=a) for a in (None, 1, [0], {})},
    "a newer catalogue": catalogue(catalogue=2),
    "a deep catalogue": seal(b'{"catalogue":' + b"[" * 900 + b"]" * 900),
    "rubbish": bytes(range(256)) * 10,
}


def with_catalogue(line: bytes) -> Hostile:
    def make(folder: Path) -> None:
        page(folder, ONE, TWO)
        with open(folder / "catalogue.jsonl", "ab") as f:
            f.write(line)

    return make


LYING: dict[str, Hostile] = {name: with_catalogue(line) for name, line in CATALOGUES.items()}


@pytest.mark.parametrize("attacks", groups(LYING), ids=lambda attacks: next(iter(attacks)))
def test_a_catalogue_that_lies(attacks: dict[str, Hostile], tmp_path: Path, warm: WarmProcess) -> None:
    """Whatever it says, no wrong value is given, and the other pages stay readable."""
    for k, (name, seen) in enumerate(look_at_each(warm, tmp_path, attacks, 0, 1).items()):
        outputs = opened(tmp_path / str(k))
        for idx in (0, 1):
            assert f"[{idx}]" in seen["refused"] or outputs[idx] == {"x": idx + 1}, name


@pytest.mark.parametrize(
    "how", [*REPLACEMENTS, "a sparse file of 100 MB", "a sparse file of 2 GB", "a sparse file of 1 TB"]
)
def test_a_catalogue_that_is_none(how: str, folder: Path, warm: WarmProcess) -> None:
    page(folder, ONE)
    path = folder / "catalogue.jsonl"
    path.unlink()
    sizes = {"100 MB": 100 << 20, "2 GB": 2 << 30, "1 TB": 1 << 40}
    for size, n in sizes.items():
        if how.endswith(size):
            sparse_file(path, n)
    if how in REPLACEMENTS:
        REPLACEMENTS[how](path)
    seen = look(warm, folder, 0)
    assert seen["values"] == [0]
    assert any("catalogue" in d for d in seen["verified"])


# ---------------------------------------------------------------- pickle
class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "executed")


@pytest.mark.parametrize("name", ["page_0.pkl", "page_3_rank_1.pkl"])
def test_a_pickle_page_is_not_opened(name: str, folder: Path) -> None:
    executed = folder / "executed"
    (folder / name).write_bytes(pickle.dumps({0: Payload(executed)}))
    for where in (folder, folder.parent):
        (folder.parent / "debugger").unlink(missing_ok=True)
        (folder.parent / "debugger").symlink_to(folder)
        with pytest.raises(UntrustedPickleError, match=r"trust_pickle=True") as e:
            load_debug_outputs(where)
        assert "can run any code" in str(e.value)
        assert isinstance(e.value, PermissionError)
    verify_folder(folder)
    assert not executed.exists()


def test_twin_a_trusted_pickle_page_is_executed(tmp_path: Path) -> None:
    (tmp_path / "page_0.pkl").write_bytes(pickle.dumps({0: {"x": Payload(tmp_path / "executed")}}))
    load_debug_outputs(tmp_path, trust_pickle=True)
    assert (tmp_path / "executed").exists()


def test_pickles_hidden_in_safetensors_pages_stay_bytes(folder: Path, warm: WarmProcess) -> None:
    executed = folder / "executed"
    data = pickle.dumps(Payload(executed))
    page(
        folder,
        record(
            {
                "x": block(ref(dtype="uint8", shape=[len(data)]), data),
                "y": {"value": {"$": "bytes", "base64": b64(data)}},
            }
        ),
        data=data,
    )
    assert look(warm, folder, 0)["values"] == [0]
    assert not executed.exists()
    assert canonical(opened(folder)[0]["y"]) == canonical(data)
