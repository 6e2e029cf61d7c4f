#!/usr/bin/env python3
"""Makes kernels/*.ptx from kernels/*.cu, or checks that the committed files are what the compiler gives.

    kernels/ptx.py            write the PTX
    kernels/ptx.py --check    compare byte for byte, and assemble it for every GPU that each ptxas knows

NVRTC and ptxas come from NVIDIA's wheels, which pip downloads (130 MB) and which stay outside the repository: into a
temporary folder, or into the one that --wheels or $WARPFEED_WHEELS names, where a second run finds them.

Exit status: 0 all is well; 1 a file differs or does not compile; 77 the wheels can't all be had here.
"""

import argparse
import ctypes
import difflib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
# Compiled as a check, without PTX to commit: the kernels that only tests run.
TEST_KERNELS = ROOT / "tests" / "cusim" / "emu"

# The oldest NVRTC of CUDA 12: it writes PTX 8.0, which every driver from R525 on accepts; newer ones write newer PTX.
NVRTC = ("nvidia-cuda-nvrtc-cu12", "12.0.140")
ARCH = "compute_75"
VERSION_LINE = ".version 8.0"
TARGET_LINE = ".target sm_75"
# The define keeps NVRTC's own <nv/target>, 35 unused variables in device memory, out of every PTX.
OPTIONS = [f"--gpu-architecture={ARCH}", "--std=c++17", "-D__NV_TARGET_H"]
# The first is as old as the oldest driver's own compiler; the GPUs are what each one knows.
ASSEMBLERS = [
    (("nvidia-cuda-nvcc-cu12", "12.0.140"), ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90"]),
    (("nvidia-cuda-nvcc-cu12", "12.9.86"), ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]),
    (("nvidia-cuda-nvcc", "13.5.37"), ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]),
]


class Unavailable(Exception):
    """The wheels can't be had on this machine: the text says why, in one line."""


class Failed(Exception):
    """A source, or a file made from it, is not as it should be."""


def unpacked(wheel, wanted, folder, deadline):
    """The folder with the files of `wheel` whose names begin with one of `wanted`; downloads it where it is missing."""
    name, version = wheel
    home = folder / f"{name}-{version}"
    if home.is_dir():
        return home
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        scratch = pathlib.Path(scratch)
        begun = time.monotonic()
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        pip += ["--no-input", "--retries", "1", "--only-binary", ":all:", "--dest", str(scratch), f"{name}=={version}"]
        try:
            limit = max(1, deadline - begun)
            done = subprocess.run(pip, capture_output=True, encoding="utf-8", errors="replace", timeout=limit)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{name} {version}: the download takes too long") from None
        wheels = list(scratch.glob("*.whl"))
        if done.returncode != 0 or not wheels:
            last = (done.stderr.strip().splitlines() or ["pip gave no wheel"])[-1]
            raise Unavailable(f"{name} {version}: {last}")
        # Renamed when complete, so that an interrupted run leaves nothing that looks whole.
        whole = scratch / "whole"
        whole.mkdir()
        with zipfile.ZipFile(wheels[0]) as archive:
            for member in archive.namelist():
                base = pathlib.PurePosixPath(member).name
                if base.startswith(tuple(wanted)):
                    (whole / base).write_bytes(archive.read(member))
                    (whole / base).chmod(0o755)
        megabytes = wheels[0].stat().st_size / 1e6
        try:
            whole.rename(home)
        except OSError:
            if not home.is_dir():  # else another run was faster
                raise
        print(f"downloaded {name} {version}: {megabytes:.0f} MB in {time.monotonic() - begun:.0f} s", flush=True)
    return home


