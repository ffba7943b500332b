"""Our solutions and their public peers, side by side on one device; `python bench/peers --help`."""
