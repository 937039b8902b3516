"""Readers close what they open, and a long capture does not use up the process's descriptors."""

from __future__ import annotations

import collections
import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.captures import opened, write
from torch import nn

from endoscope import load_debug_outputs

from .conftest import Census

PAGES = 200


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred pages with one datapoint each."""
    folder = tmp_path_factory.mktemp("many")
    records = [(k, {"a": torch.full((300,), k)}) for k in range(PAGES)]
    write(folder, records, page_size_mb=1e-3)
    assert len(list(folder.glob("page_*.safetensors"))) == PAGES
    return folder


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """At most some hundred more may be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = max(map(int, os.listdir("/proc/self/fd"))) + 1 + 150
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    yield allowed
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("end", ["closed", "with", "dropped"])
def test_fifty_readers_leave_nothing(end: str, pages: Path) -> None:
    model = nn.Identity()

    def read() -> None:
        outputs = opened(pages)
        for idx in (0, 7, 199):
            outputs[idx]
        if end == "closed":
            outputs.close()
            outputs.close()
        if end == "with":
            with outputs:
                outputs.read(3, "a")

    read()
    before = Census.of(model)
    for _ in range(50):
        read()
    assert Census.of(model).beyond(before) == {}


def test_an_open_reader_holds_descriptors(pages: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    outputs = opened(pages)
    outputs[0]
    assert len(os.listdir("/proc/self/fd")) > before
    outputs.close()


def test_every_page_is_read_within_the_limit(pages: Path, few_descriptors: int) -> None:
    outputs = load_debug_outputs(pages)
    for idx in [*range(PAGES), *reversed(range(PAGES))]:
        assert outputs[idx]["a"][0] == idx


def test_without_a_catalogue_too(pages: Path, tmp_path: Path, few_descriptors: int) -> None:
    for path in pages.glob("page_*"):
        os.link(path, tmp_path / path.name)
    outputs = opened(tmp_path)
    assert len(outputs) == PAGES
    assert not outputs.verify()
    assert outputs[123]["a"][0] == 123


def test_the_limit_can_be_reached(pages: Path, few_descriptors: int) -> None:
    with contextlib.ExitStack() as stack:
        files = map(Path.open, pages.glob("page_*"))
        with pytest.raises(OSError, match="Too many open files"):
            collections.deque(map(stack.enter_context, files))


def test_a_closed_reader_reads_on(pages: Path) -> None:
    outputs = opened(pages)
    outputs.close()
    assert outputs[5]["a"][0] == 5
    outputs.close()
