"""Nested values: walked, sized, and copied byte for byte."""

from __future__ import annotations

import collections
import dataclasses
import enum
import os
import signal
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.sameness import canonical
from tests.warm import Say, WarmProcess
from torch import Tensor, nn

from endoscope import SequentialDebugger
from endoscope.capturing.snapshot import Snapshot, snapshot, weight
from endoscope.values import (
    MAX_DEPTH,
    DataclassValue,
    EnumValue,
    NamedTupleValue,
    Opaque,
    apply_tensor_op,
    first_tensor,
    nbytes,
    per_datapoint,
    tensor_nbytes,
    tensors_in,
    whole_batch,
)

LARGE = 40_000  # elements: torch splits such a copy among its threads


class Point(NamedTuple):
    x: Tensor
    y: Any


@dataclasses.dataclass
class Result:
    logits: Tensor
    hidden: Any = None


class Colour(enum.Enum):
    RED = 1


class Named(torch.Tensor):
    """A subclass that only adds to what a tensor is."""


# ---------------------------------------------------------------- snapshot: owned bytes
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda t: t,
    "detached": lambda t: t.detach(),
    "row": lambda t: t[1],
    "column": lambda t: t[:, 1],
    "offset": lambda t: t[1:],
    "transposed": lambda t: t.T,
    "strided": lambda t: t[::2, ::2],
    "expanded": lambda t: t[:1].expand(3, *t.shape[1:]),
    "reshaped": lambda t: t.view(-1),
    "parameter": nn.Parameter,
    "subclass": lambda t: t.as_subclass(Named),
    "negated": lambda t: torch._neg_view(t),
    "channels last": lambda t: t.reshape(1, 2, -1, 2).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("columns", [4, LARGE // 2], ids=["small", "large"])
@pytest.mark.parametrize("view", VIEWS)
def test_later_changes_do_not_show(view: str, columns: int) -> None:
    original = torch.arange(4.0 * columns).reshape(4, columns)
    value = VIEWS[view](original)
    expected = canonical(value)
    found = snapshot({"a": [value], "b": value}).wait()
    with torch.no_grad():
        original.fill_(-1)
        value.fill_(-1)
    for taken in (found["a"][0], found["b"]):
        assert canonical(taken) == expected
        assert type(taken) is Tensor
        assert taken.is_contiguous()
        assert not taken.requires_grad
        assert not taken.is_neg()


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3), (LARGE,)], ids=str)
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    t = torch.randint(0, 2, shape).to(dtype)
    taken = snapshot({"t": t}).value["t"]
    assert canonical(taken) == canonical(t)
    assert nbytes(taken) == t.numel() * dtype.itemsize


@pytest.mark.parametrize("size", [4, LARGE], ids=["small", "large"])
def test_conjugated_views(size: int) -> None:
    t = torch.randn(size, dtype=torch.complex64)
    taken = snapshot({"whole": t.conj(), "imaginary": t.conj().imag}).value
    t.zero_()
    assert taken["whole"].abs().sum() > 0
    assert not taken["whole"].is_conj()
    assert not taken["imaginary"].is_neg()


def test_gradients_are_left_behind() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    taken = snapshot(y).value
    assert taken.grad_fn is None
    assert not taken.requires_grad
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_in_every_mode(mode: Any) -> None:
    with mode():
        t = torch.ones(3, requires_grad=True) * 2
        taken = snapshot({"t": t}).value["t"]
        t = t.detach()
        t.zero_()
    assert taken.tolist() == [2, 2, 2]
    assert not taken.requires_grad


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")
def test_special_layouts() -> None:
    dense = torch.eye(3)
    for t in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()):
        taken = snapshot({"t": t}).value["t"]
        t.values().zero_() if t.layout is not torch.sparse_coo else t._values().zero_()
        assert torch.equal(taken.to_dense(), dense)
    assert torch.equal(snapshot({"t": dense.to_mkldnn()}).value["t"], dense)
    quantised = torch.quantize_per_tensor(dense, 0.1, 2, torch.quint8)
    assert canonical(snapshot({"t": quantised}).value["t"]) == canonical(quantised)


def test_a_meta_tensor_is_named_not_snapshot() -> None:
    found = snapshot(torch.empty(2, 3, device="meta")).value
    assert isinstance(found, Opaque)
    assert "meta" in found.text
    assert "(2, 3)" in found.text


