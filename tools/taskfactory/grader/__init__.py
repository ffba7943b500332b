"""The grader: a trusted broker, an untrusted worker and a supervisor above both.

This package is copied unchanged into every bundle, so that what a solver measures is what is graded. It needs the
standard library and torch, nothing else, and importing it does nothing. `python -m grader --help` is its command.

    supervisor.py   no CUDA; starts the others, holds the deadline, kills until nothing is left, returns the result
    nursery.py      what has imported torch once and forks the other two
    broker.py       makes inputs, keeps the clock, compares outputs; never imports the submission
    worker.py       imports the submission and calls it; holds nothing worth forging
"""
