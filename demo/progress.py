"""One line of progress: done, rate, time left. Rewrites itself on a terminal, else prints now and then."""

import sys
import time


def seconds(count: float) -> str:
    return f"{count:.0f} s" if count < 100 else f"{count / 60:.1f} min"


class Progress:
    def __init__(self, what: str, total: int, unit: str):
        self.what, self.total, self.unit = what, total, unit
        self.start = self.shown = time.monotonic()
        self.every = 0.2 if sys.stdout.isatty() else 10.0

    def at(self, done: int) -> None:
        rate = done / max(time.monotonic() - self.start, 1e-9)
        left = seconds((self.total - done) / rate) if rate > 0 else "?"
        self.say(f"{self.what}: {done:,} of {self.total:,} {self.unit}, {rate:,.0f}/s, {left} left")

    def say(self, text: str) -> None:
        """Shows a line, unless one was shown a moment ago."""
        now = time.monotonic()
        if now - self.shown >= self.every:
            self.shown = now
            self._line(text)

    def _line(self, text: str, last: bool = False) -> None:
        if sys.stdout.isatty():
            sys.stdout.write("\r\x1b[2K" + text + ("\n" if last else ""))
            sys.stdout.flush()
        else:
            print(text, flush=True)

    def end(self, text: str) -> None:
        took = time.monotonic() - self.start
        self._line(f"{self.what}: {text} in {seconds(took)}", last=True)
