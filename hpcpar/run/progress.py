"""What a run says while it goes: a bar on a terminal, one plain line every n steps elsewhere. To stderr, from rank 0 alone."""

from __future__ import annotations

import sys
import time
from typing import Any


class Progress:
    """Says loss, tokens/s and the time left. `speaks` is true on rank 0."""

    def __init__(self, first: int, steps: int, every: int, speaks: bool):
        self.steps, self.every, self.speaks = steps, every, speaks
        self._start, self._first = time.perf_counter(), first
        self._bar: Any = None
        self._task: Any = None
        if speaks and sys.stderr.isatty() and steps > first:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), expand=True)
            self._bar.start()
            self._task = self._bar.add_task("train", total=steps, completed=first, text="")

    def step(self, step: int, loss: float, tokens_per_s: float) -> None:
        """Step `step` (from 1) is done."""
        if not self.speaks:
            return
        if self._bar:
            self._bar.update(self._task, completed=step, text=f"loss {loss:.4f}  {tokens_per_s:,.0f} tokens/s")
        elif step % self.every == 0 or step == self.steps:
            left = (self.steps - step) * (time.perf_counter() - self._start) / max(1, step - self._first)
            self.say(f"step {step}/{self.steps}  loss {loss:.4f}  {tokens_per_s:,.0f} tokens/s  {left:.0f} s left")

    def say(self, text: str) -> None:
        """One line."""
        if not self.speaks:
            return
        if self._bar:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar:
            self._bar.stop()
            self._bar = None