def test_numpy_arrays_are_snapshot() -> None:
    a = np.arange(6.0).reshape(2, 3)
    taken = snapshot({"whole": a, "view": a[:, ::-1], "scalar": a[0, 0]}).value
    a[:] = -1
    assert taken["whole"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert taken["view"].tolist() == [[2, 1, 0], [5, 4, 3]]
    assert taken["scalar"] == 0
    assert taken["view"].flags.c_contiguous


def test_containers_are_snapshot() -> None:
    inner = [1, torch.zeros(1)]
    value = {"list": inner, "set": {1, 2}, "bytes": bytearray(b"ab")}
    taken = snapshot(value).value
    inner.append(3)
    value["set"].add(3)  # type: ignore[attr-defined]
    value["bytes"][:] = b"zz"  # type: ignore[index]
    assert len(taken["list"]) == 2
    assert taken["set"] == {1, 2}
    assert taken["bytes"] == b"ab"


def test_what_foreign_types_become() -> None:
    taken = snapshot({"d": Result(torch.ones(2), hidden=(1, [2])), "n": Point(torch.ones(1), "y"), "e": Colour.RED,
                      "o": object(), "m": types.MappingProxyType({"k": 1}), "path": Path("a/b")}).value  # fmt: skip
    assert isinstance(taken["d"], DataclassValue)
    assert taken["d"].hidden == (1, [2])
    assert isinstance(taken["n"], NamedTupleValue)
    assert taken["n"].y == "y"
    assert isinstance(taken["e"], EnumValue)
    assert taken["e"] == Colour.RED
    assert isinstance(taken["o"], Opaque)
    assert taken["m"] == {"k": 1}
    assert taken["path"] == Path("a/b")


def test_a_snapshot_of_a_snapshot_is_the_same() -> None:
    value = {"d": Result(torch.ones(2)), "n": Point(torch.ones(1), 2), "e": Colour.RED, "o": object(),
             "p": per_datapoint([1, 2]), "w": whole_batch([torch.ones(2)])}  # fmt: skip
    once = snapshot(value).value
    assert canonical(snapshot(once).value) == canonical(once)
    assert type(snapshot(once).value["p"]) is type(once["p"])
    assert type(snapshot(once).value["w"]) is type(once["w"])


# ---------------------------------------------------------------- what may kill a process is run in one of its own
class Wrapper(torch.Tensor):
    """A subclass in the manner of torchao: it holds another tensor, and has no storage of its own."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def unwrapped(v: Any) -> Any:
            return v.inner if isinstance(v, Wrapper) else v

        result = func(*map(unwrapped, args), **{k: unwrapped(v) for k, v in (kwargs or {}).items()})
        return Wrapper(result) if isinstance(result, Tensor) else result


def fake(size: int) -> Tensor:
    """What a hook is given while torch.export runs the model."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(size)


def with_default_device(size: int) -> Tensor:
    """As after torch.set_default_device("cuda") at the top of a script."""
    t = torch.ones(size)
    torch.set_default_device("meta")
    return t


def take(say: Say, made_by: str, size: int) -> None:
    """Says what became of a tensor of ones: its sum, or that it was named, refused, or left to the writer to refuse."""
    value = {"fake": fake, "wrapper": lambda n: Wrapper(torch.ones(n)), "device": with_default_device}[made_by](size)
    try:
        taken = snapshot(value).value
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        say("refused")
        return
    if isinstance(taken, Opaque):
        say("named")
    else:
        say(int(taken.numpy().sum()) if type(taken) is Tensor and taken.is_cpu else "left")


@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("made_by", "allowed"),
    [("device", {"right"}), ("wrapper", {"right", "named", "refused", "left"}), ("fake", {"named", "refused", "left"})],
)
def test_no_tensor_kills_the_process(made_by: str, allowed: set[str], size: int, warm: WarmProcess) -> None:
    done = warm.run("tests.capturing.test_snapshot:take", made_by=made_by, size=size)
    assert done.status == 0, done.stderr[-500:]
    assert {"right" if said == size else said for said in done.said} <= allowed


# ---------------------------------------------------------------- walking
def test_the_structure_is_kept() -> None:
    value = {
        "a": [torch.zeros(1), (torch.ones(2), "text")],
        1: {"deep": {"deeper": torch.ones(1)}},
        "none": None,
        "number": 1.5,
    }
    doubled = apply_tensor_op(lambda t: t * 2 + 1, value)
    assert canonical(doubled) == canonical(
        {
            "a": [torch.ones(1), (torch.full((2,), 3.0), "text")],
            1: {"deep": {"deeper": torch.full((1,), 3.0)}},
            "none": None,
            "number": 1.5,
        }
    )
    assert canonical(value["a"][0]) == canonical(torch.zeros(1))  # type: ignore[index]


