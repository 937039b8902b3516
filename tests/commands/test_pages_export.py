"""``endoscope pages export``: read with the libraries of the formats."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from tests.commands.captured import Captured, Run, flip_byte

from endoscope import load_debug_outputs

WITH_NAN = torch.tensor([math.nan, -0.0, 1e-40, math.inf])
TENSORS = {
    "float32": WITH_NAN,
    "float64": WITH_NAN.double() / 3,
    "float16": WITH_NAN.half(),
    "bfloat16": WITH_NAN.bfloat16(),
    "float8": torch.tensor([0.5, -448.0, 3.0]).to(torch.float8_e4m3fn),
    "int8": torch.tensor([[-128, 127, 0]], dtype=torch.int8),
    "int64": torch.tensor(-(2**62)),
    "uint16": torch.tensor([65535, 1, 2], dtype=torch.uint16),
    "bool": torch.tensor([True, False, True]),
    "complex64": torch.tensor([1 + 2j, 3 - 4j]),
    "empty": torch.zeros(0, 3),
}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    both = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*both)


@pytest.fixture
def folder(tmp_path: Path, captured: Captured) -> Path:
    given: Any = {"tensors": TENSORS, "x": math.nan, "name": "é"}
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    return captured(tmp_path / "epoch_4" / "debugger", {3: given, 8: {"array": array}})


@pytest.fixture
def work_dir(folder: Path) -> Path:
    return folder.parents[1]


def test_safetensors_bit_for_bit(work_dir: Path, folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out.safetensors"
    result = run("pages", "export", work_dir, out)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"wrote {out}: datapoints 2, tensors 14, ")
    loaded = safetensors.torch.load_file(out)
    seen = load_debug_outputs(folder)
    assert len(loaded) == 14
    for name in TENSORS:
        assert same_bits(loaded[f"3/given/tensors/{name}"], seen[3]["given"]["tensors"][name])
        assert same_bits(loaded[f"3/given/tensors/{name}"], TENSORS[name])
    assert same_bits(loaded["8/given/array"], torch.arange(6, dtype=torch.int32).reshape(2, 3))
    for idx in (3, 8):
        assert same_bits(loaded[f"{idx}/features/feature_map"], seen[idx]["features"]["feature_map"])


def test_safetensors_metadata_holds_the_scalars(work_dir: Path, folder: Path, tmp_path: Path, run: Run) -> None:
    run("pages", "export", work_dir, tmp_path / "out.safetensors")
    with safetensors.safe_open(tmp_path / "out.safetensors", "pt") as f:
        metadata = f.metadata()
    assert (metadata["capture"], metadata["epoch"]) == ("epoch_4/debugger", "4")
    point = json.loads(metadata["datapoints"])["3"]
    assert (point["outputs"]["given"]["x"], point["outputs"]["given"]["name"]) == ("NaN", "é")
    assert point["outputs"]["features"]["stats"]["mean"] == load_debug_outputs(folder)[3]["features"]["stats"]["mean"]
    reference = {"$": "tensor", "name": "3/given/tensors/bool", "dtype": "bool", "shape": [3]}
    assert point["outputs"]["given"]["tensors"]["bool"] == reference
    assert point["notes"]["absent"] == {"unused": "the layer did not run in this forward (on this thread)"}


def test_npz_bit_for_bit_with_conversions_listed(work_dir: Path, folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out.npz"
    result = run("pages", "export", work_dir, out)
    assert result.exit_code == 0
    assert "  1 of the tensors bfloat16 converted to float32\n" in result.stdout
    assert "  1 of the tensors float8_e4m3fn converted to float32\n" in result.stdout
    assert len(result.stdout.splitlines()) == 3
    with np.load(out, allow_pickle=False) as loaded:
        assert len(loaded.files) == 15
        for name, t in TENSORS.items():
            expected = t.float() if name in ("bfloat16", "float8") else t
            assert same_bits(torch.from_numpy(loaded[f"3/given/tensors/{name}"]), expected)
        assert np.array_equal(loaded["8/given/array"], [[0, 1, 2], [3, 4, 5]])
        seen = load_debug_outputs(folder)[8]["features"]["feature_map"]
        assert same_bits(torch.from_numpy(loaded["8/features/feature_map"]), seen)
        scalars = json.loads(str(loaded["scalars"]))
    assert scalars["datapoints"]["3"]["outputs"]["given"]["name"] == "é"
    assert scalars["epoch"] == 4


def test_jsonl_has_scalars_and_texts_only(work_dir: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out.jsonl"
    result = run("pages", "export", work_dir, out)
    assert "14 of the tensors left out, as .jsonl holds only scalars and texts" in result.stdout
    first, second = [json.loads(line) for line in out.read_text().splitlines()]
    assert (first["idx"], second["idx"], first["epoch"]) == (3, 8, 4)
    assert first["outputs"]["given"]["x"] == "NaN"
    assert first["outputs"]["given"]["tensors"]["int8"] == {"$": "tensor", "dtype": "int8", "shape": [1, 3]}


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_types_that_a_format_lacks_are_converted_and_listed(
    tmp_path: Path, captured: Captured, run: Run, suffix: str
) -> None:
    values = torch.tensor([[1 + 2j, 3 - 4j]], dtype=torch.complex128)
    captured(tmp_path, {0: {"c": values, "s": torch.tensor([0.0, 2.0]).to_sparse()}})
    out = tmp_path / f"out.{suffix}"
    result = run("pages", "export", tmp_path, out, "--debugger", "given")
    assert "  1 of the tensors sparse_coo made dense" in result.stdout
    if suffix == "npz":
        assert np.array_equal(np.load(out)["0/given/c"], values.numpy())
        assert np.array_equal(np.load(out)["0/given/s"], [0.0, 2.0])
    else:
        assert "complex128 stored as pairs of real numbers in a last dimension of 2" in result.stdout
        loaded = safetensors.torch.load_file(out)
        assert same_bits(torch.view_as_complex(loaded["0/given/c"]), values)
        assert same_bits(loaded["0/given/s"], torch.tensor([0.0, 2.0]))


def test_only_the_chosen_datapoints_and_debuggers(work_dir: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out.safetensors"
    result = run("pages", "export", work_dir, out, "--index", 8, "--index", 8, "--debugger", "features")
    assert result.exit_code == 0
    assert list(safetensors.torch.load_file(out)) == ["8/features/feature_map"]


def test_equal_names_stay_distinct(tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(tmp_path, {0: {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}}})
    for suffix in ("safetensors", "npz"):
        run("pages", "export", tmp_path, tmp_path / f"out.{suffix}", "--debugger", "given")
    loaded = safetensors.torch.load_file(tmp_path / "out.safetensors")
    assert {k: int(v) for k, v in loaded.items()} == {"0/given/a/b": 1, "0/given/a/b~2": 2}
    assert {k: int(v) for k, v in np.load(tmp_path / "out.npz").items() if k != "scalars"} == {
        "0/given/a/b": 1,
        "0/given/a/b~2": 2,
    }


@pytest.mark.parametrize("key", ["\ud800", "a\0b", "a\nb", "é/ü"])
def test_names_that_a_format_cannot_hold_are_escaped(tmp_path: Path, captured: Captured, run: Run, key: str) -> None:
    captured(tmp_path, {0: {key: torch.tensor(5)}})
    expected = "0/given/" + (key if key.isprintable() else key.encode("unicode_escape").decode())
    for suffix in ("safetensors", "npz"):
        out = tmp_path / f"out.{suffix}"
        assert run("pages", "export", tmp_path, out, "--debugger", "given").exit_code == 0
        loaded = dict(np.load(out)) if suffix == "npz" else safetensors.torch.load_file(out)
        assert [k for k in loaded if k != "scalars"] == [expected]
        assert int(loaded[expected]) == 5


def test_an_existing_file_is_replaced_only_with_overwrite(work_dir: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    result = run("pages", "export", work_dir, out)
    assert result.exit_code == 2
    assert "already exists; choose another name, or add --overwrite" in result.stderr
    assert out.read_text() == "mine"
    assert run("pages", "export", work_dir, out, "--overwrite").exit_code == 0
    assert len(out.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["out.txt"], "expected a name that ends in .safetensors, .npz, .jsonl"),
        (["out.npz", "--index", "4"], "no datapoint 4 in"),
        (["out.npz", "--debugger", "gven"], "no datapoint has a value from 'gven'; closest: 'given'"),
        (["nowhere/out.npz"], "No such file or directory"),
    ],
)
def test_a_refused_export_leaves_no_file(
    work_dir: Path, tmp_path: Path, run: Run, more: list[str], message: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = run("pages", "export", work_dir, tmp_path / more[0], *more[1:])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "jsonl"])
def test_damaged_records_are_left_out_and_named(tmp_path: Path, captured: Captured, run: Run, suffix: str) -> None:
    folder = captured(tmp_path / "debugger", dict.fromkeys(range(3), "text"))
    flip_byte(folder, record=1)
    out = tmp_path / f"out.{suffix}"
    result = run("pages", "export", tmp_path, out)
    assert result.exit_code == 1
    assert "left out: 'features' of" in result.stderr
    assert "page_0.safetensors, record 1, datapoint 1: checksum" in result.stderr
    assert f"wrote {out}: datapoints 3, tensors 2, " in result.stdout
    assert run("pages", "export", tmp_path, tmp_path / f"whole.{suffix}", "--index", 2).exit_code == 0


def test_a_page_longer_than_it_was_written_loses_nothing(tmp_path: Path, captured: Captured, run: Run) -> None:
    folder = captured(tmp_path / "debugger", dict.fromkeys(range(3), "text"))
    with (folder / "page_0.safetensors").open("ab") as page:
        page.write(b"x")
    result = run("pages", "export", tmp_path, tmp_path / "out.npz")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "datapoints 3, tensors 3" in result.stdout


def test_records_without_a_line_are_named_too(tmp_path: Path, captured: Captured, run: Run) -> None:
    folder = captured(tmp_path / "debugger", dict.fromkeys(range(3), "text"))
    lines = (folder / "page_0.jsonl").read_bytes().replace(b'"idx":1', b'"idx":7')
    (folder / "page_0.jsonl").write_bytes(lines)
    (folder / "catalogue.jsonl").unlink()
    result = run("pages", "export", tmp_path, tmp_path / "out.npz")
    assert result.exit_code == 1
    assert "left out: page_0.jsonl, record 1: checksum of the line does not match" in result.stderr
    assert "datapoints 2," in result.stdout


def test_the_last_epoch_is_used_and_named(work_dir: Path, tmp_path: Path, captured: Captured, run: Run) -> None:
    captured(work_dir / "epoch_10" / "debugger", {0: 1})
    result = run("pages", "export", work_dir, tmp_path / "out.jsonl")
    assert "using the last, epoch_10/debugger" in result.stderr
    assert run("pages", "export", work_dir, tmp_path / "4.jsonl", "--epoch", 4).stderr == ""
    assert len((tmp_path / "4.jsonl").read_text().splitlines()) == 2
