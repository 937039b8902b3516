from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from endoscope.errors import ConfigError
from endoscope.runners.config.file import apply_overrides, load_config


@pytest.fixture(autouse=True)
def _imports_put_back() -> Iterator[None]:
    """Loading leaves its folder on sys.path and its module in sys.modules, on purpose."""
    path, modules = list(sys.path), dict(sys.modules)
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules.keys():
        del sys.modules[name]


def written(folder: Path, text: str, name: str = "some_config.py") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def refusal(path: str | Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value)


# ---- loading
def test_the_config_of_a_file(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "config = {'epochs': 3}")) == {"epochs": 3}


def test_text_is_a_path_too_and_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "config = {'epochs': 3}")
    monkeypatch.chdir(tmp_path)
    assert load_config("some_config.py") == {"epochs": 3}


def test_the_file_knows_where_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, "config = {'file': __file__, 'name': __name__}")
    assert load_config(path) == {"file": str(path), "name": "some_config"}


def test_its_folder_can_be_imported_from_while_it_loads_and_later(tmp_path: Path) -> None:
    written(tmp_path, "VALUE = 7", "sibling_of_config.py")
    written(tmp_path, "VALUE = 8", "later_sibling_of_config.py")
    path = written(tmp_path, "from sibling_of_config import VALUE\nconfig = {'seed': VALUE}")
    assert load_config(path) == {"seed": 7}
    assert __import__("later_sibling_of_config").VALUE == 8
    assert sys.path[0] == str(tmp_path)
    load_config(path)
    assert sys.path.count(str(tmp_path)) == 1


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    for epochs in range(5):  # the same size, within one second: a cache would not notice
        assert load_config(written(tmp_path, f"config = {{'epochs': {epochs}}}")) == {"epochs": epochs}


def test_nothing_is_written_beside_the_file(tmp_path: Path) -> None:
    load_config(written(tmp_path, "config = {}"))
    assert [path.name for path in tmp_path.iterdir()] == ["some_config.py"]


def test_a_dataclass_and_a_pickled_class_find_their_module(tmp_path: Path) -> None:
    text = """
import dataclasses, pickle
@dataclasses.dataclass
class Point:
    x: 'int' = 1
config = {'point': pickle.loads(pickle.dumps(Point(3)))}
"""
    assert load_config(written(tmp_path, text))["point"].x == 3


@pytest.mark.parametrize("name", ["random.py", "with-dash.py", "json.py", "torch.py", "3.py", "class.py"])
def test_a_file_may_have_the_name_of_another_module_or_none(tmp_path: Path, name: str) -> None:
    before = {module: sys.modules.get(module) for module in ("random", "json", "torch")}
    text = "class Here: pass\nconfig = {'class': Here}"
    here = load_config(written(tmp_path, text, name))["class"]
    assert sys.modules[here.__module__].Here is here
    assert {module: sys.modules.get(module) for module in before} == before


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    text = "class Here: pass\nconfig = {'class': Here}"
    first = load_config(written(tmp_path / "a", text))["class"]
    second = load_config(written(tmp_path / "b", text))["class"]
    assert first.__module__ == "some_config"
    assert second.__module__ != "some_config"
    assert sys.modules[first.__module__].Here is first
    assert sys.modules[second.__module__].Here is second


WORKERS = """
import sys
from endoscope.config import build_from_config
from endoscope.runners.config.file import load_config
from endoscope.runners.data.loaders import make_loader

if __name__ == "__main__":
    config = load_config(sys.argv[1])
    for method in ("fork", "spawn"):
        node = {"class": "torch.utils.data.DataLoader", "args": {"num_workers": 1, "multiprocessing_context": method}}
        dataset = build_from_config(config["train_dataset"])
        batch = next(iter(make_loader(node, dataset, shuffle_default=False, seed=0)))
        print(method, batch["inputs"].tolist(), batch["meta_info"])
"""


def test_forked_and_spawned_workers_find_the_classes_of_the_file(tmp_path: Path) -> None:
    written(tmp_path / "configs", "FACTOR = 10.0", "beside.py")
    text = """
import torch
class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 3
    def __getitem__(self, i):
        from beside import FACTOR
        return {"x": torch.tensor(i * i * FACTOR), "name": f"{i} squared"}
config = {"train_dataset": {"class": Squares}}
"""
    path = written(tmp_path / "configs", text)
    script = written(tmp_path, WORKERS, "script.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, script, path], capture_output=True, text=True, check=False,
                          timeout=50, env=environment, cwd=Path(__file__).parents[3])  # fmt: skip
    seen = "[0.0, 10.0, 40.0] {'name': ['0 squared', '1 squared', '2 squared'], 'idx': tensor([0, 1, 2])}"
    assert done.stdout.splitlines() == [f"fork {seen}", f"spawn {seen}"], done.stderr