def test_the_seeds_keywords() -> None:
    assert apply_tensor_op(func=lambda t: t.shape, inputs=[torch.zeros(2, 3)]) == [torch.Size([2, 3])]


def test_ordered_and_default_dicts_keep_their_order() -> None:
    value = collections.OrderedDict(b=torch.zeros(1), a=torch.ones(1))
    assert [*apply_tensor_op(lambda t: t, value)] == ["b", "a"]
    assert apply_tensor_op(lambda t: 1, collections.defaultdict(list, x=[torch.zeros(1)])) == {"x": [1]}


NESTED: dict[str, tuple[Any, int]] = {
    "tensor": (torch.zeros(3), 12),
    "nothing": (None, 0),
    "text": ("a" * 1000, 0),
    "dict": ({"a": torch.zeros(3), "b": [torch.zeros(2, dtype=torch.float64)]}, 28),
    "array": ([np.zeros(3), np.zeros((2, 2), np.uint8)], 28),
    "dataclass": (Result(torch.zeros(2), hidden=[torch.zeros(1)]), 12),
    "namedtuple": (Point(torch.zeros(2), (torch.zeros(1),)), 12),
    "marks": ([per_datapoint([torch.zeros(1), torch.zeros(1)]), whole_batch(torch.zeros(1))], 12),
    "mapping": (types.MappingProxyType({"a": torch.zeros(1)}), 4),
    "expanded": (torch.zeros(1).expand(100), 400),
    "half": (torch.zeros(3, dtype=torch.bfloat16), 6),
    "sparse": (torch.eye(3).to_sparse(), 3 * 4 + 6 * 8),
    "empty": ([torch.zeros(0), np.zeros(0)], 0),
}


@pytest.mark.parametrize("kind", NESTED)
def test_sizes_are_true_bytes(kind: str) -> None:
    value, size = NESTED[kind]
    assert nbytes(value) == size
    if kind not in ("array", "empty"):
        assert sum(map(tensor_nbytes, tensors_in(value))) == size


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_the_size_of_a_compressed_tensor_includes_its_indices() -> None:
    csr = torch.eye(3).to_sparse_csr()
    parts = csr.crow_indices(), csr.col_indices(), csr.values()
    assert nbytes(csr) == sum(p.numel() * p.element_size() for p in parts)


def test_the_first_tensor() -> None:
    a, b = torch.zeros(1), torch.ones(1)
    for value in (a, [a, b], (None, "x", a), {"x": [1, {"y": a}], "z": b}, Result(a, b), Point(a, b), whole_batch([a])):
        assert first_tensor(value) is a
    for empty in (None, [], "text", 3, object(), Result(None), np.zeros(2)):  # type: ignore[arg-type]
        assert first_tensor(empty) is None


def test_tensors_come_in_order() -> None:
    ts = [torch.full((1,), k) for k in range(5)]
    value = {"a": [ts[0], {"b": ts[1]}], "c": (ts[2], Result(ts[3], hidden=[ts[4]]))}
    assert [int(t) for t in tensors_in(value)] == [0, 1, 2, 3, 4]
    assert [int(t) for t in tensors_in(snapshot(value).value)] == [0, 1, 2, 3, 4]


def nested(depth: int) -> Any:
    value: Any = torch.zeros(1)
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("function", [snapshot, nbytes, lambda v: apply_tensor_op(lambda t: t, v)])
def test_the_depth_is_limited(function: Callable[[Any], Any]) -> None:
    function(nested(MAX_DEPTH))
    with pytest.raises(ValueError, match=f"value nested deeper than {MAX_DEPTH} levels; is it cyclic"):
        function(nested(MAX_DEPTH + 2))
    cyclic: dict[str, Any] = {}
    cyclic["self"] = [cyclic]
    with pytest.raises(ValueError, match="cyclic"):
        function(cyclic)


def test_looking_for_a_tensor_in_a_cycle_ends() -> None:
    cyclic: list[Any] = []
    cyclic += [cyclic, torch.zeros(1)]
    assert first_tensor(cyclic) is not None


# ---------------------------------------------------------------- bytes that a device still delivers
class FakeEvent:
    """Like a CUDA event: the bytes arrive when it has been waited for."""

    def __init__(self, host: Tensor, arriving: Tensor) -> None:
        self.host, self.arriving = host, arriving
        self.waited = 0

    def synchronize(self) -> None:
        self.waited += 1
        self.host.copy_(self.arriving)


