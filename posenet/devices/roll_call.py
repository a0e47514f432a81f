"""Finding out which processes of a run do not answer, after a collective call has failed.

The process that reports the failure is often healthy: it has waited for another one that hangs or has died.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # PyTorch does not list it in __all__

from posenet.devices.rendezvous import ProcessReport, describe_ranks

POLL_SECONDS = 1.0
"""Time between two checks for a roll call."""
ANSWER_SECONDS = 5.0
"""Time in which a process must answer."""


class RollCall:
    """Answers in a thread when another process asks who is there; ``find_culprits`` asks.

    The store carries the questions and answers, because it works while a collective call hangs.
    """

    def __init__(self, store: Store, rank: int, reports: Sequence[ProcessReport]) -> None:
        self.calls = 0  # collective calls that this process has started
        self._store = store
        self._rank = rank
        self._reports = reports
        self._closed = threading.Event()
        threading.Thread(target=self._answer_when_asked, name="roll-call", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._closed.set()

    def find_culprits(self) -> str:
        """Ask all processes; return which of them do not answer or are behind, as the end of a sentence."""
        answers: list[str] = []
        # A store whose host cannot be reached blocks, so it is asked in a thread that may be left behind.
        asking = threading.Thread(target=lambda: answers.append(self._ask()), name="ask", daemon=True)
        asking.start()
        asking.join(2 * ANSWER_SECONDS)
        if not answers:
            return "the process that hosts the store does not answer; its host or the network is down"
        return answers[0]

    def _answer_when_asked(self) -> None:
        try:
            while not self._closed.wait(POLL_SECONDS):
                if self._store.check(["roll-call"]):
                    self._answer()
                    return
        except RuntimeError:  # the store has ended, and with it the run
            return

    def _answer(self) -> None:
        self._store.set(f"present/{self._rank}", str(self.calls))

    def _ask(self) -> str:
        ranks = range(len(self._reports))
        try:
            self._store.set("roll-call", "")
            self._answer()
            deadline = time.monotonic() + ANSWER_SECONDS
            missing = [rank for rank in ranks if rank != self._rank]
            while missing and time.monotonic() < deadline:
                time.sleep(0.1)
                missing = [rank for rank in missing if not self._store.check([f"present/{rank}"])]
            if missing:
                return f"{self._describe(missing)} {_verb(missing, 'does', 'do')} not answer"
            calls = [int(self._store.get(f"present/{rank}")) for rank in ranks]
        except dist.DistError:
            return "the process that hosts the store has ended"
        behind = [rank for rank in ranks if calls[rank] < max(calls)]
        if behind:
            return f"{self._describe(behind)} {_verb(behind, 'is', 'are')} alive but behind the others"
        return "all processes are alive; the network between them was interrupted"

    def _describe(self, ranks: Sequence[int]) -> str:
        hosts = dict.fromkeys(self._reports[rank].host for rank in ranks)
        return f"{describe_ranks(ranks)} ({', '.join(hosts)})"


def _verb(ranks: Sequence[int], singular: str, plural: str) -> str:
    return singular if len(ranks) == 1 else plural
