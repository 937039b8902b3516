"""``python eval.py --config-filepath CONFIG``: evaluate as a config describes, from a clone. See ``endoscope eval``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

from endoscope.cli import main

if __name__ == "__main__":
    main(["eval", *sys.argv[1:]])
