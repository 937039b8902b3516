"""The bytes on disk: exactly what the format says, plain safetensors and JSON lines for others, page by page."""

from __future__ import annotations

import base64
import datetime
import itertools
import json
import math
import pathlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from tests.captures import files, opened, write
from tests.format.values import DTYPES, from_bytes
from tests.sameness import canonical, raw

from endoscope.pages import encoding, header
from endoscope.pages.verify import verify_folder
from endoscope.values import Summary, per_datapoint, whole_batch

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

RECORD = {
    "stage1": {"map": torch.tensor([[1.0, -2.0]]), "name": "conv", "top": torch.tensor([3, 255], dtype=torch.uint8)},
    "score": 0.5,
}
BATCH = {"stage1": torch.tensor([[1.5], [2.5]], dtype=torch.bfloat16)}


def seal(body: str) -> bytes:
    """A line as docs/page-format.md has it: the XXH3-64 of all before ``,"line"`` is the last member."""
    return f'{body},"line":"{xxhash.xxh3_64_hexdigest(body.encode())}"}}\n'.encode()


def small(folder: Path) -> Path:
    return write(folder, [(7, RECORD), ([8, 9], BATCH)], page_size_mb=0.01)


def data_start(folder: Path, page: str = "page_0") -> int:
    with open(folder / f"{page}.jsonl", "rb") as f:
        start: int = json.loads(f.readline())["data_start"]
    return start


# ---------------------------------------------------------------- exact bytes
def test_one_line_to_the_byte() -> None:
    assert encoding.encode_record(7, RECORD, {}).line(4096) == (
        b'{"idx":7,"at":4096,"bytes":16,"outputs":{"stage1":{"at":0,"bytes":10,"sum":"4af7f0813d177be0","value":'
        b'{"map":{"$":"tensor","dtype":"float32","shape":[1,2],"at":0},"name":"conv",'
        b'"top":{"$":"tensor","dtype":"uint8","shape":[2],"at":8}}},"score":{"value":0.5}},"line":"0bc51440fb289f6f"}\n'
    )


def test_the_lines_to_the_byte(tmp_path: Path) -> None:
    small(tmp_path)
    start = data_start(tmp_path)
    header = xxhash.xxh3_64_hexdigest((tmp_path / "page_0.safetensors").read_bytes()[:start])
    assert (tmp_path / "page_0.jsonl").read_bytes() == b"".join(
        map(
            seal,
            [
                f'{{"endoscope_page":1,"data":"page_0.safetensors","data_start":{start}',
                f'{{"idx":7,"at":{start},"bytes":16,"outputs":{{"stage1":{{"at":0,"bytes":10,"sum":"4af7f0813d177be0",'
                '"value":{"map":{"$":"tensor","dtype":"float32","shape":[1,2],"at":0},"name":"conv",'
                '"top":{"$":"tensor","dtype":"uint8","shape":[2],"at":8}}},"score":{"value":0.5}}',
                f'{{"idx":[8,9],"at":{start + 16},"bytes":8,"outputs":{{"stage1":{{"at":0,"bytes":4,'
                '"sum":"2d06800538d394c2","sums":["12f7496a243a9638","774fa6f921c3e6fc"],'
                '"value":{"$":"tensor","dtype":"bfloat16","shape":[2,1],"at":0,"batch":"slice"}}}',
                f'{{"closed":{{"records":2,"datapoints":3,"bytes":{start + 24},"header":"{header}","dropped":0}}',
            ],
        )
    )


def test_the_catalogue_to_the_byte(tmp_path: Path) -> None:
    small(tmp_path)
    start = data_start(tmp_path)
    ends = [*itertools.accumulate(map(len, (tmp_path / "page_0.jsonl").read_bytes().splitlines(keepends=True)))]
    assert (tmp_path / "catalogue.jsonl").read_bytes() == seal(
        f'{{"catalogue":1,"pages":[["page_0",0,{start},{ends[0]},2]],"indices":"{int64(7, 8, 9)}",'
        f'"ends":"{int64(ends[1], ends[2])}","counts":"{int64(1, 2)}"'
    )
    write(tmp_path / "singles", [(7, {"x": 1}), (9, {"x": 2})])
    line = json.loads((tmp_path / "singles" / "catalogue.jsonl").read_bytes())
    assert list(line) == ["catalogue", "pages", "indices", "ends", "line"]  # no counts: all are 1


