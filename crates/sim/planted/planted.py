#!/usr/bin/env python3
"""Can the simulator see, and the model of runs? Plants bugs, one at a time, in a copy of the tree, and asks whether some seed fails.

    copy of the tree --> one line made wrong --> build --> seeds until one fails --> caught, or missed

    planted.py [--seeds 2000] [--only NAME]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# name, file, what stands there, what is planted
BUGS = [
    (
        "acknowledge before fsync",
        "crates/log/src/log.rs",
        "let synced = self.disk.sync(Sync::File(&self.current.file.file));",
        "let synced: Result<()> = Ok(());",
    ),
    (
        "forget to sync the folder of a new log file",
        "crates/log/src/files.rs",
        "disk.sync(Sync::File(&file)).and_then(|()| disk.sync(Sync::Folder(folder))).map_err(Failed::Unknown)?;",
        "disk.sync(Sync::File(&file)).map_err(Failed::Unknown)?;",
    ),
    (
        "skip the checksum of a page",
        "crates/pages/src/cache/file.rs",
        "self.tables.checksums.get(number as usize) == Some(&page_crc(self.tables.footer.identity, number, page))",
        "self.tables.checksums.get(number as usize).is_some() && !page.is_empty()",
    ),
    (
        "skip the checksum of a log record's body",
        "crates/log/src/format.rs",
        "body.len() == self.len && (!self.has_body() || crc32c::crc32c(body) == self.body_crc)",
        "body.len() == self.len",
    ),
    (
        "trim the log early",
        "crates/vectors/src/background/manifest.rs",
        "let log_from = state.pins.iter().copied().min().unwrap_or(applied).min(applied);",
        "let log_from = applied;",
    ),
    (
        "keep the reserve from deletes",
        "crates/storage/src/reserve.rs",
        "ReserveClaim::Delete => held.bytes.saturating_sub(",
        "ReserveClaim::Delete => held.bytes + 0 * held.bytes.saturating_sub(",
    ),
    (
        "publish the manifest before its bytes are synced",
        "crates/storage/src/edits.rs",
        "    disk.sync(Sync::File(&file)).map_err(Failed::Clean)?;\n",
        "",
    ),
    (
        "forget to sync an edit of the manifest",
        "crates/storage/src/edits.rs",
        "        disk.sync(Sync::File(&place.file)).map_err(Failed::Unknown)?;\n        (place.layout.synced",
        "        (place.layout.synced",
    ),
    (
        "forget to sync a finished page file",
        "crates/pages/src/format/writer.rs",
        "self.disk.sync(Sync::File(&self.file))?;",
        "",
    ),
    (
        "leave the dead rows out of the manifest",
        "crates/vectors/src/background/manifest.rs",
        "if segment.has_unwritten_deaths() && (has_moved || !segment.listed.load(Ordering::SeqCst)) {",
        "if segment.has_unwritten_deaths() && has_moved && segment.dead.count() == u64::MAX {",
    ),
    (
        "forget the dead rows when a segment is opened",
        "crates/vectors/src/segment/mod.rs",
        "        DeleteFile::read(storage, name, self.meta.points, account, each)?;\n",
        "        _ = each;\n",
    ),
    (
        "keep the old place of a point that is replaced",
        "crates/vectors/src/collection/mod.rs",
        "        view.immutable.iter().for_each(|part| part.kill(&batch.ids, &mut memory));\n",
        "",
    ),
    (
        "leave the changed payloads out of the manifest",
        "crates/vectors/src/background/manifest.rs",
        "let payloads = runs.iter().map(|run| run.name.clone()).collect();",
        "let payloads = Vec::new();",
    ),
    (
        "trim the log that changed payloads in memory need",
        "crates/vectors/src/collection/mod.rs",
        "self.memtables().map(|part| part.from()).min().unwrap_or(CLEAN).min(self.patched_from())",
        "self.memtables().map(|part| part.from()).min().unwrap_or(CLEAN).min(self.patched_from().max(CLEAN))",
    ),
    (
        "fold an older run above a newer one",
        "crates/vectors/src/background/patch_compaction.rs",
        "for run in part.runs.iter().rev() {",
        "for run in part.runs.iter() {",
    ),
    (
        "lose the changed payloads of a merged segment",
        "crates/vectors/src/background/merge.rs",
        ".filter(|_| what != Walk::Ids)",
        ".filter(|_| what == Walk::Payloads && account.used() == u64::MAX)",
    ),
]


# The same for the store of versions, and for what the engine below it does for it alone.
VERSIONS = [
    (
        "versions: go on after a large unit that may be done",
        "crates/engine/src/bulk.rs",
        "Ok(Err(error)) if !was_closed && inner.files.storage.closed().is_some() => Some(error.clone()),",
        "Ok(Err(error)) if !was_closed && error.message().is_empty() => Some(error.clone()),",
    ),
    (
        "versions: trim the log that memtables need",
        "crates/engine/src/manifest.rs",
        "(drafts.min(frozen).min(end), end,",
        "(drafts.max(end).min(frozen).min(end), end,",
    ),
    (
        "versions: show what a purge has taken in part",
        "crates/versions/src/watch.rs",
        "let with_prev = with_prev && written > compacted;",
        "let with_prev = with_prev && written >= compacted;",
    ),
    (
        "versions: let versions go one revision early",
        "crates/versions/src/versions.rs",
        "let compacted = self.compacted()?;\n        self.engine.drop_ended(HISTORY, compacted.max(0) as u64);",
        "let compacted = self.compacted()?;\n        self.engine.drop_ended(HISTORY, compacted.max(0) as u64 + 1);",
    ),
    (
        "versions: keep a key with the lease that it had",
        "crates/versions/src/stage.rs",
        "            self.detach(before, key)?;\n",
        "",
    ),
    (
        "versions: check no guard",
        "crates/versions/src/stage.rs",
        "match self.reads.get(META, &keys::own(guard.name))? == guard.value {",
        "match self.reads.get(META, &keys::own(guard.name))? == guard.value || self.before > 20 {",
    ),
    (
        "versions: forget the revision of a large delete",
        "crates/versions/src/large.rs",
        "_ => bulk.put(REVISION, &record::number(self.revision)),",
        "_ => bulk.put(REVISION, &record::number(self.revision - 1)),",
    ),
]


# The same for the rules of weights, seen by the model of `runs`.
RULES = [
    (
        "weights: take the oldest run for the newest",
        "crates/runs/src/compaction.rs",
        "let mut merge = Merge::new(inputs.iter().rev().map(source)",
        "let mut merge = Merge::new(inputs.iter().map(source)",
    ),
    (
        "weights: forget those of the older records of a key",
        "crates/runs/src/merge.rs",
        "                entry.weight += older.entry.weight;\n",
        "",
    ),
    (
        "weights: let a tombstone go before the bottom",
        "crates/runs/src/compaction.rs",
        "Value::Deleted => bottom || entry.first,",
        "Value::Deleted => return Ok(true),",
    ),
    (
        "weights: let a merge drop what has expired",
        "crates/runs/src/compaction.rs",
        "Value::Inline(_) | Value::Big(_) => false,",
        "Value::Inline(value) => return Ok(value.len() > 9 && value[1] < 64),\n        Value::Big(_) => false,",
    ),
    (
        "weights: let a range tombstone go before the bottom",
        "crates/runs/src/compaction.rs",
        "Value::DeletedTo(_) => bottom,",
        "Value::DeletedTo(_) => true,",
    ),
]


def simulator(seeds: int) -> tuple[list[str], dict[str, str]]:
    return ["cargo", "run", "--profile", "fast", "--quiet", "-p", "ramekin-sim", "--", "--seeds", str(seeds)], {}


def of_versions(seeds: int) -> tuple[list[str], dict[str, str]]:
    run, more = simulator(seeds)
    return [*run, "--store", "versions"], more


def model(seeds: int) -> tuple[list[str], dict[str, str]]:
    return ["cargo", "test", "--quiet", "-p", "ramekin-runs", "--test", "model"], {"RUNS_SEEDS": str(seeds)}


def plant(tree: Path, file: str, right: str, wrong: str) -> None:
    path = tree / file
    text = path.read_text()
    if text.count(right) != 1:
        sys.exit(f"{file}: the line to change stands there {text.count(right)} times; this list is out of date")
    path.write_text(text.replace(right, wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--only", help="part of a bug's name")
    args = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        skip = shutil.ignore_patterns("target", ".git", ".venv", ".demo", ".bench", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=skip)
        every = [(bug, simulator) for bug in BUGS] + [(bug, of_versions) for bug in VERSIONS] + [(rule, model) for rule in RULES]
        environment = {**os.environ, "CARGO_TARGET_DIR": os.environ.get("PLANTED_TARGET", str(Path(scratch) / "target"))}
        for (name, file, right, wrong), see in every:
            if args.only and args.only not in name:
                continue
            plant(tree, file, right, wrong)
            run, more = see(args.seeds)
            done = subprocess.run(run, cwd=tree, env=environment | more, capture_output=True, text=True)
            said = done.stdout + done.stderr
            caught = "seed " in said and " failed: " in said
            if not caught and done.returncode != 0:
                sys.exit(f"{name}: it did not run\n{said[-2000:]}")
            missed += not caught
            line = next((line for line in said.splitlines() if " failed: " in line), "")
            print(f"{'caught' if caught else 'MISSED':7} {name:55} {line[:110]}", flush=True)
            shutil.copy(ROOT / file, tree / file)
    print(f"{missed} of the planted bugs were missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