class Nvrtc:
    """NVIDIA's run-time compiler, which needs no GPU and no driver."""

    def __init__(self, home):
        try:
            # NVRTC opens the second library by its bare name: loaded already, it is found.
            for pattern in ("libnvrtc-builtins.so*", "libnvrtc.so*"):
                (path,) = home.glob(pattern)
                self.lib = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except (OSError, ValueError) as error:
            raise Unavailable(f"NVRTC does not load: {error}") from None

    def _text(self, program, what):
        size = ctypes.c_size_t()
        self._must(getattr(self.lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
        text = ctypes.create_string_buffer(size.value)
        self._must(getattr(self.lib, f"nvrtcGet{what}")(program, text), what)
        return text.value.decode()

    @staticmethod
    def _must(status, what):
        if status != 0:
            raise Failed(f"NVRTC: {what}: status {status}")

    def ptx(self, name, source):
        """The PTX of `source`. No include path is given; a warning is a failure."""
        program = ctypes.c_void_p()
        create = self.lib.nvrtcCreateProgram
        self._must(create(ctypes.byref(program), source.encode(), name.encode(), 0, None, None), "create")
        try:
            options = (ctypes.c_char_p * len(OPTIONS))(*(option.encode() for option in OPTIONS))
            status = self.lib.nvrtcCompileProgram(program, len(OPTIONS), options)
            log = self._text(program, "ProgramLog").strip()
            if status != 0 or log:
                raise Failed(f"{name}: status {status}\n{log}")
            ptx = self._text(program, "PTX")
        finally:
            self.lib.nvrtcDestroyProgram(ctypes.byref(program))
        for line in (VERSION_LINE, TARGET_LINE):
            if line not in ptx.splitlines():
                raise Failed(f"{name}: the PTX has no line '{line}'")
        return f"// {name} through kernels/ptx.py: NVRTC {NVRTC[1]} for {ARCH}. Not edited by hand.\n{ptx}"


def assemble(ptxas, arch, name, ptx):
    """Runs one ptxas over `ptx`; a warning is a failure."""
    with tempfile.TemporaryDirectory() as scratch:
        source, cubin = pathlib.Path(scratch) / "in.ptx", pathlib.Path(scratch) / "out.cubin"
        source.write_bytes(ptx.encode())
        command = [str(ptxas), f"--gpu-name={arch}", "--output-file", str(cubin), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=60)
        except OSError as error:
            raise Unavailable(f"ptxas does not run: {error}") from None
        said = (done.stdout + done.stderr).strip()
        if done.returncode != 0 or said or not cubin.is_file():
            raise Failed(f"{name} for {arch}: ptxas gives {done.returncode}\n{said}")


def must_fail(what, check, *arguments):
    """A check that lets a planted mistake through holds nothing."""
    try:
        check(*arguments)
    except Failed:
        return
    raise Failed(f"{what} was not found: the check itself is broken")


def compiled(nvrtc):
    """(path of the PTX or None for a test's kernel, name, PTX) of every source."""
    must_fail("a planted mistake in a source", nvrtc.ptx, "planted.cu", 'extern "C" __global__ void f() { g(); }')
    must_fail("a planted #include", nvrtc.ptx, "planted.cu", "#include <cuda_fp16.h>\n")
    sources = sorted(HERE.glob("*.cu"))
    if not sources:
        raise Failed("there is no source")
    out = [(path.with_suffix(".ptx"), path.name, nvrtc.ptx(path.name, path.read_bytes().decode())) for path in sources]
    for path in sorted(TEST_KERNELS.glob("*.cu")):
        out.append((None, path.name, nvrtc.ptx(path.name, path.read_bytes().decode())))
    return out


def compare(path, ptx):
    """The file holds exactly this text."""
    found = path.read_bytes().decode() if path.is_file() else ""
    if found != ptx:
        diff = difflib.unified_diff(found.splitlines(), ptx.splitlines(), "committed", "made now", lineterm="", n=1)
        raise Failed("\n".join([f"{path.name} is not what its source gives; run kernels/ptx.py", *list(diff)[:20]]))


def check(made, folder, deadline):
    must_fail("a planted difference", compare, made[0][0], made[0][2] + "\n")
    for path, name, ptx in made:
        if path:
            compare(path, ptx)
    print(f"{sum(1 for path, _, _ in made if path)} committed PTX files are what NVRTC {NVRTC[1]} gives", flush=True)
    for wheel, archs in ASSEMBLERS:
        ptxas = unpacked(wheel, ["ptxas"], folder, deadline) / "ptxas"
        must_fail("a planted mistake in PTX", assemble, ptxas, archs[0], "planted", made[0][2] + "planted\n")
        for arch in archs:
            for _, name, ptx in made:
                assemble(ptxas, arch, name, ptx)
        print(f"ptxas {wheel[1]} assembles {len(made)} for {' '.join(archs)}", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="write nothing, compare")
    arguments.add_argument("--wheels", type=pathlib.Path, default=os.environ.get("WARPFEED_WHEELS"), metavar="FOLDER")
    arguments.add_argument("--timeout", type=float, default=90, metavar="SECONDS", help="for all downloads together")
    arguments = arguments.parse_args()
    deadline = time.monotonic() + arguments.timeout
    for stream in (sys.stdout, sys.stderr):  # a compiler's message must not fail for want of a locale
        stream.reconfigure(errors="replace")

    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(arguments.wheels or scratch)
        try:
            made = compiled(Nvrtc(unpacked(NVRTC, ["libnvrtc.so", "libnvrtc-builtins.so"], folder, deadline)))
            orphans = set(HERE.glob("*.ptx")) - {path for path, _, _ in made}
            if arguments.check:
                if orphans:
                    raise Failed(f"no source for {', '.join(sorted(path.name for path in orphans))}")
                check(made, folder, deadline)
                return 0
            for path, _, ptx in made:
                if path:
                    path.write_bytes(ptx.encode())
                    print(f"wrote {path.name}")
            for path in orphans:
                path.unlink()
                print(f"removed {path.name}, which has no source")
            return 0
        except Unavailable as why:
            print(f"not checked to the end: {why}")
            return 77
        except Failed as why:
            print(f"FAILED: {why}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
