"""`ramekin lab` end to end, on a few thousand synthetic vectors: what it says must be there and make sense."""

import json
import os
import subprocess
import threading
import time

import numpy as np
import pytest

from bench import hdf5_to_npy
from harness import exact
from harness.server import binary


def lab(*arguments, check=True):
    done = subprocess.run([str(binary()), "lab", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert not check or done.returncode == 0, done.stderr[-3000:]
    return done


def fuse_works(tmp_path) -> bool:
    return os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


QUICK = ["--page-cache", "files", "--disk-file", "1MiB", "--disk-seconds", "0.05", "--connections", "2"]


def test_minram_measures_and_finds(tmp_path):
    out = tmp_path / "out"
    command = ["minram", "--synthetic", "3000,16,1", "--queries", "200", "--out", out, *QUICK, "--repeats", "2"]
    limits = ["--memory", "8MiB,32MiB", "--find", "8MiB,32MiB", "--step", "8MiB", "--min-rate", "1", "--min-recall", "0.99"]
    report = json.loads(lab(*command, *limits, "--json").stdout)
    assert report == json.loads((out / "minram.json").read_text())
    small, enough = report["limits"]
    assert small["runs"] == 0 and len(small["failed"]) == 2
    assert enough["limit_bytes"] == 40 << 20 and enough["runs"] == 2 and enough["answered"] == 400
    assert enough["recall"]["least"] > 0.99
    rate = enough["requests_per_second"]
    assert 0 < rate["least"] <= rate["median"] <= rate["most"]
    assert 0 < enough["p50_ms"]["median"] <= enough["p99_ms"]["median"]
    assert 1 << 20 < enough["peak_bytes"]["most"] <= 32 << 20
    assert enough["empty_per_second"]["median"] > 0
    assert 8 << 20 < report["least"]["least_memory_bytes"] <= 32 << 20
    assert [rate["depth"] for rate in report["disk"]["rates"]] == [1, 32, 64]
    assert "| limit | memory |" in (out / "minram.md").read_text()
    assert (out / "minram.svg").read_text().startswith("<svg")
    again = lab(*command, "--memory", "32MiB", "--reuse")
    assert "is taken as it is" in again.stderr and "recall@10" in again.stdout
    other = lab("minram", "--synthetic", "3000,16,2", "--out", out, "--memory", "32MiB", "--reuse", check=False)
    assert other.returncode == 2 and "another upload" in other.stderr


def test_minram_takes_any_server_and_files(tmp_path, rng):
    base = rng.standard_normal((500, 8)).astype(np.float32)
    query = rng.standard_normal((20, 8)).astype(np.float32)
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (base, query)]
    np.save(tmp_path / "b.npy", base)
    np.save(tmp_path / "q.npy", query)
    np.save(tmp_path / "t.npy", exact.nearest(*unit, 10).astype("<i4"))
    server = f"env A=1 {binary()} serve --data {{data}} --http 127.0.0.1:{{port}} --memory 32MiB"
    files = ["--base", tmp_path / "b.npy", "--query", tmp_path / "q.npy", "--truth", tmp_path / "t.npy"]
    more = ["--memory", "64MiB", "--repeats", "1", "--with-payload", "--ef", "64", "--rescore", "true", *QUICK, "--out", tmp_path / "out"]
    report = json.loads(lab("minram", *files, "--server", server, *more, "--json").stdout)
    assert report["limits"][0]["limit_bytes"] == 64 << 20
    assert report["limits"][0]["recall"]["median"] == 1.0
    assert report["search"] == {"params": {"hnsw_ef": 64, "quantization": {"rescore": True}}, "with_payload": True}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["minram", "--synthetic", "9,9,9"], "nothing to measure"),
        (["minram", "--memory", "32MiB"], "--base FILE with --query FILE"),
        (["minram", "--memory", "32MiB", "--server", "qdrant {port}", "--synthetic", "9,9,9"], "{data}"),
        (["minram", "--memory", "32MiB", "--base", "/nowhere.npy", "--query", "/nowhere.npy"], "/nowhere.npy"),
        (["io", "--synthetic", "9,9"], "N,DIM,SEED"),
        (["io", "--synthetic", "9,9,9", "--engines", "aio"], "uring, pread or mmap"),
        (["slow-disk", "/nowhere", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_input_is_said(tmp_path, arguments, said):
    more = [] if arguments[0] == "slow-disk" else ["--out", tmp_path / "out"]
    done = lab(*arguments, *more, check=False)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert "panicked" not in done.stderr


def test_io_compares_the_engines(tmp_path):
    small = ["--synthetic", "4000,24,1", "--queries", "100", "--rounds", "2", "--parallel", "2", "--disk-file", "0"]
    done = lab("io", *small, "--slow-ms", "2", "--out", tmp_path / "out", "--json")
    report = json.loads(done.stdout)
    places = 2 if report["slow_disk_cannot"] is None else 1
    assert len(report["cells"]) == places * 3 * 2
    for cell in report["cells"]:
        assert cell["seconds"]["least"] > 0 and cell["recall"]["median"] > 0.8, cell
        assert cell["engine"] != "mmap" or cell["major_faults"]["least"] > 0, "a mapping must fault"
    if fuse_works(tmp_path):
        assert places == 2
    assert not os.path.ismount(tmp_path / "out" / "slow")
    assert "## local disk" in (tmp_path / "out" / "io.md").read_text()


def test_a_slow_disk_delays_all_reads_at_the_same_time(tmp_path):
    if not fuse_works(tmp_path):
        pytest.skip("no FUSE here")
    source, mount = tmp_path / "source", tmp_path / "mount"
    source.mkdir()
    mount.mkdir()
    data = os.urandom(1 << 20)
    (source / "data").write_bytes(data)
    command = [str(binary()), "lab", "slow-disk", "--delay-ms", "200", str(source), str(mount)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (mount / "data").exists():
            assert process.poll() is None
            time.sleep(0.02)
        assert os.listdir(mount) == ["data"]
        file = os.open(mount / "data", os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        seen = []

        def read(page):
            start = time.monotonic()
            seen.append((os.pread(file, 4096, page * 4096) == data[page * 4096 : (page + 1) * 4096], time.monotonic() - start))

        threads = [threading.Thread(target=read, args=(page,)) for page in range(0, 256, 16)]
        start = time.monotonic()
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        took = time.monotonic() - start
        os.close(file)
        assert all(right and 0.19 < lap for right, lap in seen), seen
        assert took < 16 * 0.2 / 2, "the delays must not add up"
        with pytest.raises(OSError):
            (mount / "new").write_bytes(b"x")
    finally:
        process.terminate()
        process.wait(20)
    assert not os.path.ismount(mount)


def test_hdf5_parts_become_npy(tmp_path, rng):
    """The converter's own work, with a mapping of arrays in place of the file: h5py is not among the tests' packages."""
    parts = {"train": rng.random((30, 4)), "test": rng.random((5, 4)), "neighbors": rng.integers(0, 30, (5, 10))}
    for path, (name, kind) in zip(hdf5_to_npy.convert(parts, tmp_path, "set"), hdf5_to_npy.PARTS.values(), strict=True):
        np.testing.assert_array_equal(np.load(path), parts[name].astype(kind))
    with pytest.raises(ValueError, match="neighbors"):
        hdf5_to_npy.convert({"train": parts["train"], "test": parts["test"]}, tmp_path, "set")


def test_versions_puts_what_was_planned_beside_what_was_measured(tmp_path):
    out = tmp_path / "out"
    command = ["versions", "--keys", "1000,4000", "--versions", "1,2", "--settle-s", "1", "--watchers", "2000", "--out", out]
    report = json.loads(lab(*command, "--json").stdout)
    assert report == json.loads((out / "versions.json").read_text())
    (own,) = report["servers"]
    assert own["server"] == "ramekin" and set(own["fitted"]) == {"after_restart", "settled"}
    assert [(point["keys"], point["versions"]) for point in own["points"]] == [(1000, 1), (1000, 2), (4000, 1), (4000, 2)]
    for point in own["points"]:
        planned = point["planned"]
        assert point["disk_bytes"] <= planned["disk_bytes"]["high"], point
        # Memory that was free already hides some of it, or all where their request was as large.
        assert point["bytes_per_watcher"] < 3000 and planned["watch_bytes"] / 2000 < 500, point
        assert planned["tables_bytes_booked"] < planned["tables_bytes"] * 1.25 + 80 * 1024, planned
        assert planned["least_budget_peak_bytes"] <= planned["least_budget"] < 64 << 20, planned
        assert 0 < point["settled"]["anonymous_bytes"] <= point["settled"]["peak_bytes"]
    assert "### Planned and measured" in (out / "versions.md").read_text()
    assert (out / "versions.svg").read_text().startswith("<svg")
    few = lab("versions", "--memory", "8MiB", "--out", out, check=False)
    assert few.returncode == 2 and "the least budget of a server with etcd's door" in few.stderr
