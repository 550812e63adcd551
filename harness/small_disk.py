"""A file system of its own, small enough to be filled to the last byte. For tests, which are skipped where none may be mounted."""

import contextlib
import errno
import os
import subprocess

import pytest

from harness.cgroup import MIB


@contextlib.contextmanager
def small_disk(tmp_path, kind):
    """A mounted file system of 96 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if kind == "ext4":
        image = tmp_path / "image"
        with open(image, "wb") as file:
            file.truncate(96 * MIB)
        command = f"mkfs.ext4 -q -F -m 0 {image} && mount -o loop {image} {folder}"
    else:
        command = f"mount -t tmpfs -o size=96m tmpfs {folder}"
    made = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True)
    if made.returncode != 0:
        print(f"NOT TESTED: no file system may be mounted here: {made.stderr}")
        pytest.skip("mounting is not possible here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_to_the_last_byte(folder):
    with open(folder / "junk", "ab", buffering=0) as junk:
        for size in (MIB, 4096, 512, 1):
            with contextlib.suppress(OSError):
                while True:
                    junk.write(bytes(size))
        try:
            os.fsync(junk.fileno())
        except OSError as error:
            assert error.errno == errno.ENOSPC
    # What an fsync gave back is taken, too.
    with contextlib.suppress(OSError), open(folder / "junk", "ab", buffering=0) as junk:
        while True:
            junk.write(bytes(4096))
