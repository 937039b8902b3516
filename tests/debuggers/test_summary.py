"""FeatureMapDebugger's numbers: not made in the loop, and the same wherever they are looked at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.captures import opened, write
from tests.format.values import DTYPES, from_bytes
from tests.sameness import canonical

from endoscope import SequentialDebugger, load_debug_outputs, summaries
from endoscope.capturing.snapshot import snapshot
from endoscope.debuggers import FeatureMapDebugger
from endoscope.pages.verify import verify_folder
from endoscope.values import Summary, whole_batch

Format = Literal["safetensors", "pickle"]


class Given(torch.nn.Module):
    """Its output is what it is told to be."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def captured(folder: Path, outputs: list[Any], idx: list[Any], **settings: Any) -> list[Any]:
    """Capture these outputs of a layer; returns what the calls handed out."""
    model = Given()
    config = [{"name": "maps", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "layer"}}}]
    with SequentialDebugger(config, model, output_dir=folder, **settings) as debugger, torch.no_grad():
        debugger.enabled = True
        handed_out = []
        for output, at in zip(outputs, idx, strict=True):
            model(output)
            handed_out.append(debugger({"meta_info": {"idx": at}})["maps"])
    return handed_out


def described(output: Any) -> Any:
    return FeatureMapDebugger("layer").process_forward(torch.nn.Identity(), (), output)


@pytest.mark.parametrize("page_format", ["safetensors", "pickle"])
def test_the_same_wherever_it_is_looked_at(tmp_path: Path, page_format: Format) -> None:
    x = torch.randn(1, 8, 5, 5)
    (handed_out,) = captured(tmp_path, [x], [7], page_format=page_format)
    read = load_debug_outputs(tmp_path, trust_pickle=True)[7]["maps"]
    assert canonical(read) == canonical(handed_out) == canonical(described(x))
    assert read["stats"]["mean"] == pytest.approx(x.double().mean().item(), rel=1e-5)
    assert read["stats"]["std"] == pytest.approx(x.double().std().item(), rel=1e-5)
    assert (read["stats"]["min"], read["stats"]["max"]) == (x.min().item(), x.max().item())
    assert (read["stats"]["non_finite"], read["stats"]["shape"]) == (0, [1, 8, 5, 5])


def test_nothing_is_computed_in_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(x: torch.Tensor) -> Any:
        raise AssertionError("numbers were made while the model ran, or when it was written")

    model = Given()
    config = [{"name": "maps", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "layer"}}}]
    with monkeypatch.context() as patch:
        patch.setattr(summaries, "summarize", refuse)
        with SequentialDebugger(config, model, output_dir=tmp_path, on_error="raise") as debugger:
            debugger.enabled = True
            model(torch.ones(1, 4))
            seen = debugger({"meta_info": {"idx": 0}})
            with pytest.raises(AssertionError, match="numbers were made"):
                seen["maps"]["stats"]["mean"]  # the twin: reading them computes them
    assert opened(tmp_path)[0]["maps"]["stats"]["mean"] == 1.0


@pytest.mark.parametrize("page_format", ["safetensors", "pickle"])
def test_each_datapoint_of_a_batch_has_its_own(tmp_path: Path, page_format: Format) -> None:
    x = torch.randn(20, 3, 4)
    x[3, 0, 0] = torch.nan
    captured(tmp_path, [x], [[*range(20)]], page_format=page_format)
    read = load_debug_outputs(tmp_path, trust_pickle=True)
    assert canonical([read[j]["maps"] for j in range(20)]) == canonical([described(x[j : j + 1]) for j in range(20)])
    assert [read[j]["maps"]["stats"]["non_finite"] for j in range(5)] == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("page_format", ["safetensors", "pickle"])
