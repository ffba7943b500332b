"""Install the peers that come as wheels into a folder of their own, for `python bench/peers`.

    python bench/peers/install.py [TARGET]        # default: build/peers

Pinned by hash in requirements.txt, without their dependencies: torch, triton, CUDA and cuDNN are those of the Python
that runs the comparison. Of the sglang-kernel wheel (380 MB) only FlashMLA's operator is kept; it needs the torch it
was built against (2.11, CUDA 13). cuDNN and torch.compile come with torch. Nothing of this belongs into a commit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

HERE = Path(__file__).resolve().parent
TARGET = HERE.parents[1] / "build" / "peers"
ONLY = {"sglang_kernel": ("sgl_kernel/flashmla_ops.abi3.so", "sglang_kernel-*.dist-info/*", "*.dist-info/licenses/*")}
"""What to keep of a wheel, by its name, where not everything is wanted."""
PLATFORM = ("--python-version", "3.12", "--platform", "manylinux2014_x86_64", "--only-binary", ":all:")


def download(folder: Path) -> list[Path]:
    """The pinned wheels, by pip, for the machine with the device rather than this one."""
    requirements = HERE / "requirements.txt"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, *PLATFORM, "--require-hashes", "-r", str(requirements), "-d", str(folder)], check=True)
    return sorted(folder.glob("*.whl"))


def unpack(wheel: Path, target: Path) -> int:
    """Extract a wheel, or what `ONLY` names of it; bytes written."""
    patterns = ONLY.get(wheel.name.partition("-")[0])
    written = 0
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            if patterns is None or any(path.match(pattern) for pattern in patterns):
                archive.extract(member, target)
                written += member.file_size
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", type=Path, default=TARGET)
    target = parser.parse_args().target
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for wheel in download(Path(folder)):
            print(f"{wheel.name}: {unpack(wheel, target) / 2**20:.1f} MiB kept", flush=True)
    print(f"next: python bench/peers --site {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
