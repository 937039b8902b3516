"""``python -m endoscope`` does what ``endoscope`` does."""

from endoscope.cli import main

if __name__ == "__main__":
    main()
