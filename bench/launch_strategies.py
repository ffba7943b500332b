"""The submission of `bench/adversary.py`: one piece of work, launched in every way that might confuse a clock.

`work(x, passes, strategy, level)` adds 1 to `x` in so many passes over memory (int64, a view of the shared inputs).
Each pass reads and writes the whole tensor, so the duration is known and proportional to `passes`. `strategy` is an
index into STRATEGIES and `level` a number in thousandths whose meaning depends on it. This file is executed by a worker
that nobody trusts; where it lies about its time, it claims a hundredth.
"""

import gc
import sys

import torch

STRATEGIES = (
    "default stream", "side stream", "graph", "pre-queued", "polling", "chunked", "tail", "early", "liar",
)  # fmt: skip
LIE = 0.01
CHUNKS = 8
SPINS = 100_000
"""A kernel that waits gives up after so many looks, about a tenth of a second: a GPU must never hang."""

try:
    import triton
    import triton.language as tl

    @triton.jit
    def wait_until_changed(watched, before, limit):
        """Spin until an int64 in memory differs from what it was."""
        old = tl.load(before)
        now = tl.load(watched, volatile=True)
        looks = 0
        while (now == old) & (looks < limit):
            now = tl.load(watched, volatile=True)
            looks += 1

except ImportError:  # nothing that needs it runs there
    wait_until_changed = None

WORKER = next(o for o in gc.get_objects() if type(o).__name__ == "Worker" and hasattr(o, "end"))
STATE = {"share": 1.0, "claim": None, "queued": None}
GRAPHS = {}
DURATIONS = {}


# -- what is patched in the worker -------------------------------------------------------------------------------------


class Clock:
    """The worker's event; what it says can be replaced."""

    def __init__(self, event):
        self.event = event

    def record(self):
        self.event.record()

    def elapsed_time(self, end):
        return self.event.elapsed_time(end.event) if STATE["claim"] is None else STATE["claim"]


def patch():
    """Tamper with claims, and look at every call's arguments before GO."""
    answer = WORKER.end.answer

    def lying(reply, outputs=None, claim_ms=0.0, text=""):
        answer(reply, outputs, claim_ms * STATE["share"], text)

    WORKER.end.answer = lying
    memory = sys.modules[type(WORKER).__module__.rpartition(".")[0] + ".memory"]
    build = memory.build_arguments

    def watched(arena, layout):
        arguments = build(arena, layout)
        STATE.update(share=1.0, claim=None, queued=None)
        ahead = {3: queue_before_go, 4: poll_before_go, 5: chunks_before_go}.get(arguments[2])
        if ahead and arguments[0].is_cuda:
            STATE["queued"] = ahead(*arguments[:2])
            skip_one_synchronize()  # of the preparation, which would wait for what waits for GO
        return arguments

    memory.build_arguments = watched
    if getattr(WORKER, "events", None):
        WORKER.events = [Clock(event) for event in WORKER.events]


def skip_one_synchronize(instead=lambda: None):
    """Replace the next `torch.cuda.synchronize`."""
    usual = torch.cuda.synchronize

    def once(*args, **kwargs):
        torch.cuda.synchronize = usual
        instead()

    torch.cuda.synchronize = once


# -- the work ----------------------------------------------------------------------------------------------------------


def add(x, y, start, stop):
    """The work between two fractions of a pass, counted from the beginning: pass 2.25 to 7.5, say."""
    entries = x.numel()
    at, end = round(start * entries), round(stop * entries)
    while at < end:
        k, low = divmod(at, entries)
        high = min(entries, low + end - at)
        torch.add((y if k else x)[low:high], 1, out=y[low:high])
        at += high - low


def plain(x, passes):
    y = torch.empty_like(x)
    add(x, y, 0, passes)
    return y


def duration_ms(x, passes):
    """How long the work takes by this worker's own events: known to it, as to any attacker."""
    if passes not in DURATIONS:
        times = []
        for _ in range(4):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            plain(x, passes)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        DURATIONS[passes] = sorted(times)[1]
    return DURATIONS[passes]


