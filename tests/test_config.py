from __future__ import annotations

import abc
import copy
import datetime
from typing import Any

import pytest

from endoscope.config import build_from_config, check_node, is_node
from endoscope.errors import ConfigError, EndoscopeError


class Box:
    """Remembers what it was built with."""

    def __init__(self, content: Any = None, *, layer_name: str = "conv1", **extra: Any) -> None:
        self.content = content
        self.layer_name = layer_name
        self.extra = extra


class Strict:
    def __init__(self, layer_name: str, *, downsample_factor: int = 1) -> None:
        self.layer_name = layer_name
        self.downsample_factor = downsample_factor


def node(cls: Any, **args: Any) -> dict[str, Any]:
    return {"class": cls, "args": args}


def message(config: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build_from_config(config, **kwargs)
    return str(caught.value)


def test_a_node_is_built_with_its_args() -> None:
    built = build_from_config(node(Strict, layer_name="layer4"))
    assert isinstance(built, Strict)
    assert built.layer_name == "layer4"


def test_args_may_be_absent() -> None:
    assert isinstance(build_from_config({"class": Box}), Box)


def test_keyword_arguments_join_the_args_of_the_top_node_only() -> None:
    built = build_from_config(node(Box, content=node(Box)), model="the model")
    assert built.extra == {"model": "the model"}
    assert built.content.extra == {}


def test_nodes_are_built_inside_lists_tuples_and_dicts() -> None:
    built = build_from_config(node(Box, content=[node(Box), (node(Box),), {"deep": node(Box, content=1)}]))
    first, second, third = built.content
    assert isinstance(first, Box)
    assert isinstance(second, tuple)
    assert isinstance(second[0], Box)
    assert third["deep"].content == 1


@pytest.mark.parametrize("key", ["debuggers_config", "debugger_config", "any_config"])
def test_what_is_under_a_config_key_is_handed_over_unbuilt(key: str) -> None:
    inner = [{"name": "a", "debugger_config": node(Strict)}, node(Strict)]
    assert build_from_config(node(Box, **{key: inner})).extra[key] == inner


def test_a_config_key_inside_a_dict_is_left_unbuilt_too() -> None:
    inner = node(Strict)
    assert build_from_config(node(Box, content={"debugger_config": inner})).content == {"debugger_config": inner}


@pytest.mark.parametrize("value", [None, 3, "text", [1, {"class": Box}], {"args": {}}, {"class": "cat", "score": 0.9}])
def test_anything_that_is_not_a_node_is_returned_as_it_is(value: Any) -> None:
    assert build_from_config(value) is value


def test_a_class_may_be_named_by_its_path() -> None:
    assert build_from_config(node("datetime.date", year=2024, month=2, day=29)) == datetime.date(2024, 2, 29)


def test_any_callable_serves_as_a_class() -> None:
    assert build_from_config(node(lambda value: value + 1, value=1)) == 2


def test_the_config_is_never_changed_even_by_a_constructor_that_changes_its_arguments() -> None:
    def greedy(content: list[Any], inner_config: dict[str, Any]) -> int:
        content[1].clear()
        content.clear()
        inner_config["args"].clear()
        return len(content)

    config = node(greedy, content=[1, {"a": 2}], inner_config=node(Strict, layer_name="x"))
    before = copy.deepcopy(config)
    assert build_from_config(config) == 0
    assert config == before


def test_the_same_node_twice_gives_two_objects() -> None:
    shared = node(Box)
    first, second = build_from_config(node(Box, content=[shared, shared])).content
    assert first is not second


def test_an_unknown_argument_names_its_path_the_accepted_ones_and_the_nearest() -> None:
    config = node(Box, content=[node(Box), node(Strict, layr_name="conv1")])
    assert message(config) == (
        "args.content[1].args.layr_name: Strict takes no such argument; closest: 'layer_name'\n"
        "accepted: layer_name, downsample_factor"
    )


def test_a_missing_argument_names_its_path_and_the_accepted_ones() -> None:
    assert message(node(Strict, downsample_factor=2)) == (
        "args.layer_name: Strict: missing a required argument: 'layer_name'\n"
        "accepted: layer_name, downsample_factor"
    )  # fmt: skip


def test_arguments_are_checked_before_anything_inside_is_built() -> None:
    built = []
    config = node(Strict, layr_name=node(lambda: built.append("built")))
    message(config)
    assert built == []


def test_an_argument_given_twice_is_refused() -> None:
    assert message(node(Box, content=1), content=2) == (
        "args.content: given by the config and the code that builds Box; remove it from the config"
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"class": Box, "arg": {}}, "arg: a node has the keys 'class' and 'args' only; closest: 'args'"),
        ({"class": Box, "args": [1]}, "args: found a list; expected a dict from argument names to values"),
        ({"class": 3}, "class: found 3; expected a class or its path, like 'package.module.Name'"),
        ({"class": "Box"}, "class: found 'Box'; expected a class or its path, like 'package.module.Name'"),
        ({"class": ".a.Box"}, "class: found '.a.Box'; expected a class or its path, like 'package.module.Name'"),
        ({"class": "math.pi"}, "class: found 'math.pi'; expected a class or its path, like 'package.module.Name'"),
        ({"class": "no_such.Box"}, "class: no module named 'no_such', needed for 'no_such.Box'"),
        ({"class": "datetime.dat"}, "class: module 'datetime' has no 'dat'; closest: 'date', 'datetime'"),
    ],
)
def test_a_malformed_node_says_what_was_found_and_what_was_expected(config: Any, expected: str) -> None:
    assert message(config) == expected


