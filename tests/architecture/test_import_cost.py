"""Importing Endoscope imports nothing heavy and changes nothing global. Each probe runs in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

PLAIN = "import endoscope"
NAMES = "from endoscope import SequentialDebugger, load_debug_outputs"

HEAVY = ["matplotlib", "starlette", "uvicorn", "flask", "jinja2", "plotly", "joblib"]

MODULES_PROBE = """
import json, sys
statements, forbidden = json.loads(sys.argv[1])
found = []
for statement in statements:
    exec(statement, {})
    found.append([name for name in forbidden if name in sys.modules])
print(json.dumps(found))
"""

STATE_PROBE = """
import json, logging, os, random, signal, sys, threading, warnings
import numpy, torch, torch._dynamo
from torch.nn.modules import module

def state():
    generators = torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()
    determinism = (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
                   torch.utils.deterministic.fill_uninitialized_memory, torch.backends.cudnn.deterministic,
                   torch.backends.cudnn.benchmark)
    return {
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": torch.is_autocast_enabled("cpu"),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads(), threading.active_count()),
        "determinism": determinism,
        "matmul precision": torch.get_float32_matmul_precision(),
        "rng": repr(generators),
        "anomaly mode": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "compile stance": repr(torch._dynamo.eval_frame._stance),
        "module hooks": [len(hooks) for name, hooks in sorted(vars(module).items()) if name.endswith("_hooks")],
        "print options": repr(torch._tensor_str.PRINT_OPTS),
        "warnings": (repr(warnings.filters), warnings.showwarning),
        "logging": (list(logging.root.handlers), logging.root.level, logging.root.disabled),
        "process": (dict(os.environ), sys.excepthook, threading.excepthook, signal.getsignal(signal.SIGINT),
                    signal.getsignal(signal.SIGTERM), list(sys.path)),
    }

changed = []
for statement in json.loads(sys.argv[1]):
    before = state()
    exec(statement, {})
    after = state()
    changed.append([key for key in before if before[key] != after[key]])
print(json.dumps(changed))
"""


def probe(script: str, argument: object) -> list[list[str]]:
    """Run ``script`` in a fresh interpreter; one list of findings for each statement."""
    command = [sys.executable, "-c", script, json.dumps(argument)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    findings: list[list[str]] = json.loads(done.stdout)
    return findings


def imported(statements: list[str], forbidden: list[str]) -> list[list[str]]:
    return probe(MODULES_PROBE, [statements, forbidden])


def test_import_endoscope_imports_not_even_torch() -> None:
    assert imported([PLAIN], [*HEAVY, "torch", "torch._dynamo", "numpy"]) == [[]]


def test_the_capture_names_import_no_plots_no_web_framework_and_no_pickler() -> None:
    assert imported([NAMES], HEAVY) == [[]]


READING = "import endoscope.pages.reader, endoscope.pages.verify, endoscope.pages.pickle_pages"


def test_reading_pages_does_not_import_capturing() -> None:
    """The viewer opens runs on machines that have neither the user's code nor the model."""
    assert imported([READING], ["endoscope.capturing"]) == [[]]


def test_twin_writing_pages_imports_capturing() -> None:
    assert imported(["import endoscope.pages.store"], ["endoscope.capturing"]) == [["endoscope.capturing"]]


def test_twin_a_forbidden_import_is_caught() -> None:
    assert imported(["import json.tool", f"{PLAIN}; import torch"], ["json.tool", "torch"]) == [
        ["json.tool"],
        ["json.tool", "torch"],
    ]


def test_importing_changes_nothing_global() -> None:
    assert probe(STATE_PROBE, [PLAIN, NAMES]) == [[], []]


def test_twin_every_global_change_is_caught() -> None:
    offences = {
        "torch.set_default_dtype(torch.float64)": "default dtype",
        "torch.set_default_device('meta')": "default device",
        "torch.set_grad_enabled(False)": "grad mode",
        "torch.set_autocast_enabled('cpu', True)": "autocast",
        "torch.set_num_threads(torch.get_num_threads() + 1)": "threads",
        "torch.use_deterministic_algorithms(True)": "determinism",
        "torch.set_float32_matmul_precision('medium')": "matmul precision",
        "torch.rand(1, device='cpu')": "rng",
        "import random; random.random()": "rng",
        "import numpy; numpy.random.rand()": "rng",
        "torch.autograd.set_detect_anomaly(True)": "anomaly mode",
        "torch.compiler.set_stance('force_eager')": "compile stance",
        "torch.nn.modules.module.register_module_forward_hook(print)": "module hooks",
        "torch.set_printoptions(precision=2)": "print options",
        "import warnings; warnings.simplefilter('ignore')": "warnings",
        "import logging; logging.basicConfig()": "logging",
        "import os; os.environ['X'] = '1'": "process",
    }
    caught = probe(STATE_PROBE, [f"import torch; {offence}" for offence in offences])
    assert dict(zip(offences, caught, strict=True)) == {offence: [key] for offence, key in offences.items()}