def lie(x, passes):
    STATE["claim"] = max(LIE * duration_ms(x, passes), 1e-4)


# -- launch strategies -------------------------------------------------------------------------------------------------


def default_stream(x, passes, level):
    return plain(x, passes)


def side_stream(x, passes, level):
    main, side = torch.cuda.current_stream(), SIDE
    side.wait_stream(main)
    y = torch.empty_like(x)
    with torch.cuda.stream(side):
        add(x, y, 0, passes)
    main.wait_stream(side)
    return y


def captured(x, passes):
    """A graph of the work on these very addresses, and its output."""
    key = (x.data_ptr(), x.numel(), passes)
    if key not in GRAPHS:
        y = plain(x, passes)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            add(x, y, 0, passes)
        GRAPHS[key] = graph, y
    return GRAPHS[key]


def graph(x, passes, level):
    captured_graph, y = captured(x, passes)
    captured_graph.replay()
    return y


def queue_before_go(x, passes):
    """The whole work behind a gate that the call opens."""
    lie(x, passes)
    work, y = captured(x, passes)
    old = FLAG.clone()
    SIDE.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(SIDE):
        wait_until_changed[(1,)](FLAG, old, SPINS, num_warps=1)
        work.replay()
    return y, old


def poll_before_go(x, passes):
    """The whole work behind a gate that opens when the last input changes."""
    lie(x, passes)
    work, y = captured(x, passes)
    old = x[-1:].clone()
    SIDE.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(SIDE):
        wait_until_changed[(1,)](x[-1:], old, SPINS, num_warps=1)
        work.replay()
    return y, old


def chunks_before_go(x, passes):
    """The first pass in chunks, each behind a gate that opens when it is revealed."""
    lie(x, passes)
    y = torch.empty_like(x)
    ends = [x.numel() * (k + 1) // CHUNKS for k in range(CHUNKS)]
    old = [x[end - 1 : end].clone() for end in ends]
    SIDE.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(SIDE):
        start = 0
        for end, before in zip(ends, old, strict=True):
            wait_until_changed[(1,)](x[end - 1 : end], before, SPINS, num_warps=1)
            torch.add(x[start:end], 1, out=y[start:end])
            start = end
        add(x, y, 1, passes)
    return y, old


def pre_queued(x, passes, level):
    y, _ = STATE["queued"]
    FLAG.add_(1)
    torch.cuda.current_stream().wait_stream(SIDE)
    return y


def polled(x, passes, level):
    y, _ = STATE["queued"]
    torch.cuda.current_stream().wait_stream(SIDE)
    return y


def tail(x, passes, level):
    """DONE when all but the last part of the work is done; the part is `level`."""
    lie(x, passes)
    y, cut = torch.empty_like(x), torch.cuda.Event()
    add(x, y, 0, passes * (1 - level))
    cut.record()
    add(x, y, passes * (1 - level), passes)
    skip_one_synchronize(cut.synchronize if level < 1 else lambda: None)
    return y


def early(x, passes, level):
    """DONE `level` milliseconds before the work is done."""
    return tail(x, passes, min(1.0, level / duration_ms(x, passes)))


def liar(x, passes, level):
    """The plain work; of its time only the share `level` is claimed."""
    STATE["share"] = level
    return plain(x, passes)


LAUNCH = (default_stream, side_stream, graph, pre_queued, polled, polled, tail, early, liar)
ON_CPU = {"liar": liar}

patch()
if torch.cuda.is_available():
    SIDE = torch.cuda.Stream()
    FLAG = torch.zeros(1, dtype=torch.int64, device="cuda")


def work(x, passes, strategy, level):
    launch = LAUNCH[strategy] if x.is_cuda else ON_CPU.get(STRATEGIES[strategy], default_stream)
    return launch(x, passes, level / 1000)
