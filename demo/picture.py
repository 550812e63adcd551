"""The memory ledger as a picture for the terminal: one bar for the budget, one for each account."""

from harness.cgroup import MIB

WIDTH = 48
EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(part: float, whole: float, width: int = WIDTH) -> str:
    eighths = round(max(0.0, min(1.0, part / whole)) * width * 8) if whole else 0
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def ledger(memory: dict, least: int = 64 << 10) -> str:
    """Lines to print for the `result` of GET /memory; accounts under `least` bytes share one line."""
    budget = memory["budget_bytes"]
    accounts = sorted(memory["accounts"], key=lambda a: -a["bytes"])
    rows = [(a["name"], a["bytes"]) for a in accounts if a["bytes"] >= least]
    small = [a["bytes"] for a in accounts if a["bytes"] < least]
    if small:
        rows.append((f"{len(small)} smaller", sum(small)))
    rows.append(("unaccounted", max(0, memory["unaccounted_bytes"])))
    whole = [("budget", budget), ("charged now", memory["charged_bytes"]), ("charged at its peak", memory["peak_bytes"])]
    wide = max(len(name) for name, _ in rows + whole)

    def line(name: str, count: int) -> str:
        return f"  {name:<{wide}}  {count / MIB:8.1f} MiB  |{bar(count, budget)}|"

    return "\n".join([line(*row) for row in whole] + ["  " + "-" * (wide + 16 + WIDTH)] + [line(*row) for row in rows])
