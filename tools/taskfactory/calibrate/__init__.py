"""Calibration: measure whether a task's gates let honest work through and stop everything else, and record it.

    mutants, damage, trivial, precision, float64   stand-ins for the reference, each wrong or honest in a known way
    subjects, measure, child                       run them on a spec's inputs, in a process that may be killed
    run, figures, verdict                          collect the readings, sum them up, judge them
    certificate                                    the record: specs/certificates/<task>.<device>.json
    plot, page                                     what a person sees

`docs/calibration.md` explains the method. Importing this package imports no torch.
"""