def test_a_long_list_of_floats_to_the_byte(tmp_path: Path) -> None:
    write(tmp_path, [(7, {"x": [1.0] * 16, "y": [1.0] * 15})])
    outputs = json.loads((tmp_path / "page_0.jsonl").read_bytes().splitlines()[1])["outputs"]
    ones = base64.b64encode(bytes.fromhex("000000000000f03f") * 16).decode()
    assert outputs == {"x": {"value": {"$": "floats", "base64": ones}}, "y": {"value": [1.0] * 15}}


def int64(*values: int) -> str:
    return base64.b64encode(b"".join(v.to_bytes(8, "little", signed=True) for v in values)).decode()


def test_the_checksums_are_those_of_the_bytes() -> None:
    """Where the literals above come from: XXH3-64 of a block's tensors, and of each row of a batch."""
    assert xxhash.xxh3_64_hexdigest(bytes.fromhex("0000803f000000c0 03ff")) == "4af7f0813d177be0"
    assert xxhash.xxh3_64_hexdigest(b"") == "2d06800538d394c2"
    assert xxhash.xxh3_64_hexdigest(bytes.fromhex("c03f")) == "12f7496a243a9638"
    assert xxhash.xxh3_64_hexdigest(bytes.fromhex("2040")) == "774fa6f921c3e6fc"


def test_the_tensors_to_the_byte(tmp_path: Path) -> None:
    small(tmp_path)
    start = data_start(tmp_path)
    header = (
        b'{"__metadata__":{"format":"pt","endoscope_page":"1"},'
        b'"7/stage1/map":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},'
        b'"7/stage1/top":{"dtype":"U8","shape":[2],"data_offsets":[8,10]},'
        b'"7/padding":{"dtype":"U8","shape":[6],"data_offsets":[10,16]},'
        b'"8-9/stage1":{"dtype":"BF16","shape":[2,1],"data_offsets":[16,20]},'
        b'"8-9/padding":{"dtype":"U8","shape":[4],"data_offsets":[20,24]}}'
    )
    data = bytes.fromhex("0000803f 000000c0 03ff 000000000000 c03f 2040 00000000")
    expected = (start - 8).to_bytes(8, "little") + header.ljust(start - 8) + data
    assert (tmp_path / "page_0.safetensors").read_bytes() == expected


