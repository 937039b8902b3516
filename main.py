"""``python main.py --config-filepath CONFIG``: train as a config describes, from a clone. See ``endoscope train``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

from endoscope.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
