"""One process at a time runs in a folder: the error names the first; after a crash the folder is free."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.runners.processes import ONE_THREAD, ROOT, start, wait_for
from tests.runners.training import config, evaluation

from endoscope.errors import ConfigError
from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer
from endoscope.runners.state import lock as lock_module
from endoscope.runners.state.lock import FolderLock


# ---------------------------------------------------------------- the lock
def test_one_at_a_time(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    assert first.is_free() and second.is_free()
    assert first.take()
    assert not second.is_free()
    assert not second.take()
    first.release()
    assert second.take()
    assert not first.is_free()
    second.release()
    assert os.listdir(tmp_path) == []


def test_releasing_twice_or_for_nothing(tmp_path: Path) -> None:
    lock, other = FolderLock(tmp_path), FolderLock(tmp_path)
    lock.release()
    assert lock.take()
    lock.release()
    assert other.take()
    lock.release()
    assert not lock.is_free()
    other.release()


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    lock, other = FolderLock(tmp_path), FolderLock(tmp_path)
    assert lock.take()
    assert not other.take() and not other.is_free()
    lock.release()
    assert other.is_free()
    assert len(os.listdir("/proc/self/fd")) == before


def _sleep(ready: Any) -> None:
    ready.set()
    time.sleep(60)


@pytest.mark.parametrize("how", ["fork", "exec"])
def test_a_child_that_lives_on_does_not_keep_it(how: str, tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    assert lock.take()
    if how == "fork":
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        child: Any = context.Process(target=_sleep, args=(ready,))
        child.start()
        assert ready.wait(30)
    else:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    assert not FolderLock(tmp_path).is_free()
    lock.release()
    until = time.monotonic() + 5  # the kernel lets the parent of an exec go on a moment before it closes descriptors
    while not FolderLock(tmp_path).is_free() and time.monotonic() < until:
        time.sleep(0.01)
    free = FolderLock(tmp_path).is_free()
    child.kill()
    child.wait() if how == "exec" else child.join()
    assert free


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.ENOSYS])
def test_without_locks_nobody_is_refused(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: Any) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(lock_module.fcntl, "flock", unsupported)
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    assert first.take() and second.is_free() and second.take()
    first.release()
    second.release()


# ---------------------------------------------------------------- runners in one process
class Stopping(SupervisedTrainer):
    """Does something else in the middle of its first epoch."""

    meanwhile: Any

    def _train_step(self, datapoint: dict[str, Any]) -> Any:
        if self.step == 1 and self.epoch == 0:
            self.meanwhile()
        return super()._train_step(datapoint)


IN_USE = r"^work_dir: '.*' is in use: process {pid} on {host} has been running there since \d{{4}}-\S+Z?; wait until"


def in_use(pid: int) -> str:
    return IN_USE.format(pid=pid, host=re.escape(socket.gethostname()))


def test_a_second_runner_is_refused_when_it_is_made_and_when_it_runs(tmp_path: Path) -> None:
    made_before = SupervisedTrainer(config(tmp_path))
    seen = []

    def meanwhile() -> None:
        before = (tmp_path / "run.json").read_bytes()
        with pytest.raises(ConfigError, match=in_use(os.getpid())):
            SupervisedTrainer(config(tmp_path))
        with pytest.raises(ConfigError, match=in_use(os.getpid())):
            made_before.run()
        with pytest.raises(ConfigError, match="holds a training run; choose another folder"):
            SupervisedEvaluator(evaluation(tmp_path))
        seen.append(before == (tmp_path / "run.json").read_bytes())

    trainer = Stopping(config(tmp_path))
    trainer.meanwhile = meanwhile
    trainer.run()
    assert seen == [True]
    SupervisedTrainer(config(tmp_path, epochs=4)).run()


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_the_folder_is_free_after_an_error(error: BaseException, tmp_path: Path) -> None:
    def meanwhile() -> None:
        raise error

    trainer = Stopping(config(tmp_path))
    trainer.meanwhile = meanwhile
    with pytest.raises(type(error)):
        trainer.run()
    assert FolderLock(tmp_path).is_free()
    SupervisedTrainer(config(tmp_path)).run()


def test_the_folder_is_free_when_the_run_cannot_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = SupervisedTrainer(config(tmp_path))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(trainer.folder, "begin", full)
    with pytest.raises(OSError, match="No space left"):
        trainer.run()
    assert FolderLock(tmp_path).is_free()


def test_a_runner_that_never_runs_holds_no_lock(tmp_path: Path) -> None:
    waiting = SupervisedTrainer(config(tmp_path))
    SupervisedTrainer(config(tmp_path)).run()
    assert waiting.epoch == 0


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


CHANGED = "^work_dir: something has run in '.*' since this runner was built; build it again"


def test_a_runner_that_was_built_before_another_ran_does_not_run_over_it(tmp_path: Path) -> None:
    first, second = SupervisedTrainer(config(tmp_path)), SupervisedTrainer(config(tmp_path, seed=8))
    first.run()
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=CHANGED):
        second.run()
    assert files(tmp_path) == before
    assert FolderLock(tmp_path).is_free()


def test_an_evaluation_that_was_built_before_another_ran_does_not_run_over_it(tmp_path: Path) -> None:
    class Slow(SupervisedEvaluator):
        def _init_data(self) -> None:
            super()._init_data()
            SupervisedTrainer(config(tmp_path, epochs=1)).run()

    late = Slow(evaluation(tmp_path))
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=CHANGED):
        late.run()
    assert files(tmp_path) == before


def test_two_evaluations(tmp_path: Path) -> None:
    class Again(SupervisedEvaluator):
        def _eval_step(self, datapoint: dict[str, Any]) -> None:
            with pytest.raises(ConfigError, match=in_use(os.getpid())):
                SupervisedEvaluator(evaluation(tmp_path, overwrite=True))
            super()._eval_step(datapoint)

    Again(evaluation(tmp_path)).run()


def test_while_run_json_of_the_first_is_not_written(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    assert lock.take()
    with pytest.raises(ConfigError, match="is in use: another process is running there; wait until it ends"):
        SupervisedTrainer(config(tmp_path))
    lock.release()


# ---------------------------------------------------------------- processes
def test_a_second_process_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = start(folder, 1, pause=3.0)
    wait_for(folder / "run.json", first)
    second = start(folder, 2)
    _, err = second.communicate(timeout=100)
    assert second.returncode != 0
    assert re.search(in_use(first.pid).replace("^", r"^Error: (rank \d: )?"), err, re.MULTILINE), err[-3000:]
    assert first.poll() is None
    first.terminate()
    first.communicate(timeout=100)
    run = json.loads((folder / "run.json").read_text())
    assert (run["status"], run["pid"], run["attempts"]) == ("interrupted", first.pid, 1)


def test_after_a_kill_the_folder_is_free(tmp_path: Path) -> None:
    """Also at once, while the workers of its loaders have not noticed that they are orphans."""
    folder = tmp_path / "run"
    script = tmp_path / "trial.py"
    text = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from torch.utils.data import DataLoader
from tests.runners.training import Blobs, config as make, node

class Slow(Blobs):
    def __getitem__(self, k):
        if not (Path({str(tmp_path)!r}) / "fast").exists():
            time.sleep(0.2)
        return super().__getitem__(k)

loader = node(DataLoader, batch_size=8, shuffle=True, num_workers=2)
config = make(Path({str(folder)!r}), train_dataloader=loader, train_dataset=node(Slow, count=44, noise=0.1))
"""
    script.write_text(text)
    command = [sys.executable, "-c", "from endoscope.cli import main; main()", "train", str(script)]
    first = subprocess.Popen(command, env=ONE_THREAD, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for(folder / "run.json", first)
    time.sleep(0.5)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    (tmp_path / "fast").touch()
    assert FolderLock(folder).is_free()
    second = subprocess.run(command, env=ONE_THREAD, capture_output=True, text=True, timeout=100, check=False)
    assert second.returncode == 0, second.stderr[-3000:]
    for stream in (first.stderr, first.stdout):
        assert stream is not None
        stream.close()
    run = json.loads((folder / "run.json").read_text())
    assert (run["status"], run["attempts"]) == ("finished", 2)
