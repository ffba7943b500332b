"""How calibration works, in words: the first part of docs/calibration.md, which `calibrate.page` writes."""

METHOD = """\
# Calibration

A tolerance decides which kernels are right, so it has to be shown that it lets honest work through and stops
everything else. `taskfactory calibrate` measures both and writes a certificate,
`specs/certificates/<task>.<device>.json`. `validate` warns of a certificate that is missing, stale, incomplete or
unsound, and `validate --release` refuses it. Incomplete is one without its section on work or on graded shapes, without
one of their rows, an alternate, an ablation, a second seed or figures that are measured today; from a GPU also one
without honest work at each measure and graded shape, without δ from a grading, or without ranks.

A release needs certificates from both devices: `validate --release --device cpu --device cuda`. Without `--device`
only the CPU's is asked for, and a missing one from a GPU is a warning (TF708); our CI does so as long as the tasks lack
them. One that is there is judged in any case.

`calibrate --verify` measures one seed again on the CPU; every figure has to be met within a factor of 1.3, so a
certificate that was edited by hand does not last. A GPU draws other inputs, so a certificate from there is held against
itself: verdict, totals, limits and sizes have to follow from its own figures and the formulas.

This page is generated: `python -m taskfactory.calibrate.page docs`.

## What is measured

Everything is expressed as a *share of a gate*: E over the tolerance, a tile's deviation over what the tile gate
allows, a region's E over its tolerance; the largest of them counts. 1 is the gate. An output that is compared exactly
and differs is infinitely far beyond it. The inputs are those a grading verifies: every correct shape with the default
inputs, every case, and the mixed inputs that timed calls get, with several seeds. Where a GPU is at hand, measure and
graded shapes come on top.

| held against the reference | what it is | asked for |
|---|---|---|
| reference in float64 | its source with every floating dtype promoted, the result rounded once | at most 1/1.5 |
| alternates | the spec's independent implementations | at most 1/1.5, in the worst sample |
| ablations | the spec's references with a feature left out | at least 3, in some sample, with every seed |
| trivial answers | zeros, mean, noise of the right scale, the answer to other inputs, copies | at least 3 |
| mutants | the reference with one damage | 95 % rejected, each survivor explained |
| precision | the reference with something rounded to a format | fp8 and int8 throughout: rejected or explained |

A wrong answer needs one sample that rejects it, because a grading verifies all shapes and cases; each grading draws
its own seeds, so of several seeds the one that is kindest to the wrong answer counts. An honest answer must pass
everywhere.

**Mutants** are made from the syntax tree of the reference: constants changed, terms and factors dropped, signs,
comparisons, minimum and maximum exchanged, axes and slices shifted, operands exchanged, steps omitted, padding
wrapped around, loops cut short. Others damage what surrounds it: the last or one random index of an axis of an output,
or one run of 4096 entries, is not written; an argument is ignored, its last index not read, or exchanged with another
of the same shape. Each runs on the smallest shape first and is dropped at the first sample of any seed that rejects it.
What raises, hangs, crashes or returns another shape counts as rejected, but the score is that of the mutants judged by
their values. A mutant that is bit-equal everywhere is *equivalent*; one that on no sample comes nearer to a gate than
an honest implementation on that sample is *below resolution*, since no gate could tell the two apart. Neither counts.

**Precision** is not a question of right and wrong but of the task's policy. One mechanism sees every operation of the
reference and rounds arguments, operands of products, results of sums or everything to bfloat16, float16, 10 bits of
mantissa, fp8 or int8; 8-bit formats are given a scale, one a tensor for fp8 and one a row for int8. Parts of the result
(late ones, every twelfth index) are also computed from fp8 arguments. A precision that is rejected by a factor of 3 is
not measured further.

**The reference in float64** is rounded to the widest dtype that may be returned. Where an exactly compared output
differs in float64, rounding is part of the definition and the sample says nothing.

**Explanations** stand in the spec, in `survivors`: the name of a mutant, ablation or precision, and why it is accepted.
They do not raise the score.

**The recommendation** of `calibrate`, in figures and on a logarithmic axis of E, is the tolerance in the gap between
honest work and what only the global gate stops: four times the honest E, or the gap's geometric mean where that is
less; with it, twice what honest tiles need, and the smallest epsilon that costs honest tiles nothing. A spec may
choose otherwise within the gap.

## Work and graded shapes

A score is canonical work by time, so the count has to be right. It is held against what a call takes: the sizes of
inputs and outputs; the bytes *touched*, which are those of the outputs and of the entries by which some output has a
derivative; the FLOPs of matrix products and convolutions that torch counts in the reference; and the spec's own floor.
Correct shapes are run for that, graded ones without storage. Asked for is:

- canonical work is at least the floor's, and the floor at most what a call holds and the reference does;
- counted FLOPs are the canonical ones within 2 %, where the metric is TFLOP/s. A spec whose reference does more or less
  says so in a formula beside `derived`, `reference_flops`, with the reason in its docstring; the count has to follow;
- canonical bytes are at most those of inputs and outputs, unless the formula `touched_bytes` says what is touched; then
  the measured figure has to follow that within 5 %.

On a GPU with ncu, `python bench/dram.py` adds what the memory really moves: DRAM counters of our solutions.

A **graded shape** should take 20 times what the clock leaves open (δ) even at the limit that the floor sets, so that
the clock does not decide; hold four times the L2, so that it is memory that is measured; fit into memory with the
broker's copies; and be like the public shapes of `measure.py`, in which resource bounds it and within a factor of
three in time. On a GPU the solution, the reference and the alternates are timed at both kinds of shapes, and the rank
correlation of their scores is told: a submission that leads on the public shapes should lead on the hidden ones. δ is
that of each shape in a grading if one is given (`--grading`, a result or a folder of results), else 0.01 ms; limit
and L2 are those of the GPU at hand, else of an H200. What is accepted otherwise stands in `survivors`, as
`shapes.duration`, `shapes.working_set`, `shapes.memory`, `shapes.regime`, `work.flops` or `work.bytes`.

**On a GPU** there is a budget of time for measure and graded shapes (`--budget`), seven tenths of it for comparisons
and three for the stopwatch, and of memory. Each shape has an equal slice, in which honest work comes first and mutants
last; what a failed call held is given back before the next. What does not fit is a gap: it is told by name in the
certificate and as a note, and costs nothing else. Mutants are first run on the CPU, where an index out of range raises;
on the GPU it would end the process. `--jobs` divides the memory and begins with the task that took longest before;
times are then taken beside other work and good for ranks only. The certificates of our tasks come from

```console
$ taskfactory calibrate specs --jobs 2 --grading bench/results/h200/2026-12-01
$ taskfactory calibrate specs --device cuda --jobs 3 --grading bench/results/h200/2026-12-01
```

## What it does not show

A certificate speaks of the spec's own alternates. An honest kernel on other hardware may round differently, which is
what the factor of 1.5 is for. Correct shapes are small; the exponent with which an honest error grows with work is
recorded, and a steep one is flagged, but only a GPU measures the graded shapes. Cases are verified and not timed: a
submission that recognised them could answer them with other code. So timed calls get inputs that mix what cases have
apart, and below it is said which wrong answers those inputs alone would not reject.
"""