@pytest.mark.parametrize("idx", [7, [7, 9]])
def test_of_a_layer_whose_first_dimension_is_not_the_batch(tmp_path: Path, idx: Any, page_format: Format) -> None:
    x = torch.randn(5, 4)
    captured(tmp_path, [x], [idx], page_format=page_format)
    stats = load_debug_outputs(tmp_path, trust_pickle=True)[7]["maps"]["stats"]
    assert type(stats["mean"]) is list
    assert stats["mean"] == [described(row[None])["stats"]["mean"] for row in x]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    x = from_bytes(bytes(range(256))[: 6 * dtype.itemsize], dtype, (1, 6))
    captured(tmp_path, [x], [0])
    assert verify_folder(tmp_path) == []
    assert canonical(opened(tmp_path)[0]["maps"]) == canonical(described(x))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize(
    "output",
    [
        torch.ones(1, 0),
        torch.ones(0, 3),
        torch.tensor(2.0),
        torch.ones(1, 3).to_sparse(),
        torch.ones(1, 4, 2).transpose(1, 2),
        (torch.ones(1, 2), torch.zeros(1, 3)),
    ],
    ids=["no values", "no datapoint", "0-d", "sparse", "transposed", "tuple"],
)
def test_of_odd_outputs(tmp_path: Path, output: Any) -> None:
    captured(tmp_path, [output], [0])
    assert canonical(opened(tmp_path)[0]["maps"]) == canonical(described(output))


def test_of_what_cannot_be_stored(tmp_path: Path) -> None:
    captured(tmp_path, [torch.ones(1, 2, device="meta"), "text"], [0, 1])
    found = opened(tmp_path)
    assert found[0]["maps"]["stats"] is None
    assert found[1]["maps"] == {"error": "Output is not a tensor"}


# ---------------------------------------------------------------- numbers that cannot be made
def coo(values: torch.Tensor, *shape: int) -> torch.Tensor:
    """A sparse tensor whose values stand behind each other in its last dimension."""
    at = torch.zeros(len(shape), len(values), dtype=torch.int64)
    at[-1] = torch.arange(len(values))
    return torch.sparse_coo_tensor(at, values, shape, check_invariants=True)


@pytest.mark.parametrize("page_format", ["safetensors", "pickle"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16], ids=str)
def test_what_cannot_be_made_says_why(tmp_path: Path, dtype: torch.dtype, page_format: Format) -> None:
    """Torch cannot add up the values of such a sparse tensor that stand in the same place."""
    x = coo(torch.tensor([1.0, 2.0]).to(dtype), 1, 3)
    handed_out = captured(tmp_path, [x, torch.ones(1, 2)], [0, 1], page_format=page_format)
    assert verify_folder(tmp_path) == []
    read = load_debug_outputs(tmp_path, trust_pickle=True)
    assert canonical([read[i]["maps"] for i in (0, 1)]) == canonical(handed_out)
    assert canonical(handed_out[0]) == canonical(described(x))
    assert read[0]["maps"]["stats"].keys() == {"error"}
    assert read[0]["maps"]["stats"]["error"].startswith('The numbers could not be computed: "coalesce"')
    assert canonical(read[0]["maps"]["feature_map"]) == canonical(x)
    assert read[1]["maps"]["stats"]["mean"] == 1.0


@pytest.mark.parametrize("page_format", ["safetensors", "pickle"])
def test_of_a_sparse_map_that_no_memory_could_hold(tmp_path: Path, page_format: Format) -> None:
    (handed_out,) = captured(tmp_path, [coo(torch.tensor([5.0, -1.0]), 1, 10**6, 10**7)], [0], page_format=page_format)
    assert verify_folder(tmp_path) == []
    read = load_debug_outputs(tmp_path, trust_pickle=True)[0]["maps"]
    assert canonical(read) == canonical(handed_out)
    assert (read["stats"]["mean"], read["stats"]["min"], read["stats"]["max"]) == (4e-13, -1.0, 5.0)
    assert read["stats"]["std"] == pytest.approx((26 / 1e13) ** 0.5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("idx", [0, [0, 1]])
@pytest.mark.parametrize("page_format", ["safetensors", "pickle"])
def test_nested_tensors_do_not_reach_the_loop(tmp_path: Path, idx: Any, page_format: Format) -> None:
    """Such as an encoder in eval mode makes of padded inputs."""
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    config = [{"name": "maps", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "layers.?"}}}]
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    with SequentialDebugger(config, model, output_dir=tmp_path, page_format=page_format) as debugger, torch.no_grad():
        debugger.enabled = True
        model(torch.randn(2, 5, 8), src_key_padding_mask=padding)
        seen = debugger({"meta_info": {"idx": idx}})["maps/layers.0"]
        assert seen["feature_map"].is_nested
        cause = "the rows of a nested tensor differ in shape"
        assert seen["stats"] == {"error": f"The numbers could not be computed: {cause}"}
        assert [*debugger.save_all(tmp_path).failures] == (
            [] if page_format == "pickle" else ["maps/layers.0", "maps/layers.1"]
        )
    read = load_debug_outputs(tmp_path, trust_pickle=True)
    assert [*read] == [0, 1][: 2 if type(idx) is list else 1]
    if page_format == "pickle":
        assert [read[i]["maps/layers.0"]["stats"] for i in read] == [seen["stats"]] * len(read)


