"""Checking a folder of pages: every line, every record's bytes and every closed page's header."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash

from endoscope.errors import PageFormatError
from endoscope.pages import catalogue, format
from endoscope.pages.files import Listing, NotOpenedError, PageFiles, list_folder, open_file, read_at
from endoscope.pages.record import RecordReader
from endoscope.pages.scan import Damage, read_lines, scan


def verify_folder(folder: Path) -> list[Damage]:
    """Read all of it; returns what is damaged. An unfinished page is not damage: its whole records are checked."""
    catalogues = _read_catalogues(folder)  # before the pages: what they name at this moment is there
    there = list_folder(str(folder))
    found: list[Damage] = []
    seen: set[int] = set()
    for name in there.pages:
        files = PageFiles(str(folder), name)
        try:
            index, damage = scan(files)
            found += damage
            seen |= set(index.indices.tolist())
            if len(index) or not damage:
                found += _verify_records(files, index)
                found += _verify_ending(files, index)
        except PageFormatError as e:
            found.append(Damage(f"{name}.jsonl", None, str(e)))
        finally:
            files.close()
    return found + _verify_catalogues(catalogues, there, seen)


def verify_lengths(folder: str, names: Iterable[str]) -> tuple[list[Damage], list[str]]:
    """Of closed pages, those whose tensor file has not the length that their last line says; nothing else is read. And
    the names of those that cannot be opened now, which may pass."""
    found: list[Damage] = []
    left: list[str] = []
    for name in names:
        files = PageFiles(folder, name)
        try:
            if (closing := _closing(files)) is None:
                raise PageFormatError("the closing line is missing")
            if damage := _wrong_length(files, closing):
                found.append(damage)
        except NotOpenedError:
            left.append(name)
        except PageFormatError as e:
            found.append(Damage(f"{name}.jsonl", None, str(e)))
        except OSError:  # of a read
            left.append(name)
        finally:
            files.close()
    return found, left


def _verify_records(files: PageFiles, index: catalogue.Index) -> list[Damage]:
    found = []
    for k in range(len(index)):
        indices: tuple[int, ...] = ()
        try:
            record = RecordReader(files, files.line(int(index.starts[k]), int(index.ends[k])))
            indices = tuple(record.indices)
            for name in record.outputs:
                record.read(name, None)
        except PageFormatError as e:
            found.append(Damage(f"{files.name}.safetensors", k, str(e), indices))
    return found


def _verify_ending(files: PageFiles, index: catalogue.Index) -> list[Damage]:
    """A closed page: as many records and bytes as its closing line says, under an unchanged safetensors header."""
    closing = _closing(files) if index.pages[0].closed else None
    if closing is None:
        return _verify_unclosed(files, index)
    found = []
    if closing.get("records") != len(index):
        found.append(Damage(f"{files.name}.jsonl", None, f"{len(index)} whole records of {closing.get('records')}"))
    try:
        damage = _wrong_length(files, closing)
    except NotOpenedError as e:
        damage = Damage(f"{files.name}.safetensors", None, str(e))
    if damage is not None:
        found.append(damage)
    elif xxhash.xxh3_64_hexdigest(read_at(files.data, 0, files.data_start).data) != closing.get("header"):
        cause = "the safetensors header is not the one that was written"
        found.append(Damage(f"{files.name}.safetensors", None, cause))
    return found


def _closing(files: PageFiles) -> dict[str, Any] | None:
    """What the last line says of a page that was closed; None when it is no closing line."""
    size = os.fstat(files.text).st_size
    tail = read_at(files.text, max(0, size - 4096), min(size, 4096)).tobytes()
    closing = format.unseal(tail.rstrip(b"\n").rpartition(b"\n")[2]).get("closed")
    return closing if isinstance(closing, dict) else None


def _wrong_length(files: PageFiles, closing: dict[str, Any]) -> Damage | None:
    name = f"{files.name}.safetensors"
    try:
        size = os.fstat(files.data).st_size
    except NotOpenedError:
        raise
    except PageFormatError as e:
        return Damage(name, None, str(e))
    written = closing.get("bytes")
    return Damage(name, None, f"{size} bytes long, written as {written}") if size != written else None


def _verify_unclosed(files: PageFiles, index: catalogue.Index) -> list[Damage]:
    """A page without a closing line, which it lost if its header was written: that comes after every record."""
    try:
        head = os.pread(files.data, 8, 0)  # zeros, or nothing yet, until the header is written
    except PageFormatError:
        if len(index):
            raise
        return []  # it was only just begun
    if not any(head):
        return []
    end = files.data_start
    for k in range(len(index)):
        record = RecordReader(files, files.line(int(index.starts[k]), int(index.ends[k])))
        end = max(end, record.end)
    size = os.fstat(files.data).st_size
    now, _ = scan(files)
    if size <= end or len(now) != len(index) or now.pages[0].closed:  # or a writer has just closed it
        return []
    return [Damage(f"{files.name}.jsonl", None, f"lines are missing: no record names the last {size - end} bytes")]


def _read_catalogues(folder: Path) -> dict[str, list[bytes | None] | PageFormatError]:
    """By name the lines of each catalogue, or why it cannot be read; a line that is still being written is left out."""
    read: dict[str, list[bytes | None] | PageFormatError] = {}
    for name in list_folder(str(folder)).catalogues:
        try:
            fd = open_file(str(folder), name)
        except PageFormatError as e:
            read[name] = e
            continue
        try:
            lines = read_lines(fd)
            read[name] = [line for _, line, ended in lines if ended or line is None or format.is_sealed(line[:-1])]
        finally:
            os.close(fd)
    return read


def _verify_catalogues(
    catalogues: dict[str, list[bytes | None] | PageFormatError], there: Listing, seen: set[int]
) -> list[Damage]:
    found = []
    for name, lines in catalogues.items():
        if isinstance(lines, PageFormatError):
            found.append(Damage(name, None, str(lines)))
            continue
        for k, line in enumerate(lines):
            try:
                index = catalogue.decode(line or b"")
            except PageFormatError as e:
                found.append(Damage(name, k, str(e)))
                continue
            for n, info in enumerate(index.pages):
                held = index.datapoints_of(n)
                if info.name not in there.pages:
                    found.append(Damage(f"{info.name}.jsonl", None, "the page is missing", tuple(held)))
                elif lost := sorted(set(held) - seen):
                    cause = "datapoints in the catalogue that no whole line holds"
                    found.append(Damage(f"{info.name}.jsonl", None, cause, tuple(lost)))
    return found