# ---- files that cannot be loaded
def test_no_file_names_the_nearest(tmp_path: Path) -> None:
    written(tmp_path, "config = {}", "digits.py")
    assert refusal(tmp_path / "digit.py") == f"no config file at '{tmp_path}/digit.py'; closest: 'digits.py'"
    assert refusal("/no/such/folder/digit.py") == "no config file at '/no/such/folder/digit.py'"


def test_a_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"'{tmp_path}' is a folder; expected a Python file that defines config = {{...}}"


def test_a_file_that_is_not_python(tmp_path: Path) -> None:
    path = written(tmp_path, "epochs: 3", "digits.yaml")
    assert refusal(path) == f"'{path}' does not end in .py; expected a Python file that defines config = {{...}}"


def test_no_config_names_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path, "confg = {}\nother = 1")
    assert refusal(path) == f"{path} defines no 'config'; closest: 'confg'; expected config = {{...}}"


def test_a_config_that_is_no_dict(tmp_path: Path) -> None:
    path = written(tmp_path, "config = [1]")
    assert refusal(path) == f"{path}: config is a list; expected a dict: config = {{...}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\nconfig = {'a': 1 / 0}", ", line 2: ZeroDivisionError: division by zero"),
        ("\nimport absent_module\nconfig = {}", ", line 2: ModuleNotFoundError: No module named 'absent_module'"),
        ("def f():\n    return {}['k']\n\nconfig = f()", ", line 2: KeyError: 'k'"),
        ("import json\nconfig = json.loads('{')", ", line 2: JSONDecodeError: Expecting property name"),
        ("config = {\n  'a': 1\n  'b': 2\n}", ", line 2: SyntaxError: invalid syntax"),
    ],
)
def test_an_exception_in_the_file_names_its_line(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path, text)
    assert refusal(path).startswith(f"{path}{expected}")


def test_the_exception_itself_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, "1 / 0"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("text", ["1 / 0", "nothing = 1"])
def test_a_file_that_fails_leaves_no_trace(tmp_path: Path, text: str) -> None:
    before = list(sys.path), set(sys.modules)
    refusal(written(tmp_path, text))
    assert (list(sys.path), set(sys.modules)) == before
    load_config(written(tmp_path, "config = {}"))  # the twin: one that loads does leave them
    assert list(sys.path) != before[0]
    assert set(sys.modules) != before[1]


# ---- overriding
class Box:
    pass


def config() -> dict[str, Any]:
    return {
        "epochs": 10,
        "work_dir": "runs/a",
        "model": {"class": Box},
        "optimizer": {"class": torch.optim.SGD, "args": {"lr": 0.1, "betas": (0.9, 0.99)}},
        "debugger": {
            "class": Box,
            "args": {"debuggers_config": [{"name": "a", "debugger_config": {"class": Box, "args": {}}}]},
        },
        "options": {1: "one", "two": 2},
    }


def overridden(*overrides: str) -> dict[str, Any]:
    return apply_overrides(config(), overrides)


def mistake(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        overridden(*overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("1e-3", 0.001), ("-2", -2), ("None", None), ("True", True), ("runs/x", "runs/x"), ("'3'", "3"),
        ("[1, 2]", [1, 2]), ("(1, 'a')", (1, "a")), ("{'a': 1}", {"a": 1}), ("cuda:0", "cuda:0"), ("", ""),
        ("a=b", "a=b"), ("none", "none"), ("'[1'", "[1"), ("two words", "two words"),
        ("__import__('os')", "__import__('os')"),
    ],
)  # fmt: skip
def test_a_value_is_a_literal_or_text(text: str, value: Any) -> None:
    found = overridden(f"work_dir={text}")["work_dir"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["[1", " (a, b)", "{'a': b}"])
def test_a_string_does_not_begin_with_a_bracket(text: str) -> None:
    with pytest.raises(ConfigError, match="^work_dir: .* starts like a Python list, tuple or dict but is not one; put"):
        overridden(f"work_dir={text}")


