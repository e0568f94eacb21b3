"""Brings llama.cpp's vocabularies, the ids that they have to give, and the chat templates that it has.

    python3 models.py FOLDER [ARCHIVE]

Python 3.10 with pip and the network are all that is needed: `models/ggml-vocab-*` and `models/templates` are taken out of the
source archive of llama-cpp-python on PyPI (77 MB), which holds all of llama.cpp; nothing is installed.
They take 76 MB. An ARCHIVE that is there is taken instead of a new one. A folder that is there is not
made again.

Where the archive cannot be had the exit status is 69 (EX_UNAVAILABLE).
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"
ARCHIVE = "llama_cpp_python-0.3.36.tar.gz"
ARCHIVE_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
MODELS = "llama_cpp_python-0.3.36/vendor/llama.cpp/models/"
FILES = (MODELS + "ggml-vocab-", MODELS + "templates/")


def ensure(folder, archive):
    """Makes `folder`, unless it is there."""
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        # Tests that run side by side make it once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            scratch = Path(scratch)
            made = scratch / "made"
            made.mkdir()
            unpack(archive if archive and archive.exists() else fetch(scratch), made)
            os.replace(made, folder)


def fetch(scratch):
    """Brings the archive; answers its path."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary"]
    command += [PACKAGE.split("==")[0], "--dest", scratch, PACKAGE, "--quiet", "--retries", "1"]
    # pip looks at the package's metadata, for which nothing has to be built.
    settings = {"CMAKE_ARGS": "-DLLAMA_BUILD=OFF", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # People may demand one for what they install; nothing is.
    settings["PIP_REQUIRE_VIRTUALENV"] = "0"
    status = subprocess.run(command, env=os.environ | settings, stdout=sys.stderr).returncode
    # 2 is an exception: that of a transfer that breaks off.
    if status in (1, 2):
        unavailable(f"pip cannot bring {PACKAGE}: is there a network?")
    if status != 0:
        sys.exit(f"pip failed with status {status}")
    return scratch / ARCHIVE


def unavailable(why):
    """Stops where this cannot be done, which is no failure."""
    print(why, file=sys.stderr)
    sys.exit(os.EX_UNAVAILABLE)


def unpack(archive, folder):
    """Takes the files out of the archive, if it is the one that is meant."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != ARCHIVE_SHA256:
        sys.exit(f"{archive.name}: SHA-256 {digest} where {ARCHIVE_SHA256} is expected")
    with tarfile.open(archive) as members:
        for member in members:
            if member.isfile() and member.name.startswith(FILES):
                with open(folder / Path(member.name).name, "wb") as file:
                    shutil.copyfileobj(members.extractfile(member), file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("archive", type=Path, nargs="?")
    if sys.version_info < (3, 10):
        unavailable(f"Python 3.10 is needed, this is {sys.version.split()[0]}")
    arguments = parser.parse_args()
    ensure(arguments.folder, arguments.archive)


if __name__ == "__main__":
    main()
