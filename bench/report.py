"""What a bench script says at its end: a table of figures beside their goals, and an exit status that tells.

    what                         figure        goal
    recall@10                    0.9562        >= 0.95      ok
"""

import json
import platform
import sys
from pathlib import Path


class Report:
    def __init__(self, title: str, args):
        self.title, self.small, self.json = title, args.small, args.json
        self.rows: list[dict] = []

    def row(self, what: str, figure: str, goal: str = "", ok: bool | None = None, speed: bool = False) -> None:
        """`speed` marks a goal that a small run on a busy machine says nothing about."""
        if speed and self.small:
            goal, ok = (f"({goal})" if goal else ""), None
        # A comparison of numpy's numbers is no bool: it is neither `False`, nor can it be written as JSON.
        self.rows.append({"what": what, "figure": figure, "goal": goal, "ok": None if ok is None else bool(ok)})
        print(f"  .. {what}: {figure}", file=sys.stderr, flush=True)

    def end(self) -> int:
        wide = [max(len(r[name]) for r in self.rows) for name in ("what", "figure", "goal")]
        print(f"\n{self.title}{' (small)' if self.small else ''}")
        for r in self.rows:
            verdict = {True: "ok", False: "MISSED", None: ""}[r["ok"]]
            line = f"  {r['what']:<{wide[0]}}  {r['figure']:>{wide[1]}}  {r['goal']:<{wide[2]}}  {verdict}"
            print(line.rstrip())
        sys.stdout.flush()
        if self.json:
            Path(self.json).parent.mkdir(parents=True, exist_ok=True)
            machine = {"processor": processor(), "system": platform.platform()}
            Path(self.json).write_text(json.dumps({"title": self.title, "small": self.small, "machine": machine, "rows": self.rows}, indent=1))
        return 1 if any(r["ok"] is False for r in self.rows) else 0


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def spread(values: list[float], digits: int = 0) -> str:
    """Median with the least and the largest of the repetitions."""
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2] if len(ordered) % 2 else sum(ordered[len(ordered) // 2 - 1 : len(ordered) // 2 + 1]) / 2
    if len(ordered) == 1:
        return f"{middle:,.{digits}f}"
    return f"{middle:,.{digits}f} ({ordered[0]:,.{digits}f} to {ordered[-1]:,.{digits}f})"
