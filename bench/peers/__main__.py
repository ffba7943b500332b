"""Lets `python bench/peers` run this folder as the package it is."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers.command import main

if __name__ == "__main__":
    sys.exit(main())
