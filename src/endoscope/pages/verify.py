"""Checking a folder of pages: every line, every record's bytes and every closed page's header."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash

from endoscope.errors import PageFormatError
from endoscope.pages import catalogue, format
from endoscope.pages.catalogue import Index
from endoscope.pages.files import Listing, NotOpenedError, PageFiles, list_folder, open_file, read_at
from endoscope.pages.record import RecordReader
from endoscope.pages.scan import Damage, read_lines, scan


def verify_folder(folder: Path) -> list[Damage]:
    """Read all of it; returns what is damaged. An unfinished page is not damage: its complete records are checked."""
    # Catalogues come first: every page that they name exists at this moment.
    catalogues = {name: _read_catalogue(str(folder), name) for name in list_folder(str(folder)).catalogues}
    listing = list_folder(str(folder))
    damage: list[Damage] = []
    datapoints: set[int] = set()
    for name in listing.pages:
        files = PageFiles(str(folder), name)
        try:
            index, in_lines = scan(files)
            damage += in_lines
            datapoints |= set(index.indices.tolist())
            if len(index) or not in_lines:
                damage += _verify_records(files, index)
                damage += _verify_ending(files, index)
        except PageFormatError as e:
            damage.append(Damage(f"{name}.jsonl", None, str(e)))
        finally:
            files.close()
    for name, lines in catalogues.items():
        damage += _verify_catalogue(name, lines, listing, datapoints)
    return damage


def verify_lengths(folder: str, names: Iterable[str]) -> tuple[list[Damage], list[str]]:
    """Compare closed pages' tensor files with the length in their last line; nothing else is read.

    Returns the damage, and the pages that cannot be opened now: too many open files, for example, is not damage.
    """
    damage: list[Damage] = []
    unmeasured: list[str] = []
    for name in names:
        files = PageFiles(folder, name)
        try:
            closing = _closing(files)
            if closing is None:
                raise PageFormatError("the closing line is missing")
            damage += _wrong_length(files, closing)
        except NotOpenedError:
            unmeasured.append(name)
        except PageFormatError as e:
            damage.append(Damage(f"{name}.jsonl", None, str(e)))
        except OSError:  # while reading
            unmeasured.append(name)
        finally:
            files.close()
    return damage, unmeasured


# ---------------------------------------------------------------- one page
def _verify_records(files: PageFiles, index: Index) -> list[Damage]:
    damage = []
    for k, line in enumerate(zip(index.starts.tolist(), index.ends.tolist(), strict=True)):
        indices: tuple[int, ...] = ()
        try:
            record = RecordReader(files, files.line(*line))
            indices = tuple(record.indices)
            for name in record.outputs:
                record.read(name, None)
        except PageFormatError as e:
            damage.append(Damage(f"{files.name}.safetensors", k, str(e), indices))
    return damage


def _verify_ending(files: PageFiles, index: Index) -> list[Damage]:
    """A closed page has the records and bytes that its closing line names, under an unchanged safetensors header."""
    closing = _closing(files) if index.pages[0].closed else None
    if closing is None:
        return _verify_unclosed(files, index)
    damage = []
    if closing.get("records") != len(index):
        damage.append(Damage(f"{files.name}.jsonl", None, f"{len(index)} complete records of {closing.get('records')}"))
    tensors = f"{files.name}.safetensors"
    try:
        wrong = _wrong_length(files, closing)
    except NotOpenedError as e:
        wrong = [Damage(tensors, None, str(e))]
    if not wrong and xxhash.xxh3_64_hexdigest(read_at(files.data, 0, files.data_start).data) != closing.get("header"):
        wrong = [Damage(tensors, None, "the safetensors header is not the one that was written")]
    return damage + wrong


def _closing(files: PageFiles) -> dict[str, Any] | None:
    """The closing line's content; None if the last line is another one."""
    size = os.fstat(files.text).st_size
    tail = read_at(files.text, max(0, size - 4096), min(size, 4096)).tobytes()
    closing = format.unseal(tail.rstrip(b"\n").rpartition(b"\n")[2]).get("closed")
    return closing if isinstance(closing, dict) else None


def _wrong_length(files: PageFiles, closing: dict[str, Any]) -> list[Damage]:
    name = f"{files.name}.safetensors"
    try:
        size = os.fstat(files.data).st_size
    except NotOpenedError:
        raise
    except PageFormatError as e:
        return [Damage(name, None, str(e))]
    written = closing.get("bytes")
    return [Damage(name, None, f"{size} bytes long, written as {written}")] if size != written else []


def _verify_unclosed(files: PageFiles, index: Index) -> list[Damage]:
    """A page without a closing line has lost it if its header was written, which comes after every record."""
    try:
        head = os.pread(files.data, 8, 0)  # zeros or nothing until the header is written
    except PageFormatError:
        if len(index):
            raise
        return []  # it was only just begun
    if not any(head):
        return []
    lines = zip(index.starts.tolist(), index.ends.tolist(), strict=True)
    end = max((RecordReader(files, files.line(*line)).end for line in lines), default=files.data_start)
    size = os.fstat(files.data).st_size
    now, _ = scan(files)
    if size <= end or len(now) != len(index) or now.pages[0].closed:  # or a writer has just closed it
        return []
    return [Damage(f"{files.name}.jsonl", None, f"lines are missing: no record names the last {size - end} bytes")]


# ---------------------------------------------------------------- catalogues
Lines = list[bytes | None] | PageFormatError
"""A catalogue's lines, None for one that is too long; or why it cannot be read."""


def _read_catalogue(folder: str, name: str) -> Lines:
    """All lines but one that is still being written."""
    try:
        fd = open_file(folder, name)
    except PageFormatError as e:
        return e
    try:
        lines = read_lines(fd)
        return [line for _, line, ended in lines if ended or line is None or format.is_sealed(line[:-1])]
    finally:
        os.close(fd)


def _verify_catalogue(name: str, lines: Lines, listing: Listing, datapoints: set[int]) -> list[Damage]:
    if isinstance(lines, PageFormatError):
        return [Damage(name, None, str(lines))]
    damage = []
    for k, line in enumerate(lines):
        try:
            damage += _verify_coverage(catalogue.decode(line or b""), listing, datapoints)
        except PageFormatError as e:
            damage.append(Damage(name, k, str(e)))
    return damage


def _verify_coverage(index: Index, listing: Listing, datapoints: set[int]) -> list[Damage]:
    """Every page that a catalogue names exists, and every datapoint is in a complete line."""
    damage = []
    for n, info in enumerate(index.pages):
        listed = index.datapoints_of(n)
        if info.name not in listing.pages:
            damage.append(Damage(f"{info.name}.jsonl", None, "the page is missing", tuple(listed)))
        elif lost := sorted(set(listed) - datapoints):
            cause = "datapoints in the catalogue that no complete line holds"
            damage.append(Damage(f"{info.name}.jsonl", None, cause, tuple(lost)))
    return damage