def test_a_module_that_misses_its_own_import_is_not_taken_for_a_misspelt_path(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("import absent_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="absent_dependency"):
        build_from_config(node("broken_module.Name"))


@pytest.mark.parametrize("error", [TypeError("missing a required argument: 'x'"), ValueError("bad"), KeyError("k")])
def test_what_the_constructor_raises_is_left_unchanged(error: Exception) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        build_from_config(node(Box, content=node(fails)))
    assert caught.value is error


def test_builtins_without_a_signature_are_called_all_the_same() -> None:
    assert build_from_config(node(dict, a=1)) == {"a": 1}


def test_extra_keyword_arguments_do_not_hide_a_missing_one() -> None:
    def open_ended(needed: int, **rest: int) -> None: ...

    assert message(node(open_ended, other=1)).startswith("args.needed: ")


def test_a_key_path_stands_before_the_path_inside_the_node() -> None:
    with pytest.raises(ConfigError) as caught:
        build_from_config(node(Box, content=[node(Strict, layr_name="x")]), key_path="val_dataset")
    assert str(caught.value).startswith("val_dataset.args.content[0].args.layr_name: Strict takes no such argument")


def test_a_key_path_is_not_handed_to_the_constructor() -> None:
    assert build_from_config(node(Box), key_path="model", path="kept").extra == {"path": "kept"}


def test_an_argument_that_the_code_gives_and_the_class_does_not_take_is_the_fault_of_the_class() -> None:
    assert message(node(Strict, layer_name="x"), model=1) == (
        "class: Strict does not take 'model', which the caller passes\naccepted: layer_name, downsample_factor"
    )


def refusal(config: Any, **how: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_node(config, **how)
    return str(caught.value)


class Abstract(abc.ABC):
    @abc.abstractmethod
    def process_forward(self) -> None: ...


def test_a_check_calls_nothing() -> None:
    built: list[str] = []

    def notes(content: Any = None) -> None:
        built.append("built")

    config = node(notes, content=[node(notes), {"inner_config": node(notes)}])
    check_node(config)
    assert built == []
    build_from_config(config)  # the twin: a call would have been noticed
    assert built == ["built", "built"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            node(Strict, layer_name="x", downsample=2),
            "model.args.downsample: Strict takes no such argument; closest: 'downsample_factor'\n"
            "accepted: layer_name, downsample_factor",
        ),
        (
            node(Box, content=({"deep": node(Strict)},)),
            "model.args.content[0].deep.args.layer_name: Strict: missing a required argument: 'layer_name'\n"
            "accepted: layer_name, downsample_factor",
        ),
        ({"class": Box, "arg": {}}, "model.arg: a node has the keys 'class' and 'args' only; closest: 'args'"),
        ({"class": "datetime.dat"}, "model.class: module 'datetime' has no 'dat'; closest: 'date', 'datetime'"),
        ({"class": "no_such.Box"}, "model.class: no module named 'no_such', needed for 'no_such.Box'"),
        ({"class": Box, "args": [1]}, "model.args: found a list; expected a dict from argument names to values"),
        (node(Abstract), "model.class: Abstract is abstract; it lacks process_forward"),
    ],
)
def test_a_check_finds_what_building_would_refuse(config: Any, expected: str) -> None:
    assert refusal(config, key_path="model") == expected


def test_names_that_will_be_given_are_neither_missing_nor_allowed_in_the_config() -> None:
    assert "missing a required argument" in refusal(node(Strict))
    check_node(node(Strict), given=["layer_name"])
    assert refusal(node(Strict, layer_name="x"), given=["layer_name"], key_path="debugger") == (
        "debugger.args.layer_name: given by the config and the code that builds Strict; remove it from the config"
    )
    assert refusal(node(Strict, layer_name="x"), given=["model"], key_path="debugger").startswith(
        "debugger.class: Strict does not take 'model', which the caller passes"
    )


def test_under_a_config_key_a_missing_argument_passes_and_a_wrong_one_does_not() -> None:
    def entries(**args: Any) -> list[dict[str, Any]]:
        return [{"name": "a", "debugger_config": node(Strict, **args)}]

    check_node(node(Box, debuggers_config=entries(downsample_factor=2)))
    assert refusal(node(Box, debuggers_config=entries(layr_name="x")), key_path="debugger").startswith(
        "debugger.args.debuggers_config[0].debugger_config.args.layr_name: Strict takes no such argument"
    )
    wrong_class = node(Box, inner_config={"class": "datetime.dat", "args": {}})
    assert refusal(wrong_class).startswith("args.inner_config.class: module 'datetime' has no 'dat'")


def test_data_under_a_config_key_that_looks_like_a_node_passes() -> None:
    check_node(node(Box, inner_config={"class": "cat"}))
    assert "found 'cat'" in refusal(node(Box, content={"class": "cat"}))  # building would refuse this one


def test_a_module_that_misses_its_own_import_is_a_config_error_in_a_check(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking_module.py").write_text("import absent_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert refusal(node("lacking_module.Name"), key_path="model") == (
        "model.class: 'lacking_module.Name' cannot be imported: "
        "ModuleNotFoundError: No module named 'absent_dependency'"
    )


@pytest.mark.parametrize("value", [None, 3, "text", [{"class": "no_such.Box"}], {"args": {}}])
def test_what_is_no_node_passes_a_check(value: Any) -> None:
    assert not is_node(value)
    check_node(value)


def test_the_error_is_ours_and_a_value_error() -> None:
    assert issubclass(ConfigError, EndoscopeError)
    assert issubclass(ConfigError, ValueError)
