#!/usr/bin/env python3
"""Image pipelines beside those of other loaders, in one run: rounds over every program in turn, one process each.

    peers.py --peers FOLDER --scripts FOLDER --ours default=PATH --ours turbojpeg=PATH [--rounds 3] [--task a|c]

FOLDER of peers holds their virtual environments (`venvs/{main,tf,dali,ffcv,spdl}`) and the data (`data/imagenet/train`, 4,000 JPEG
files of about 500 x 375; `data/yolo/{images,labels}`, 1,000 of 1280 x 720); FOLDER of scripts their programs, each of which prints a
line of JSON. PATHs are `warpfeed` binaries built with and without the feature `turbojpeg`. Task a: random resized crop to 224 and
flip, batches of 256. Task c: letterbox to 640 with boxes, batches of 16. Reported are the process's CPU-seconds for 1,000 samples
(user and system, of the timed part) and samples a second: median, minimum and maximum, and every run.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

PEERS = {
    "a": [
        ("tf", ["tf_a.py", "--variant", "u8", "--n", "1536"]),
        ("main", ["torch_a.py", "--variant", "simplejpeg", "--n", "1536"]),
        ("main", ["torch_a.py", "--variant", "tvio", "--n", "1024"]),
        ("main", ["torch_a.py", "--variant", "pil", "--n", "512"]),
        ("dali", ["dali_a.py", "--variant", "u8", "--n", "1024"]),
        ("dali", ["dali_a.py", "--variant", "f32", "--n", "1024"]),
        ("ffcv", ["ffcv_a.py", "--variant", "u8", "--n", "1024"]),
        ("spdl", ["spdl_a.py", "--n", "512"]),
    ],
    "c": [
        ("main", ["torch_c.py", "--n", "384"]),
        ("main", ["torch_c.py", "--variant", "reduced", "--n", "384"]),
        ("dali", ["dali_c.py", "--n", "256"]),
    ],
}
OURS = {
    "a": [["--recipe", "imagenet", "--batch-size", "256", "--samples", "3072"]],
    "c": [
        ["--recipe", "yolo", "--batch-size", "16", "--samples", "1024"],
        ["--recipe", "yolo", "--batch-size", "16", "--samples", "1024", "--scaled-decoding"],
    ],
}
DATA = {"a": "data/imagenet/train", "c": "data/yolo"}


def programs(args, task):
    """Name and command of everything that is run."""
    for workers in args.workers:
        for entry in args.ours:
            name, binary = entry.split("=", 1)
            for recipe in OURS[task]:
                scaled = " half-scale" if "--scaled-decoding" in recipe else ""
                if scaled and name == "default":
                    continue  # the default decoder does not scale
                command = [binary, "bench", "--images", f"{args.peers}/{DATA[task]}", *recipe]
                yield f"warpfeed {name}{scaled}, {workers} workers", [*command, "--workers", str(workers), "--json"]
        for env, script in PEERS[task]:
            python = f"{args.peers}/venvs/{env}/bin/python"
            if os.path.exists(python):
                label = " ".join(script).replace("--variant ", "").split(" --n")[0]
                yield f"{label}, {workers} workers", [python, f"{args.scripts}/{script[0]}", *script[1:], "--workers", str(workers)]


def run(command, args):
    """The last line of JSON that the program prints, or None."""
    env = {**os.environ, "PEERS": args.peers, "OPENCV_LOG_LEVEL": "ERROR"}
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout, env=env, cwd=args.scripts)
    except subprocess.TimeoutExpired:
        return None
    lines = [line for line in out.stdout.splitlines() if line.startswith("{")]
    if not lines:
        print(f"no result: {' '.join(command)}\n{out.stderr[-500:]}", file=sys.stderr)
    return json.loads(lines[-1]) if lines else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, type=os.path.abspath)
    parser.add_argument("--scripts", required=True, type=os.path.abspath)
    parser.add_argument("--ours", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--task", action="append", choices=["a", "c"])
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--timeout", type=float, default=120)
    args = parser.parse_args()
    args.workers = args.workers or [1]
    for task in args.task or ["a", "c"]:
        results = {}
        for _ in range(args.rounds):
            for name, command in programs(args, task):
                result = run(command, args)
                if result:
                    rate = result.get("samples_s", result.get("samples_per_s"))
                    results.setdefault(name, []).append((result["cpu_s_per_1000"], rate))
        print(f"\ntask {task}: CPU-s for 1,000 samples, median (min-max); samples/s; all runs of both")
        for name, runs in sorted(results.items(), key=lambda item: statistics.median(r[0] for r in item[1])):
            cpu, rate = ([r[k] for r in runs] for k in (0, 1))
            every = "  ".join(f"{c:.2f}/{r:.0f}" for c, r in runs)
            print(f"{name:<42} {statistics.median(cpu):6.2f} ({min(cpu):.2f}-{max(cpu):.2f}) {statistics.median(rate):8.0f}   {every}")


if __name__ == "__main__":
    main()
