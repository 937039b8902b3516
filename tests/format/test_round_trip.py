"""What is captured comes back bit for bit, alone or as part of a batch, from safetensors and from pickle pages."""

from __future__ import annotations

import collections
import datetime
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.captures import Idx, datapoint, debugger, opened, write
from tests.format import values
from tests.format.values import DTYPES, Box, Detection, Key, Level, Parts, Split, from_bytes
from tests.sameness import canonical, stored_elements
from tests.warm import Say, WarmProcess

from endoscope.capturing.snapshot import snapshot
from endoscope.pages import format
from endoscope.pages.reader import load_debug_outputs
from endoscope.pages.sink import SafetensorsSink
from endoscope.pages.verify import verify_folder
from endoscope.pages.writer import PageWriter
from endoscope.values import Opaque, per_datapoint, whole_batch

Format = Literal["safetensors", "pickle"]
FORMATS: list[Format] = ["safetensors", "pickle"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]

many = settings(deadline=None, max_examples=150, derandomize=True, suppress_health_check=list(HealthCheck))


@contextmanager
def folder() -> Iterator[Path]:
    """A fresh folder for each example; a fixture would be shared by them."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def stored(value: Any, idx: Idx = 0, page_format: Format = "safetensors") -> dict[int, Any]:
    """What each datapoint gives for ``value`` after a way through the disk."""
    with folder() as f:
        outputs = load_debug_outputs(
            write(f, [(idx, {"x": value})], page_format=page_format, page_size_mb=0.01), trust_pickle=True
        )
        assert page_format == "pickle" or verify_folder(f) == []
        return {i: outputs[i].get("x", "absent") for i in outputs}


# ---------------------------------------------------------------- any value
@given(values.values)
@many
def test_a_value_comes_back_bit_for_bit(value: Any) -> None:
    assert canonical(stored(value)[0]) == canonical(value)


@pytest.mark.parametrize("page_format", FORMATS)
@given(st.data())
@settings(many, max_examples=60)
def test_a_batch_gives_each_datapoint_what_a_batch_of_one_gives(page_format: Format, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 4))
    batch, singles = data.draw(values.batches(count))
    got = stored(batch, list(range(count)), page_format)
    assert {j: canonical(v) for j, v in got.items()} == {
        j: canonical(stored(v, j, page_format)[j]) for j, v in enumerate(singles)
    }


@given(st.dictionaries(values.texts, values.tensors(), min_size=1, max_size=4))
@settings(many, max_examples=60)
def test_debuggers_of_any_name_keep_apart(outputs: dict[str, torch.Tensor]) -> None:
    with folder() as f:
        got = opened(write(f, [(5, outputs)], page_size_mb=0.01))
        assert canonical(got[5]) == canonical(outputs)
        assert got.list(5) == [*outputs]


@pytest.mark.parametrize("page_format", FORMATS)
@pytest.mark.parametrize("count", [1, format.MANY_FLOATS - 1, format.MANY_FLOATS, 1000])
def test_floats_in_lists_of_any_length(count: int, page_format: Format) -> None:
    odd = [0.1, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 1 / 3]
    given = (odd * count)[:count]
    assert canonical(stored({"list": given, "finite": [0.1] * count}, 0, page_format)[0]["list"]) == canonical(given)
    got = stored(per_datapoint(given), [*range(count)], page_format)
    assert [canonical(v) for v in got.values()] == [canonical(v) for v in given]


# ---------------------------------------------------------------- every tensor kind, by name
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_in_every_arrangement(dtype: torch.dtype) -> None:
    bits = bytes(range(256)) * 3
    shapes = [(), (0,), (3, 0), (5,), (2, 3), (2, 3, 2, 2)]
    made = [from_bytes(bits[: int(np.prod(s, dtype=int)) * dtype.itemsize], dtype, s) for s in shapes]
    given = [view for t in made for view in values.arrangements(t)]
    assert canonical(stored(given)[0]) == canonical(given)
    assert all(not t.requires_grad for t in stored(given)[0])


def test_every_tensor_that_is_read_is_aligned() -> None:
    """Torch takes alignment for granted: a complex128 at half its size makes ``clone()`` a segmentation fault."""
    made = [from_bytes(bytes(n * d.itemsize), d, (n,)) for n in (1, 3, 5) for d in DTYPES]
    for rest in (made, made[::-1], [torch.ones(1).double(), torch.ones(5).to(torch.complex128)]):
        got = stored(rest)[0] + [row for v in stored(per_datapoint([rest, rest]), [0, 1]).values() for row in v]
        assert [str(t.dtype) for t in got if t.data_ptr() % t.itemsize] == []
        assert [t.clone().dtype for t in got] == [t.dtype for t in got]


@pytest.mark.parametrize("page_format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_sliced_and_stacked(dtype: torch.dtype, page_format: Format) -> None:
    rows = [from_bytes(bytes(range(k, k + 3 * dtype.itemsize)), dtype, (1, 3)) for k in range(2)]
    whole = from_bytes(b"".join(bytes(r.view(torch.uint8).numpy()) for r in rows), dtype, (2, 3))
    got = stored({"sliced": whole, "each": per_datapoint(rows)}, [0, 1], page_format)
    assert [canonical(v) for v in got.values()] == [canonical({"sliced": r, "each": r}) for r in rows]


def _compressed(layout: torch.layout, dense: torch.Tensor) -> torch.Tensor:
    blocks = {"blocksize": (1, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    return dense.to_sparse(layout=layout, **blocks)


def _uncoalesced(dtype: torch.dtype) -> torch.Tensor:
    found = from_bytes(bytes(range(1, 1 + 4 * dtype.itemsize)), dtype, (4,))
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 1, 0], [0, 3, 3, 2]]), found, (2, 4), check_invariants=True)


DENSE = torch.tensor([[1.0, 0, 0, 2], [0, 3, 0, float("nan")]])
LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
SPARSE: dict[str, Callable[[], torch.Tensor]] = {
    "coo": lambda: DENSE.to_sparse(),
    "coo, nothing stored": lambda: torch.zeros(2, 4).to_sparse(),
    **{f"coo, uncoalesced {d}": lambda d=d: _uncoalesced(d) for d in DTYPES},
    **{str(layout): lambda layout=layout: _compressed(layout, DENSE) for layout in LAYOUTS},
    **{
        f"{layout} of int8": lambda layout=layout: _compressed(layout, DENSE.nan_to_num().to(torch.int8))
        for layout in LAYOUTS
    },
}


@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_tensors(kind: str) -> None:
    t = SPARSE[kind]()
    assert canonical(stored(t)[0]) == canonical(t)


def test_sparse_tensors_of_more_dimensions() -> None:
    cube = torch.stack([DENSE, DENSE + 1])
    given = [cube.to_sparse(), cube.to_sparse(1), torch.stack([DENSE, 2 * DENSE]).to_sparse_csr()]
    given.append(torch.ones(2, 2, 4, 4).to_sparse_bsc((2, 2)))
    assert canonical(stored(given)[0]) == canonical(given)


@pytest.mark.parametrize("page_format", FORMATS)
@pytest.mark.parametrize("kind", SPARSE)
def test_a_batch_of_sparse_rows(kind: str, page_format: Format) -> None:
    t = SPARSE[kind]()
    for j, row in stored(t, [0, 1], page_format).items():
        assert (row.dtype, tuple(row.shape)) == (t.dtype, (1, 4))
        assert stored_elements(row) == [((0, at[1]), bits) for at, bits in stored_elements(t) if at[0] == j]


@pytest.mark.parametrize("page_format", FORMATS)
def test_a_batch_of_sparse_matrices(page_format: Format) -> None:
    batch = torch.stack([DENSE.nan_to_num(), DENSE.nan_to_num() * 2]).to_sparse_csr()
    got = stored(batch, [0, 1], page_format)
    assert [canonical(v.to_dense()) for v in got.values()] == [canonical(batch[j].to_dense()[None]) for j in range(2)]


QUANTISED: dict[str, Callable[[], torch.Tensor]] = {
    **{
        f"per tensor {d}": lambda d=d: torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 3, d)
        for d in (torch.qint8, torch.quint8, torch.qint32)
    },
    "per tensor, transposed": lambda: torch.quantize_per_tensor(torch.randn(3, 2), 0.1, 3, torch.quint8).T,
    **{
        f"per channel {axis}": lambda axis=axis: torch.quantize_per_channel(
            torch.randn(2, 3), torch.rand(2 + axis) + 0.1, torch.arange(2 + axis), axis, torch.qint8
        )
        for axis in (0, 1)
    },
}


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_tensors(kind: str) -> None:
    t = QUANTISED[kind]()
    assert canonical(stored(t)[0]) == canonical(t)


@pytest.mark.parametrize("page_format", FORMATS)
@pytest.mark.parametrize("kind", QUANTISED)
def test_a_batch_of_quantised_rows(kind: str, page_format: Format) -> None:
    t = QUANTISED[kind]()
    got = stored(t, [0, 1], page_format)
    assert [canonical(row.int_repr()) for row in got.values()] == [canonical(t.int_repr()[j : j + 1]) for j in range(2)]
    assert [canonical(row.dequantize()) for row in got.values()] == [
        canonical(t.dequantize()[j : j + 1]) for j in range(2)
    ]


def test_hugging_face_outputs() -> None:
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    given = BaseModelOutputWithPooling(last_hidden_state=torch.randn(1, 2, 3), hidden_states=(torch.ones(1, 2),))
    got = stored(given)[0]
    assert canonical(got) == canonical(given)
    assert torch.equal(got.last_hidden_state, given.last_hidden_state)
    assert got["pooler_output"] is None


def read_rows(say: Say, folder: str) -> None:
    warnings.simplefilter("error")
    outputs = load_debug_outputs(folder)
    say([str(outputs[idx]["x"].layout) for idx in outputs])


def test_reading_sparse_rows_warns_of_nothing(tmp_path: Path, warm: WarmProcess) -> None:
    """Whoever reads a capture cannot mend what torch has to say about how it was put together."""
    write(tmp_path, [([0, 1], {"x": SPARSE["coo"]()}), (2, {"x": SPARSE["coo"]()})])
    outcome = warm.run("tests.format.test_round_trip:read_rows", folder=str(tmp_path))
    assert outcome.said == [["torch.sparse_coo"] * 3], outcome.stderr


# ---------------------------------------------------------------- batches: what is whose
@pytest.mark.parametrize("page_format", FORMATS)
def test_what_one_datapoint_was_given_is_never_cut_again(page_format: Format) -> None:
    """Two boxes for the first of two datapoints: the 2 is not the batch."""
    boxes = [{"boxes": torch.arange(8.0).reshape(2, 4)}, {"boxes": torch.zeros(3, 4)}]
    got = stored(per_datapoint(boxes), [0, 1], page_format)
    assert [canonical(v) for v in got.values()] == [canonical(b) for b in boxes]


@pytest.mark.parametrize("page_format", FORMATS)
def test_arrays_of_text_are_shared_or_sliced_alike_in_both_formats(page_format: Format) -> None:
    names = np.array(["cat", "dog"])
    got = stored({"names": names, "whole": whole_batch(names)}, [0, 1], page_format)
    assert canonical(got[1]["whole"]) == canonical(names)
    assert canonical(got) == canonical(stored({"names": names, "whole": whole_batch(names)}, [0, 1]))


@pytest.mark.parametrize("page_format", FORMATS)
def test_a_wrong_number_of_values_loses_only_itself(page_format: Format, tmp_path: Path) -> None:
    write(tmp_path, [([0, 1, 2], {"bad": per_datapoint([1, 2]), "good": 7})], page_format=page_format)
    outputs = load_debug_outputs(tmp_path, trust_pickle=True)
    assert [outputs[j]["good"] for j in range(3)] == [7, 7, 7]


# ---------------------------------------------------------------- what is not stored as it is
class Unknown:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize("size", [1, 1000, 1001, 10**6])
def test_unknown_objects_become_opaque_with_a_bounded_repr(size: int) -> None:
    got = stored([Unknown("x" * size)])[0][0]
    assert isinstance(got, Opaque)
    assert got.type.endswith("test_round_trip.Unknown")
    assert got.text == "x" * size if size <= 1000 else got.text == "x" * 999 + "…"


def test_a_broken_repr_loses_nothing_else() -> None:
    got = stored({"a": Broken(), "b": 1, "meta": torch.empty(3, device="meta")})[0]
    assert got["a"].text == "<repr failed: RuntimeError>"
    assert got["b"] == 1
    assert isinstance(got["meta"], Opaque)


def _cyclic() -> list[Any]:
    cycle: list[Any] = [1]
    cycle += [cycle, {"again": cycle}]
    return cycle


class KeyThatCannotBeShown:
    def __str__(self) -> str:
        raise KeyError("no text")

    __repr__ = __str__


UNSTORABLE: dict[str, Callable[[], Any]] = {
    "cyclic": _cyclic,
    "an integer of too many digits": lambda: {"t": torch.ones(3), "n": 10**5000},
    "int4": lambda: torch.empty(2, dtype=torch.int4),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", UNSTORABLE)
def test_what_cannot_be_stored_fails_with_a_note_and_the_rest_is_kept(kind: str, tmp_path: Path) -> None:
    good = {"t": torch.arange(3), "s": "text"}
    outputs = opened(write(tmp_path, [(0, {"before": good, "bad": UNSTORABLE[kind](), "after": good}), (1, {"x": 1})]))
    assert canonical(outputs[0]) == canonical({"before": good, "after": good})
    assert outputs.notes(0)["failures"].keys() == {"bad"}
    assert canonical(outputs[1]) == canonical({"x": 1})
    assert verify_folder(tmp_path) == []


def test_a_key_without_a_text_does_not_stop_the_loop(tmp_path: Path) -> None:
    outputs = opened(write(tmp_path, [(0, {"bad": {KeyThatCannotBeShown(): torch.ones(1)}, "good": 1}), (1, {"x": 1})]))
    assert outputs[0]["good"] == 1
    assert outputs[1] == {"x": 1}


def test_names_of_debuggers_that_are_not_text(tmp_path: Path) -> None:
    """Refused at once, or kept as text: never a line that no reader understands."""
    with debugger(tmp_path) as d:
        try:
            d.add_to_buffer({1: 2.0}, datapoint(0))  # type: ignore[dict-item]
        except (TypeError, ValueError):
            return
    assert [*opened(tmp_path)[0].values()] == [2.0]


# ---------------------------------------------------------------- the bounds of a line
@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> int:
    """A smaller longest line, so that it is reached quickly."""
    monkeypatch.setattr(format, "MAX_LINE", 1 << 20)
    monkeypatch.setattr(format, "MAX_CONTAINERS", 20_000, raising=False)
    return format.MAX_LINE


LONG: dict[str, Callable[[int], tuple[Idx, dict[str, Any], dict[str, Any]]]] = {
    "one debugger's text": lambda n: (0, {"a": "x" * 2 * n, "b": "y"}, {}),
    "the text of all together": lambda n: (0, dict.fromkeys("abcd", "x" * (n // 3)), {}),
    "text up to the last byte": lambda n: (0, {"a": "x" * (n - 4096 - 30)}, {}),
    "text and the indices of a batch": lambda n: ([*range(10**9, 10**9 + 5000)], {"a": "x" * (n - 4096 - 30)}, {}),
    "the lists of one debugger": lambda n: (0, {"a": [[]] * 30_000, "b": 1}, {}),
    "the lists of all together": lambda n: (0, {k: [[]] * 4_900 for k in "abcdefgh"}, {}),
    "brackets in text": lambda n: (0, {"a": "[" * 30_000, "b": 1}, {}),
    "a failure's message": lambda n: (0, {"b": 1}, {"failures": {"a": "x" * 2 * n}}),
    "brackets in a failure's message": lambda n: (0, {"b": 1}, {"failures": {"a": "[" * 30_000}}),
}


@pytest.mark.parametrize("kind", LONG)
def test_no_line_is_written_that_is_too_long_to_be_read(kind: str, short_lines: int, tmp_path: Path) -> None:
    idx, given, notes = LONG[kind](short_lines)
    writer = PageWriter(SafetensorsSink(tmp_path, page_size=100 << 20, rank=None), queue_bytes=1 << 30)
    writer.put(idx, {name: snapshot(value) for name, value in given.items()}, notes)
    writer.put(7, {"x": snapshot(7)}, {})
    writer.close()
    outputs = opened(tmp_path)
    assert outputs[7] == {"x": 7}
    first = idx[0] if isinstance(idx, list) else idx
    assert {*outputs[first], *outputs.notes(first).get("failures", {})} == {*given, *notes.get("failures", {})}
    assert verify_folder(tmp_path) == []


# ---------------------------------------------------------------- awkward values, one by one
AWKWARD: dict[str, Any] = {
    "an enum as a key": {Split.TRAIN: 1, Level.LOW: 2},
    "an enum whose value is a tuple": Split.TEST,
    "an empty flag": Parts(0),
    "a set of what is neither text nor number": {
        Path("a"),
        1 + 2j,
        np.int64(3),
        datetime.date(2020, 1, 1),
        Split.TRAIN,
    },
    "bytes in an array": np.array([b"ab", b"c"]),
    "an array of the other byte order": np.array([1.0, 2.0], ">f4").astype(">f4"),
    "empty text of numpy": np.str_(""),
    "empty arrays of text": [np.array([], "U3"), np.array([""]), np.zeros((0, 3), "S2"), np.array([], "M8[s]")],
    "dates of numpy": [np.datetime64("2020-01-01T12:00"), np.array(["NaT", "2020"], "M8[Y]"), np.timedelta64(5, "D")],
    "long numbers": [np.longdouble("0.1"), np.clongdouble(1j), np.array([0.1], np.longdouble)],
    "a dict that looks like one of ours": {"$": "tensor", "dtype": "float32", "shape": [1], "at": 0},
    "keys that only look equal": {1: "int", "1": "text", (1,): "tuple", b"1": "bytes"},
    "a key that is a tuple of an enum": {(Split.TRAIN, Path("x")): 1},
    "lone surrogates in names of tensors": {"\ud800": torch.ones(2)},
    "names of tensors that collide": {"a": {"b": torch.ones(1)}, "a/b": torch.zeros(1), "a/b~2": torch.ones(2)},
    "64 levels": (lambda: __import__("functools").reduce(lambda v, _: [v], range(63), torch.ones(1)))(),
    "finite floats whose sum is not": [1e308, 1e308],
    "minus zero": [-0.0, 0.0],
    "a namedtuple with a field called type": collections.namedtuple("Thing", "type count index")(1, 2, 3),
}


def _in_native_order(value: Any) -> Any:
    return value.astype(value.dtype.newbyteorder("=")) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_values(name: str) -> None:
    assert canonical(_in_native_order(stored(AWKWARD[name])[0])) == canonical(_in_native_order(AWKWARD[name]))


def test_fields_of_a_namedtuple_are_read_by_name() -> None:
    got = stored(collections.namedtuple("Thing", "type count index")(1, 2, 3))[0]
    assert (got.type, got.count, got.index) == (1, 2, 3)
    box = stored(Box(1, 2, "cat"))[0]
    assert (box.x, box.y, box.label) == (1, 2, "cat")
    assert box == Box(1, 2, "cat")


def test_a_masked_array_does_not_come_back_unmasked() -> None:
    given = np.ma.masked_array([1.0, 2.0], [True, False])
    got = stored(given)[0]
    assert isinstance(got, Opaque) or (isinstance(got, np.ma.MaskedArray) and got.mask.tolist() == [True, False])


def test_keys_that_look_alike_lose_no_value(tmp_path: Path) -> None:
    relu = {torch.nn.ReLU(): 1, torch.nn.ReLU(): 2}
    outputs = opened(write(tmp_path, [(0, {"x": relu})]))
    assert "x" in outputs.notes(0).get("failures", {}) or sorted(outputs[0]["x"].values()) == [1, 2]


def test_a_dataclass_equals_the_one_it_came_from() -> None:
    assert stored(Detection(0.5, [1, 2]))[0] == Detection(0.5, [1, 2])
    assert stored({Key("a"): 1})[0] != {}


# ---------------------------------------------------------------- indices
@pytest.mark.parametrize("idx", [0, -1, 2**63 - 1, -(2**63), -6 * 10**18])
def test_every_index_of_64_bits(idx: int, tmp_path: Path) -> None:
    outputs = opened(write(tmp_path, [(6 * 10**18, {"x": "far"}), (idx, {"x": idx}), (3, {"x": "near"})]))
    assert dict(outputs) == {idx: {"x": idx}, 3: {"x": "near"}, 6 * 10**18: {"x": "far"}}
