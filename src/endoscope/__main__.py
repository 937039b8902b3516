"""``python -m endoscope`` is the same as ``endoscope``."""

from endoscope.cli import main

if __name__ == "__main__":
    main()