def on_its_way(value: float) -> tuple[Snapshot, FakeEvent, Tensor]:
    host = torch.full((2,), -1.0)
    event = FakeEvent(host, torch.full((2,), value))
    return Snapshot({"output": host}, [event]), event, host


def test_waiting_for_a_device() -> None:
    taken, event, _ = on_its_way(3)
    assert taken.wait()["output"].tolist() == [3, 3]
    taken.wait()
    assert event.waited == 1


def test_joined_snapshots_wait_for_all() -> None:
    (one, first, _), (two, second, _) = on_its_way(1), on_its_way(2)
    joined = Snapshot.joined([one, snapshot({"output": torch.zeros(2)}), two])
    assert first.waited == second.waited == 0
    assert [v["output"].tolist() for v in joined.wait()] == [[1, 1], [0, 0], [2, 2]]
    assert first.waited == second.waited == 1


# ---------------------------------------------------------------- the second copy, for the user
def test_the_users_copy_is_independent_of_the_record() -> None:
    """The writer thread may not have written the record yet."""
    taken = snapshot({"output": torch.zeros(2), "list": [1]})
    mine = taken.copy()
    mine["output"].add_(1)
    mine["list"].append(2)
    assert mine["output"].tolist() == [1, 1]
    assert canonical(taken.value) == canonical({"output": torch.zeros(2), "list": [1]})


def test_the_users_copy_can_be_changed_after_inference_mode() -> None:
    with torch.inference_mode():
        mine = snapshot(torch.zeros(2)).copy()
    mine.add_(1)
    assert mine.tolist() == [1, 1]