# ---------------------------------------------------------------- the bytes of usual values
def counted(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(math.prod(shape)).reshape(shape).to(dtype)


MAPS = {"feature_map": counted(1, 3, 4, 4), "second": counted(2, 5)}
USUAL: dict[str, Any] = {
    "maps": {**MAPS, "mean": 0.1, "count": 3, "none": None, "yes": True, "text": 'a "quoted" π\n', "most": math.inf},
    "nested": {**MAPS, "stats": {"mean": counted(2), "pair": (1, 2)}, "odd/key %s": {"$": 3}, "empty": {}},
    "floats": {"many": [0.5, math.nan] * 50, "few": [0.5, math.inf]},
    "summary": {**MAPS, "stats": Summary(of="feature_map"), "array": np.arange(3), "names": np.array(["a", "bc"])},
    "dtypes": [counted(n, dtype=d) for n in (3, 0) for d in (torch.int8, torch.float64, torch.bfloat16, torch.bool)],
    "layouts": {"transposed": counted(2, 3).t(), "sparse": torch.eye(2).to_sparse()},
    "batch": {
        "x": counted(2, 3),
        "bytes": counted(2, 5, dtype=torch.uint8),
        "n": per_datapoint([1, 2]),
        "one": counted(),
    },
    "marked": {
        "whole": whole_batch(counted(2)),
        "each": per_datapoint([counted(2), counted(2)]),
        "keys": {1: counted(2)},
    },
    "python": [
        {1},
        b"x",
        1j,
        pathlib.PurePosixPath("a"),
        datetime.date(2020, 1, 1),
        np.float32(1),
        np.datetime64("2020"),
    ],
}
DIGESTS = {
    "maps": "2af7debb8f12ba18",
    "nested": "6459b35e76412482",
    "floats": "ea3d184d30e1fd7a",
    "summary": "4beaeee5e946df4d",
    "dtypes": "3c51457442696838",
    "layouts": "0c834b7e1039ea7b",
    "batch": "48ee461f34141caf",
    "marked": "ff95f0bef734b847",
    "python": "89a7a0f260b6b0f0",
}


@pytest.mark.parametrize("name", USUAL)
def test_usual_values_to_the_byte(name: str) -> None:
    """Lines and tensors of a datapoint and of a batch are those of the first release of the format."""
    digest = xxhash.xxh3_64()
    for idx in (7, [7, 9]):
        record = encoding.encode_record(idx, {name: USUAL[name]}, {"absent": {"a": "b"}})
        digest.update(record.line(640))
        for buffer in record.buffers:
            digest.update(memoryview(buffer).cast("B"))
    assert digest.hexdigest() == DIGESTS[name]


# ---------------------------------------------------------------- plain safetensors
def everything() -> dict[str, Any]:
    """A tensor of every dtype, wide and narrow ones mixed."""
    bits = bytes(range(256))
    return {str(d): [from_bytes(bits[: n * d.itemsize], d, (n,)) for n in (3, 0, 1)] for d in reversed(DTYPES)}


AS_SAFETENSORS = {
    torch.complex128: torch.float64,
    torch.complex32: torch.float16,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
    torch.float8_e8m0fnu: torch.uint8,
}


def test_closed_pages_are_plain_safetensors(tmp_path: Path) -> None:
    given = everything()
    write(tmp_path, [(k, {"x": given, "y/z": torch.ones(2)}) for k in range(40)], page_size_mb=0.1)
    pages = files(tmp_path, "safetensors")
    assert len(pages) > 2
    for page in pages:
        loaded = load_file(page)
        with safe_open(page, "pt") as f:
            assert set(f.keys()) == set(loaded)
            assert all(torch.equal(raw_bytes(f.get_tensor(k)), raw_bytes(loaded[k])) for k in loaded)
            assert f.metadata() == {"format": "pt", "endoscope_page": "1"}
        for idx in {name.split("/")[0] for name in loaded}:
            assert loaded[f"{idx}/y/z"].tolist() == [1, 1]
            for dtype, tensors in given.items():
                for n, t in enumerate(tensors):
                    got = loaded[f"{idx}/x/{dtype}/{n}"]
                    assert got.dtype is AS_SAFETENSORS.get(t.dtype, t.dtype)
                    assert raw(got) == raw(t)


def raw_bytes(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(-1).view(torch.uint8)


AWKWARD_NAMES = [
    "",
    "/",
    "..",
    "a/b",
    'quo"te',
    "back\\slash",
    "new\nline",
    "\x00",
    "ü",
    "漢字",
    "😀",
    "\ud800",
    "__metadata__",
]


@pytest.mark.parametrize("name", AWKWARD_NAMES, ids=ascii)
def test_pages_with_awkward_names_are_plain_safetensors(name: str, tmp_path: Path) -> None:
    given = {name: {name: torch.ones(2), "x": {"y": torch.zeros(1)}, "x/y": torch.ones(3)}}
    write(tmp_path, [(0, given), (0, given)], page_size_mb=0.01)
    assert canonical(opened(tmp_path)[0]) == canonical(given)
    held = sorted(t.numel() for key, t in load_file(tmp_path / "page_0.safetensors").items() if "padding" not in key)
    assert held == [1, 1, 2, 2, 3, 3]


def entries(page: Path) -> list[tuple[str, dict[str, Any], int]]:
    """(name, header entry, offset in the file) of every tensor, read without any library."""
    data = page.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return [(k, e, 8 + length + e["data_offsets"][0]) for k, e in header.items() if k != "__metadata__"]


SIZES = {"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


def test_every_tensor_is_aligned(tmp_path: Path) -> None:
    shuffled = {
        "a": torch.ones(3, dtype=torch.uint8),
        "b": torch.ones(1, dtype=torch.float64),
        "c": torch.ones(1).half(),
    }
    write(
        tmp_path,
        [(k, {"x": shuffled, "y": everything(), "z": torch.ones(k + 1).bool()}) for k in range(9)],
        page_size_mb=0.1,
    )
    for page in files(tmp_path, "safetensors"):
        found = entries(page)
        assert found
        assert [name for name, e, at in found if at % SIZES.get(e["dtype"], 1)] == []
        end = 0  # no gaps and no overlaps, to the end of the file
        for _, e, _ in sorted(found, key=lambda f: f[1]["data_offsets"]):
            assert e["data_offsets"][0] == end
            end = e["data_offsets"][1]
        assert found[0][2] - found[0][1]["data_offsets"][0] + end == page.stat().st_size


def test_lines_are_plain_json(tmp_path: Path) -> None:
    small(tmp_path)
    for file in files(tmp_path, "jsonl"):
        lines = file.read_text("ascii").splitlines()
        assert all(list(json.loads(line))[-1] == "line" for line in lines)


# ---------------------------------------------------------------- page sizes
def record_bytes(folder: Path, page: str) -> tuple[int, int]:
    """(records, true bytes of their lines and tensors) of one page."""
    lines = (folder / f"{page}.jsonl").read_bytes().splitlines(keepends=True)[1:-1]
    return len(lines), sum(len(line) + json.loads(line)["bytes"] for line in lines)


def check_sizes(folder: Path, page_size_mb: float) -> int:
    """No page passes the page size, unless one record alone does; returns the number of pages."""
    limit = page_size_mb * 2**20
    pages = files(folder, "safetensors")
    for page in pages:
        records, true = record_bytes(folder, page.stem)
        on_disk = page.stat().st_size + page.with_suffix(".jsonl").stat().st_size
        assert records == 1 or true <= limit, f"{page.name}: {records} records of {true} bytes"
        assert records == 1 or on_disk <= limit, f"{page.name}: {records} records, {on_disk} bytes on disk"
    assert verify_folder(folder) == []
    return len(pages)


@pytest.mark.parametrize("page_size_mb", [0.02, 0.1, 1])
@pytest.mark.parametrize("floats", [1, 10, 1000, 20_000])
def test_a_page_is_never_larger_than_its_size(floats: int, page_size_mb: float, tmp_path: Path) -> None:
    records = max(3, int(3 * page_size_mb * 2**20 / (4 * floats + 400)))
    write(tmp_path, [(k, {"x": torch.ones(floats)}) for k in range(records)], page_size_mb=page_size_mb)
    assert check_sizes(tmp_path, page_size_mb) >= 2
    assert len(opened(tmp_path)) == records


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=30), st.sampled_from([0.01, 0.03]))
@settings(deadline=None, max_examples=30, derandomize=True, suppress_health_check=list(HealthCheck))
def test_pages_of_records_of_mixed_sizes(sizes: list[int], page_size_mb: float) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = write(Path(name), [(k, {"x": torch.ones(n)}) for k, n in enumerate(sizes)], page_size_mb=page_size_mb)
        check_sizes(folder, page_size_mb)
        assert {k: len(v["x"]) for k, v in opened(folder).items()} == dict(enumerate(sizes))


def test_pages_fill_up(tmp_path: Path) -> None:
    """Rotation comes when the page is full, not before: the seeds' pages never filled, others never should be empty."""
    write(tmp_path, [(k, {"x": torch.ones(2500)}) for k in range(100)], page_size_mb=0.25)
    full = [record_bytes(tmp_path, p.stem)[1] / (0.25 * 2**20) for p in files(tmp_path, "safetensors")[:-1]]
    assert min(full) > 0.7


def test_a_small_capture_takes_little_space(tmp_path: Path) -> None:
    write(tmp_path, [(0, {"mean": torch.ones(3)})])
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 64 * 1024


def test_many_tiny_tensors(tmp_path: Path) -> None:
    given = {f"layer{k}": torch.tensor(k) for k in range(3000)}
    write(tmp_path, [(k, {"stats": given}) for k in range(3)], page_size_mb=0.5)
    assert canonical(opened(tmp_path)[2]["stats"]) == canonical(given)
    assert sum(len(load_file(p)) for p in files(tmp_path, "safetensors")) == 9000
    check_sizes(tmp_path, 0.5)


def test_a_record_larger_than_a_page_has_its_own(tmp_path: Path) -> None:
    sizes = {0: 10, 1: 50_000, 2: 10, 3: 50_000, 4: 60_000, 5: 10}
    write(tmp_path, [(k, {"x": torch.full((n,), k)}) for k, n in sizes.items()], page_size_mb=0.05)
    assert {k: len(v["x"]) for k, v in opened(tmp_path).items()} == sizes
    check_sizes(tmp_path, 0.05)


def test_records_without_tensors_fill_pages_too(tmp_path: Path) -> None:
    write(tmp_path, [(k, {"text": "x" * 1000, "n": k}) for k in range(50)], page_size_mb=0.02)
    assert check_sizes(tmp_path, 0.02) > 2
    assert {k: v["n"] for k, v in opened(tmp_path).items()} == {k: k for k in range(50)}
    assert all(load_file(p) == {} for p in files(tmp_path, "safetensors"))


def test_no_record_at_all(tmp_path: Path) -> None:
    assert len(opened(write(tmp_path, []))) == 0
    assert verify_folder(tmp_path) == []


@pytest.mark.parametrize("latest", [1, [1, 7]])
def test_of_equal_indices_a_damaged_latest_one_is_told(latest: Any, tmp_path: Path) -> None:
    write(tmp_path, [(1, {"x": "older"}), (latest, {"x": "latest"})])
    (tmp_path / "catalogue.jsonl").unlink()
    text = (tmp_path / "page_0.jsonl").read_bytes()
    (tmp_path / "page_0.jsonl").write_bytes(text.replace(b"latest", b"lapest"))
    outputs = opened(tmp_path)
    assert outputs[1] == {"x": "older"}
    claimed = "1" if latest == 1 else "[1,7]"
    cause = f"checksum of the line does not match; it seems to be of datapoint {claimed}"
    assert [str(d) for d in outputs.damage] == [f"page_0.jsonl, record 1: {cause}"]


@pytest.mark.parametrize("catalogue", ["kept", "deleted"])
def test_of_equal_indices_the_latest_wins(catalogue: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        [(k % 3, {"x": torch.full((400,), k)}) for k in range(30)] + [([1, 7], {"x": "batch"})],
        page_size_mb=0.01,
    )
    assert len(files(tmp_path, "safetensors")) > 3
    if catalogue == "deleted":
        (tmp_path / "catalogue.jsonl").unlink()
    outputs = opened(tmp_path)
    assert {k: v["x"] if isinstance(v["x"], str) else v["x"][0].item() for k, v in outputs.items()} == {
        0: 27, 1: "batch", 2: 29, 7: "batch",
    }  # fmt: skip


def test_a_page_of_one_index_names_every_tensor(tmp_path: Path) -> None:
    """A loader that gives every sample the same index."""
    write(tmp_path, [(0, {"x": torch.ones(1)})] * 500, page_size_mb=8)
    assert sum(len(load_file(p)) for p in files(tmp_path, "safetensors")) == 1000


def lines_run_to_name(tensors: int) -> int:
    """How many lines of Python run to make a header with as many tensors of one name."""
    records = [("0", [encoding.Entry("x", "U8", (1,), 0, 1)], k) for k in range(tensors)]
    ran = 0

    def count(*_: Any) -> Any:
        nonlocal ran
        ran += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        header.encode_header(records, 1 << 20)
    finally:
        sys.settrace(before)
    return ran


def test_naming_tensors_does_not_take_the_square_of_their_number() -> None:
    assert 1000 < lines_run_to_name(1000) < lines_run_to_name(2000) < 2.1 * lines_run_to_name(1000)


def test_pickle_pages_count_true_bytes_too(tmp_path: Path) -> None:
    batch = {"x": torch.ones(32, 1000)}
    write(
        tmp_path, [(list(range(32 * k, 32 * k + 32)), batch) for k in range(8)], page_format="pickle", page_size_mb=0.5
    )
    pages = files(tmp_path, "pkl")
    assert len(pages) == 2
    assert max(p.stat().st_size for p in pages) < 1.2 * 0.5 * 2**20
