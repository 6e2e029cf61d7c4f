#!/usr/bin/env python3
"""Breaks the order of the pipeline in one place after another and shows which test notices.

    tests/cuda/mutations.py [--only TEXT] [--table FILE]

Each mutation is made in a checkout of its own (below target/), built, and run over the simulated driver, one test binary
after the other until one fails. A mutation that no test notices makes the script fail. Takes about a minute each; CI does
not run it.
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "target" / "mutations"
BINARIES = ["pipeline", "capture", "interop", "work", "faults", "memory", "endings", "rows"]

# What is broken, in which file, what stands there, what takes its place.
MUTATIONS = [
    ("the consumer's stream does not wait for `copied`", "src/pool/device_slot.rs",
     "        if let Some(copied) = &memory.copied {\n            stream.follow(copied)?;\n        }\n        users.streams.push",
     "        users.streams.push"),
    ("`copied` is not recorded", "src/pool/host_slot.rs",
     "        stream.mark(&copied)?;\n", ""),
    ("the copy does not wait for `consumed`", "src/pool/device_slot.rs",
     "            stream.follow(event)?;\n", "            let _ = event;\n"),
    ("`consumed` is not recorded", "src/pool/device_slot.rs",
     "if let Err(e) = stream.mark(consumed) {", "if let Err(e) = stream.is_capturing() {"),
    ("`consumed` is recorded on the first stream alone", "src/pool/device_slot.rs",
     "in streams.iter().zip(consumed) {", "in streams.iter().zip(consumed).take(1) {"),
    ("the gate holds the first stream's `consumed` alone", "src/pool/device_slot.rs",
     "        *gated = streams.len();", "        *gated = streams.len().min(1);"),
    ("a second stream that uses a batch is not ordered behind it", "src/pool/device_slot.rs",
     "        if users.streams.iter().any(|s| s.id() == stream.id()) {", "        if !users.streams.is_empty() {"),
    ("a host slot is filled again before the copy out of it is done", "src/pool/host_slot.rs",
     "            if !copied.synchronize_for(timeout)? {", "            if copied.synchronize_for(timeout).is_err() {"),
    ("a free host slot forgets the copy out of it", "src/pool/host_slot.rs",
     "Ok((FreeSlot { memory: Some(from.0), copied: Some(copied) }, to))", "Ok((FreeSlot { memory: Some(from.0), copied: None }, to))"),
    ("a batch that is never delivered forgets its `copied`", "src/pool/device_slot.rs",
     "        if lock(&memory.users).gated > 0 {\n            // Every user's", "        {\n            // Every user's"),
    ("a device slot is freed without a look at its gate", "src/pool/device_slot.rs",
     "        Ok(self.has_passed()? && self.buffer.may_free_here())", "        Ok(self.buffer.may_free_here())"),
    ("a host slot is freed without a look at its copy", "src/pool/host_slot.rs",
     "Ok(copied) => Ok(copied.query()? && self.0.buffer.may_free_here()),", "Ok(_) => Ok(self.0.buffer.may_free_here()),"),
    ("a `copied` event is recorded again while a batch refers to it", "src/pool/device_slot.rs",
     "self.0.iter_mut().find_map(|e| Arc::get_mut(e).is_some().then(|| e.clone()))", "self.0.first_mut().map(|e| e.clone())"),
    ("a batch dropped during a capture is not parked", "src/pool/device_slot.rs",
     "|s| matches!(s.is_capturing(), Ok(true))", "|s| matches!(s.is_capturing(), Ok(true)) && s.id() == 0"),
    ("a parked slot is freed like any other", "src/pool/device_slot.rs",
     "            lock(&self.users).lost = Some(error.kind());\n", "            let _ = error;\n"),
    ("a batch dropped in work on a stream is released there", "src/loader/batch.rs",
     "        if !slot.may_release_here() {", "        if !slot.may_release_here() && self.process.is_forked() {"),
    ("what work on a stream drops last is never released", "src/pool/device_slot.rs",
     "        self.settle();\n        Ok(self.has_passed()?", "        Ok(self.has_passed()?"),
    ("who waits in `next` does not look for parked slots", "src/loader/epoch.rs",
     "        // Work on a stream may have dropped a batch meanwhile.\n        loader.shared.life.unpark();\n", ""),
    ("parked slots stay parked", "src/loader/epoch.rs",
     "        life.unpark();\n", ""),
    ("a batch dropped during a capture is told of at every call", "src/loader/batch.rs",
     ".filter(|e| e.kind() != ErrorKind::Capturing)", ""),
    ("a batch is delivered while the epoch's stream is captured", "src/loader/epoch.rs",
     "        if self.stream.is_capturing()? {", "        if self.stream.is_capturing()? && self.over {"),
    ("work on the host is enqueued on a stream that is captured", "src/loader/batch.rs",
     "        if !self.is_on_host() && stream.is_capturing()? {", "        if !self.is_on_host() && stream.is_capturing()? && self.life.process.is_forked() {"),
    ("our threads keep the strict capture mode", "src/device/cuda/mod.rs",
     "        exchange_mode(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);\n", ""),
    ("calls on the user's threads keep the strict capture mode", "src/device/cuda/mod.rs",
     "mode: Some(exchange_mode(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))", "mode: Some(exchange_mode(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL))"),
    ("a context is left on a user's thread", "src/device/cuda/mod.rs",
     "            let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut context) };\n", "            let _: *mut sys::CUcontext = &mut context;\n"),
    ("opening a device leaves its context on the thread", "src/device/cuda/mod.rs",
     "    check(\"cuCtxSetCurrent\", unsafe { sys::cuCtxSetCurrent(before) })?;\n", ""),
    ("a stream is destroyed under a clone of a batch's slice", "src/device/cuda/stream.rs",
     "            Box::leak(Box::new(self.stream.clone()));\n", ""),
    ("a view frees its memory", "src/device/cuda/view.rs",
     "        let _ = slice.leak();\n", "        drop(slice);\n"),
    ("a copy back that is refused takes its buffer along", "src/loader/read_back.rs",
     "            self.give_back(buffer);\n            return Err(error);", "            Box::leak(Box::new(buffer));\n            return Err(error);"),
    ("a batch is used on a stream of another device", "src/pool/device_slot.rs",
     "        if stream.device() != memory.device {", "        if stream.device() != memory.device && stream.id() == 0 {"),
    ("a batch is first used on a stream that is being captured", "src/loader/batch.rs",
     "if !self.slot.is_used_on(stream) && stream.is_capturing()? {", "if !self.slot.is_used_on(stream) && stream.is_capturing()? && stream.id() == 0 {"),
    ("a read-back does not wait for `copied`", "src/loader/read_back.rs",
     "            stream.follow(copied)?;\n", "            let _ = copied;\n"),
    ("a read-back is not waited for", "src/loader/read_back.rs",
     "outcome.and_then(|()| stream.synchronize())", "outcome"),
    ("a read-back's buffer is used again before the work on it has run", "src/loader/batch.rs",
     "            let _arrived = staged.map(Staged::arrive);\n", ""),
    ("a failed upload's memory is freed", "src/pool/host_slot.rs",
     "            to.lose(error.kind());\n            reaper::reap(Box::new(Parked(from.0, Err(error.kind()))));\n", ""),
    ("what a failed device does not take back is not counted", "src/device/cuda/memory.rs",
     "            Err(error) => reaper::leak(self.address, self.bytes, &error),", "            Err(_) => {}"),
    ("a failed measure of the link frees what is in flight", "src/pool/device_slot.rs",
     "        if let Err(again) = stream.synchronize() {\n            self.lose(again.kind());\n            host.lose(again.kind());\n        }\n", ""),
    ("a driver that shuts down is a warning", "src/device/reaper.rs",
     "            ErrorKind::Closed => tracing::debug!", "            ErrorKind::Closed => tracing::warn!"),
    ("lost slots are not looked at", "src/loader/epoch.rs",
     "        if lost.0 < loader.host_slots && lost.1 < loader.device_slots {", "        if lost.0 <= loader.host_slots {"),
    ("the copier waits in the driver", "src/loader/copier.rs",
     "        let waits = blocks && matches!", "        let waits = !blocks && matches!"),
    ("memory is freed on the user's thread", "src/device/cuda/memory.rs",
     "    if reaper::is_here() { drop(memory) } else { reaper::reap(memory) }", "    drop(memory)"),
]

# A second place to change, by the mutation's name: here the buffer has to be given back outside the work.
ALSO = {
    "a read-back's buffer is used again before the work on it has run": (
        "        stream.enqueue_fallible(move || {\n            let memory = memory;",
        "        drop(staged.map(Staged::arrive));\n        stream.enqueue_fallible(move || {\n            let memory = memory;"),
}


def run(*command, **more):
    return subprocess.run(command, cwd=TREE, capture_output=True, text=True, **more)


def checkout():
    if TREE.exists():
        run("git", "reset", "-q", "--hard", check=True)
        run("git", "checkout", "-q", "--detach", head(), check=True)
    else:
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(TREE), head()], cwd=ROOT, check=True)


def head():
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def failing(binary):
    """The tests of a binary that fail, or None where it does not build."""
    command = ["cargo", "test", "-q", "-p", "warpfeed-cuda", "--test", binary, "--", "--test-threads=4"]
    try:
        out = run(*command, timeout=600)
    except subprocess.TimeoutExpired:
        return ["(hangs)"]
    if "error: could not compile" in out.stderr or "error[E" in out.stderr:
        print(out.stderr[-3000:])
        return None
    if out.returncode == 0:
        return []
    names = sorted(set(re.findall(r"^    ([\w:]+)$", out.stdout, re.M)))
    return names or ["(the process ends)"]


def caught(binaries):
    for binary in binaries:
        if not (TREE / "tests/cuda/tests" / f"{binary}.rs").exists():
            continue
        names = failing(binary)
        if names is None:
            sys.exit("a mutation does not compile: mend it")
        if names:
            return binary, names
    return None


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--only", default="", help="mutations whose name contains this")
    args.add_argument("--table", type=Path, help="write the table there, as Markdown")
    args = args.parse_args()
    checkout()
    rows, missed = [], []
    for name, file, old, new in MUTATIONS:
        if args.only not in name:
            continue
        path, begun = TREE / file, time.time()
        source = path.read_text()
        if source.count(old) != 1:
            sys.exit(f"{name}: {file} has {source.count(old)} places like\n{old}")
        mutated = source.replace(old, new)
        if name in ALSO:
            mutated = mutated.replace(*ALSO[name])
        path.write_text(mutated)
        try:
            found = caught(BINARIES)
        finally:
            path.write_text(source)
        if found:
            binary, names = found
            by = f"`{binary}`: " + ", ".join(f"`{n}`" for n in names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
        else:
            by = "**no test**"
            missed.append(name)
        rows.append(f"| {name} | {by} |")
        print(f"{rows[-1]}  {time.time() - begun:.0f} s", flush=True)
    if args.table:
        args.table.write_text("\n".join(["| broken | test that fails |", "|---|---|", *rows]) + "\n")
    if missed:
        sys.exit(f"not noticed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
