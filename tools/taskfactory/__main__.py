"""`python -m taskfactory` is the `taskfactory` command."""

from taskfactory.cli import main

if __name__ == "__main__":
    main(prog_name="taskfactory")