def test_more_rows_than_are_made_say_so() -> None:
    most, x = summaries.MOST_ROWS, torch.zeros(summaries.MOST_ROWS + 1, 1)
    made = summaries.with_summaries(
        {
            "x": x, "of_x": Summary("x"), "y": x[1:], "of_y": Summary("y"), "z": x[:1], "of_z": Summary("z"),
        }
    )  # fmt: skip
    assert made["of_x"] == {"error": f"The numbers could not be computed: more than {most} rows in one value"}
    assert made["of_y"]["mean"] == [0.0] * most
    assert made["of_z"] == made["of_x"]


def test_no_memory_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(x: torch.Tensor) -> Any:
        raise MemoryError

    monkeypatch.setattr(summaries, "summarize", exhausted)
    assert described(torch.ones(1, 2))["stats"] == {"error": "The numbers could not be computed: MemoryError"}


# ---------------------------------------------------------------- wherever it stands
def stats_of(x: Any, **also: Any) -> dict[str, Any]:
    return {"x": x, "stats": Summary("x"), **also}


@pytest.mark.parametrize(
    "value",
    [
        (stats_of(torch.ones(1, 2)),),
        [(stats_of(torch.ones(1, 2)), 1)],
        stats_of(torch.ones(1, 2), **{"$": 1}),
        {3: stats_of(torch.ones(1, 2))},
        stats_of(whole_batch(torch.ones(2, 2))),
        whole_batch(stats_of(torch.ones(2, 2))),
        stats_of([torch.ones(1, 2)]),
        [Summary("x")],
        stats_of(torch.nn.utils.rnn.PackedSequence(torch.ones(2), torch.ones(2))),
        torch.nn.utils.rnn.PackedSequence(stats_of(torch.ones(1, 2)), torch.ones(2)),  # type: ignore[arg-type]
    ],
    ids=[
        "in a tuple", "in a tuple in a list", "with a key $", "under a number", "of a whole batch", "in a whole batch",
        "of a list", "in no dict", "of a namedtuple", "in a namedtuple",
    ],
)  # fmt: skip
@pytest.mark.parametrize("idx", [0, [0, 1, 2]])
def test_the_same_in_every_container(tmp_path: Path, value: Any, idx: Any) -> None:
    read = [
        load_debug_outputs(write(tmp_path / how, [(idx, {"v": value})], page_format=how), trust_pickle=True)[0]["v"]
        for how in ("safetensors", "pickle")
    ]
    handed_out = summaries.with_summaries(snapshot(value).value)
    assert canonical(read[0]) == canonical(read[1]) == canonical(handed_out)
    assert "Summary" not in repr(handed_out)


COUNTED = """
import os, sys, torch
from endoscope import SequentialDebugger
from endoscope.debuggers import FeatureMapDebugger
torch.set_num_threads(2)
model = torch.nn.Sequential(torch.nn.Identity())
x = torch.randn(1, 1 << 20)
x.sum()  # torch has made the loop's threads
before = len(os.listdir("/proc/self/task"))
config = [{"name": "maps", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "0"}}}]
with SequentialDebugger(config, model, output_dir=sys.argv[1]) as debugger:
    debugger.enabled = True
    model(x)
    debugger({"meta_info": {"idx": 0}})
    debugger.flush()
    if sys.argv[2:]:
        import threading
        thread = threading.Thread(target=lambda: (x.sum(), threading.Event().wait(0.2)))
        thread.start()
        thread.join(0.1)
    print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize(("also", "threads"), [([], 1), (["a sum by torch on another thread"], 3)])
def test_the_writer_thread_brings_no_other_threads(tmp_path: Path, also: list[str], threads: int) -> None:
    command = [sys.executable, "-c", COUNTED, str(tmp_path), *also]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == threads
