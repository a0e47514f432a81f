"""Malformed inputs: making them, and trying them in child processes, which may crash, hang or use too much memory."""

import contextlib
import copy
import multiprocessing
import os
import resource
import signal
import struct
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from posenet.errors import PosenetError

SECONDS = 30
"""Time limit of one input."""
MAX_GROWTH_BYTES = 2**30
"""Address space that a child may use in addition to what it has at its start."""


@dataclass
class Findings:
    """How many inputs were accepted or refused by a ``PosenetError``; ``faults`` describes all others, by number."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[int, str] = field(default_factory=dict)


def try_all(count: int, attempt: Callable[[int], None], max_growth: int = MAX_GROWTH_BYTES) -> Findings:
    """Call ``attempt(0)`` to ``attempt(count - 1)`` in children, each child until it crashes or hangs."""
    findings = Findings()
    number = 0
    while number < count:
        reader, writer = multiprocessing.Pipe(duplex=False)
        child = os.fork()
        if child == 0:
            _try_inputs(range(number, count), attempt, writer, max_growth)
        writer.close()
        kind, text = "crash", "the child has ended"
        with reader, contextlib.suppress(EOFError):
            while reader.poll(SECONDS):
                outcome, fault = reader.recv()
                findings.counts[outcome] += 1
                if outcome not in ("accepted", "refused"):
                    findings.faults[number] = f"{outcome}: {fault}"
                number += 1
            kind, text = "hang", f"longer than {SECONDS} s"
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if number < count:
            findings.counts[kind] += 1
            findings.faults[number] = f"{kind}: {text}, status {status}"
            number += 1
    return findings


def _try_inputs(numbers: Iterable[int], attempt: Callable[[int], None], writer: Connection, max_growth: int) -> None:
    """Send the kind and the description of every outcome."""
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + max_growth
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for number in numbers:
        kind, text = "accepted", ""
        try:
            attempt(number)
        except PosenetError as error:
            kind, text = "refused", str(error)
            if "\n" in text or len(text) > 2000:
                kind = f"message of {len(text)} characters and {text.count(chr(10))} line ends"
        except BaseException as error:
            kind, text = type(error).__name__, "".join(traceback.format_exception(error)[-3:])[-700:]
        writer.send((kind, text[:700]))
    os._exit(0)


def mutate_bytes(rng: np.random.Generator, data: bytes, around: Sequence[int] = ()) -> bytes:
    """A copy with flipped bits, overwritten numbers, and bytes removed or repeated, mostly near ``around``."""
    result = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 2, 4, 16]))):
        if not result:
            return b""
        position = int(rng.integers(len(result)))
        if len(around) and rng.random() < 0.8:
            position = min(max(int(rng.choice(around)) + int(rng.integers(-8, 64)), 0), len(result) - 1)
        part = bytes(result[position : position + int(rng.geometric(0.05))])
        number = struct.pack("<q", int(rng.choice([0, 1, -1, 2**31 - 1, 2**32 - 1, 2**62, 255, 4096])))
        flipped = bytes([part[0] ^ 1 << int(rng.integers(8))]) + part[1:]
        others = (flipped, flipped, number[: len(part)] + part[8:], b"", 2 * part, rng.bytes(len(part)))
        result[position : position + len(part)] = others[rng.integers(len(others))]
    return bytes(result)


ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 1.5, -0.0, 1e308, -1e308, 1e-320, float("inf"), float("nan"), 2**31, 2**63,
    -(2**63), 10**30, 65535, 65536, "", "a", "\0", "../../etc/passwd", "/etc/passwd", "C:\\x", "\ud800", "n" * 5000, [],
    {}, [[]], [None], {"id": 1}, [1, 2], [1e30] * 8, [0] * 51, ["a"] * 17, {"size": [4, 4], "counts": "0"},
    {"size": [120, 160], "counts": [10**12]}, {"size": [120, 160], "counts": "\x7f" * 50},
)  # fmt: skip
"""Values that no reader expects."""


def mutate_tree(rng: np.random.Generator, tree: Any, odd: Sequence[Any] = ODD) -> Any:
    """A copy of nested dictionaries and lists with some values replaced, removed, repeated, swapped or wrapped."""
    tree = copy.deepcopy(tree)
    for _ in range(int(rng.choice([1, 1, 2, 5]))):
        parent: Any = None
        node = tree
        while isinstance(node, (dict, list)) and node and (parent is None or rng.random() < 0.85):
            parent = node
            key = list(node)[int(rng.integers(len(node)))] if isinstance(node, dict) else int(rng.integers(len(node)))
            node = node[key]
        if parent is None:
            return odd[int(rng.integers(len(odd)))]
        kind = rng.integers(8)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(node))
        elif kind == 2:
            parent[key] = [node]
        elif kind == 3 and isinstance(node, (int, float)):
            parent[key] = node * int(rng.choice([-1, 0, 2, 1000, 2**40]))
        else:
            parent[key] = copy.deepcopy(odd[int(rng.integers(len(odd)))])
    return tree