def test_the_users_copy_does_not_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA it is made on the device, behind the copy to the host. Here a fake device takes its place."""
    waits: list[Any] = []
    stream = types.SimpleNamespace(wait_event=waits.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.Tensor, "to", lambda t, device, non_blocking: (t, device, non_blocking))
    taken, event, host = on_its_way(5)
    assert taken.copy() == {"output": (host, "cuda", True)}
    assert waits == [event]
    assert event.waited == 0


@pytest.mark.parametrize(
    "value", ["x" * 10_000, whole_batch("x" * 10_000), torch.zeros(2500), np.zeros(1250), ["x" * 5000, b"x" * 5000]]
)
def test_weight_is_what_a_value_takes(value: Any) -> None:
    assert 10_000 <= weight(snapshot({"a": {"b": value}})) < 12_000


def test_every_record_weighs_something() -> None:
    assert weight({}) > 100
    assert weight({"m": {"x": 1.0}}) > 400


def test_records_still_on_their_way_are_stored_whole(tmp_path: Path) -> None:
    """The writer waits for the device; the loop does not."""
    from tests.captures import opened

    from endoscope.pages.sink import SafetensorsSink
    from endoscope.pages.writer import PageWriter

    (tmp_path / "debugger").mkdir()
    writer = PageWriter(SafetensorsSink(tmp_path / "debugger", page_size=1 << 20, rank=None), queue_bytes=1 << 20)
    events = []
    for idx in range(5):
        taken, event, _ = on_its_way(idx)
        events.append(event)
        assert writer.put(idx, {"a": taken, "b": snapshot(torch.zeros(1))}, {})
    writer.close()
    assert all(e.waited == 1 for e in events)
    found = opened(tmp_path)
    assert [found[k]["a"]["output"].tolist() for k in found] == [[k, k] for k in range(5)]


def test_what_is_returned_is_what_is_stored(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with SequentialDebugger([], model, output_dir=tmp_path / "debugger") as debugger:
        source = torch.zeros(2)
        debugger.add_to_buffer({"a": source}, {"meta_info": {"idx": 0}})
        source.fill_(9)
    from tests.captures import opened

    assert opened(tmp_path)[0]["a"].tolist() == [0, 0]


# ---------------------------------------------------------------- inside torch.func
def doubled(x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
    y = x * 2
    seen.append(snapshot({"x": y, "nested": [y]}))
    return y.sum()


INSIDE: dict[str, Callable[[Callable[..., Any], torch.Tensor], Any]] = {
    "grad": lambda f, x: torch.func.grad(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "vmap": lambda f, x: torch.func.vmap(f)(x.reshape(2, -1)),
    "vmap over columns": lambda f, x: torch.func.vmap(f, in_dims=1)(x.reshape(2, -1).t().contiguous()),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(f))(x.reshape(2, -1)),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),
    "grad of functionalize": lambda f, x: torch.func.grad(torch.func.functionalize(f))(x),
    "functionalize of grad": lambda f, x: torch.func.functionalize(torch.func.grad(f))(x),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, at the first jvp
@pytest.mark.parametrize("size", [6, 40_000])
@pytest.mark.parametrize("how", INSIDE)
def test_what_torch_func_computes_is_copied_and_not_disturbed(how: str, size: int) -> None:
    x, seen = torch.arange(float(size)), list[Any]()
    got = INSIDE[how](lambda y: doubled(y, seen), x)
    assert canonical(got) == canonical(INSIDE[how](lambda y: (y * 2).sum(), x))
    (one,) = seen
    for found in (one.value["x"], one.value["nested"][0]):
        assert found.shape == ((2, size // 2) if "vmap" in how else (size,))  # all slices of a vmap
        assert np.array_equal(found.numpy().ravel(), np.arange(size) * 2.0)


def alone_and_listed(t: Tensor) -> list[Snapshot]:
    """A loss, and a list of scores."""
    return [snapshot(t), snapshot([t, t])]


def plain_values(taken: list[Snapshot]) -> list[list[Any]]:
    """The values of `alone_and_listed`, read without torch, which would answer out of what is around a tensor."""
    alone, listed = (one.wait() for one in taken)
    found = [alone, *listed]
    for t in found:
        assert type(t) is Tensor
        assert not torch._is_functional_tensor(t)
        assert not torch._C._functorch.is_functorch_wrapped_tensor(t)
    return [t.numpy().tolist() for t in found]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("how", INSIDE)
def test_a_small_tensor_that_left_torch_func_is_copied_with_its_values(how: str) -> None:
    left: list[Tensor] = []

    def leaking(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1)  # in a functionalize, the tensor's own memory does not see this
        left.extend((y, y.sum()))
        return y.sum()

    INSIDE[how](leaking, torch.arange(6.0))
    rows, total = left
    expected = [[[1.0, 3, 5], [7, 9, 11]], [9.0, 27]] if "vmap" in how else [[1.0, 3, 5, 7, 9, 11], 36.0]
    assert plain_values(alone_and_listed(rows)) == [expected[0]] * 3
    assert plain_values(alone_and_listed(total)) == [expected[1]] * 3


def test_a_small_functional_tensor_as_compilers_make_it_is_copied_with_its_values() -> None:
    """No transform of torch.func has put it there."""
    assert plain_values(alone_and_listed(torch._to_functional_tensor(torch.arange(3.0)))) == [[0, 1, 2]] * 3


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("how", INSIDE)
def test_a_small_tensor_inside_torch_func_is_copied_out_of_it(how: str) -> None:
    """Also one that is not wrapped itself: what is computed of it there would be, its copy too."""
    outside, taken = torch.tensor([7.0, 8.0]), list[list[Snapshot]]()

    def watched(x: Tensor) -> Tensor:
        loss = (x * 2).sum()
        taken.extend(map(alone_and_listed, (loss, outside)))
        return loss

    INSIDE[how](watched, torch.arange(6.0))
    of_loss, of_outside = taken
    assert plain_values(of_loss) == [[6.0, 24.0] if "vmap" in how else 30.0] * 3
    assert plain_values(of_outside) == [[7.0, 8.0]] * 3


@pytest.mark.parametrize("made", [lambda t: t.as_subclass(Named), nn.Parameter])
def test_a_small_tensor_of_a_subclass_is_copied_as_a_plain_one(made: Callable[[Tensor], Tensor]) -> None:
    """A copy of its own type would behave differently when it is computed with."""
    taken = alone_and_listed(made(torch.arange(3.0)))
    assert plain_values(taken) == [[0, 1, 2]] * 3
    assert not taken[0].value.requires_grad


@pytest.mark.parametrize("size", [6, 40_000])
def test_zeros_that_have_no_memory(size: int) -> None:
    assert np.array_equal(snapshot({"x": torch._efficientzerotensor((size,))}).value["x"].numpy(), np.zeros(size))


def copy_in_a_fork(say: Say) -> None:
    large = torch.arange(float(LARGE * 10))
    torch.set_num_threads(2)
    large.sum()  # torch has made its threads, which the child does not have
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends a child that waits for them
        os._exit(0 if snapshot([large]).value[0].numpy()[-1] == large.numel() - 1 else 1)
    say(os.waitpid(child, 0)[1])


def test_a_large_copy_in_a_forked_process_ends(warm: WarmProcess) -> None:
    assert warm.run("tests.capturing.test_snapshot:copy_in_a_fork").said == [0]


def test_long_keys_weigh_what_they_take() -> None:
    assert weight(snapshot({"k" * 10_000: {"x" * 10_000: 1}})) > 20_000