def test_paths_through_dicts_lists_and_tuples() -> None:
    new = overridden(
        "optimizer.args.lr=1e-3",
        "optimizer.args.betas.1=0.5",
        "debugger.args.debuggers_config.0.name=x",
        "options.1=uno",
        "options.two=dos",
    )
    assert new["optimizer"]["args"] == {"lr": 0.001, "betas": [0.9, 0.5]}
    assert new["debugger"]["args"]["debuggers_config"][0]["name"] == "x"
    assert new["options"] == {1: "uno", "two": "dos"}


def test_a_path_as_errors_write_it() -> None:
    new = overridden("debugger.args.debuggers_config[0].name=x")
    assert new["debugger"]["args"]["debuggers_config"][0]["name"] == "x"


def test_a_node_may_be_replaced() -> None:
    assert overridden("debugger=None")["debugger"] is None


def test_keys_that_settings_know_may_be_new() -> None:
    assert overridden("seed=3", "scheduler=None")["seed"] == 3


def test_keys_of_other_settings_may_be_new() -> None:
    assert apply_overrides(config(), ["margin=3"], keys=["margin"])["margin"] == 3
    assert mistake("margin=3").startswith("margin: the config has no key 'margin'")


def test_arguments_of_a_node_may_be_new() -> None:
    new = overridden("optimizer.args.momentum=0.9", "model.args.width=8",
                     "debugger.args.debuggers_config.0.debugger_config.args.layer_name=a")  # fmt: skip
    assert new["optimizer"]["args"]["momentum"] == 0.9
    assert new["model"]["args"] == {"width": 8}
    assert new["debugger"]["args"]["debuggers_config"][0]["debugger_config"]["args"] == {"layer_name": "a"}


def test_later_overrides_go_before_earlier_ones() -> None:
    assert overridden("epochs=1", "epochs=2")["epochs"] == 2


def test_the_config_is_not_changed_and_objects_are_shared() -> None:
    given = config()
    given["dataset"] = [Box()]
    before = copy.copy(given), copy.deepcopy({name: given[name] for name in ("optimizer", "debugger", "model")})
    new = apply_overrides(given, ["optimizer.args.lr=1", "debugger.args.debuggers_config.0.name=x", "model.args.a=1"])
    assert given == before[0]
    assert {name: given[name] for name in before[1]} == before[1]
    assert new["dataset"][0] is given["dataset"][0]
    assert new["optimizer"]["class"] is torch.optim.SGD
    assert isinstance(new["optimizer"]["args"]["betas"], tuple)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("epochs", "'epochs' is not an override; expected key=value, like epochs=3 or optimizer.args.lr=1e-3"),
        ("=3", "'=3' is not an override; expected key=value, like epochs=3 or optimizer.args.lr=1e-3"),
        ("epoch=3", "epoch: the config has no key 'epoch'; closest: 'epochs'"),
        ("optimizr.args.lr=3", "optimizr.args.lr: the config has no key 'optimizr'; closest: 'optimizer'"),
        ("optimizer.arg.lr=3", "optimizer.arg.lr: optimizer has no 'arg'; closest: 'args'"),
        ("optimizer.lr=3", "optimizer.lr: optimizer has no 'lr'"),
        ("options.tow=3", "options.tow: options has no 'tow'; closest: 'two'"),
        ("options.args.x=3", "options.args.x: options has no 'args'"),
        ("optimizer.args.new.deep=3", "optimizer.args.new.deep: optimizer.args has no 'new'"),
        (
            "optimizer.args.lr.x=3",
            "optimizer.args.lr.x: optimizer.args.lr is 0.1, which has nothing inside; it can only be replaced",
        ),
        (
            "model.class.x=3",
            "model.class.x: model.class is the class Box, which has nothing inside; it can only be replaced",
        ),
        (
            "debugger.args.debuggers_config.1.name=x",
            "debugger.args.debuggers_config.1.name: debugger.args.debuggers_config is a list of 1; "
            "expected a position below that, found '1'",
        ),
        (
            "debugger.args.debuggers_config.a.name=x",
            "debugger.args.debuggers_config.a.name: debugger.args.debuggers_config is a list of 1; "
            "expected a position below that, found 'a'",
        ),
        ("scheduler.args.x=3", "scheduler.args.x: this config has no 'scheduler', so nothing inside it can be set"),
    ],
)
def test_a_path_that_leads_nowhere(override: str, expected: str) -> None:
    assert mistake(override) == expected
