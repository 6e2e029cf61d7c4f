//! Starting, leaving and ending; what a process holds meanwhile. The number in a test's name is the row of the list in
//! `docs/FAILURES.md`.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test stops at the first surprise"
)]

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use warpfeed::source::{RecordFile, SourceExt, from_fn, from_iter_fn, from_vec};
use warpfeed::{ErrorKind, Field, Loader, OnError, SampleRng};

#[path = "support/watch.rs"]
mod watch;
use watch::{
    LONG, Number, again, alone, descriptors, device_and_stream, eventually, is_child, numbers, resident,
    samples, threads, values, within,
};

fn slow(n: u64, time: Duration) -> impl warpfeed::source::Source<Record = u64> {
    from_fn(n, move |i| {
        std::thread::sleep(time);
        Ok(i)
    })
}

#[test]
fn row_29_leaving_early_ends_every_thread_at_once() {
    alone("row_29_leaving_early_ends_every_thread_at_once", || {
        let before = threads();
        let (device, stream) = device_and_stream();
        let loader =
            Loader::builder(slow(8000, Duration::from_millis(1))).decode(Number).batch_size(8).workers(8);
        let loader = loader.build(&device).unwrap();
        let first = loader.epoch(&stream).unwrap().next().unwrap().unwrap();
        assert_eq!(values(&first).len(), 8);
        drop(first);
        let start = Instant::now();
        drop(loader);
        drop((device, stream));
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        // The process-wide thread that frees memory behind its gates ends by itself, too.
        eventually("the threads are gone", || threads().len() <= before.len());
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());

        // In the middle of a batch whose samples take five seconds together, with as many begun behind it.
        let (device, _stream) = device_and_stream();
        let loader = Loader::builder(slow(24_000, Duration::from_millis(5))).decode(Number);
        let loader = loader.batch_size(8000).workers(8).build(&device).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        drop(loader);
        eventually("the workers are gone", || !threads().iter().any(|t| t.starts_with("warpfeed-0")));
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    });
}

#[test]
fn row_32_ten_million_indices_do_not_hold_up_the_end() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for shuffle in [false, true] {
            let mut builder = numbers(10_000_000).batch_size(40_960).workers(2);
            if shuffle {
                builder = builder.shuffle(1);
            }
            let loader = builder.build(&device).unwrap();
            let consumer = |_| Err::<(), _>("the consumer gives up");
            assert!(consumer(loader.epoch(&stream).unwrap().next().unwrap().unwrap()).is_err());
            let start = Instant::now();
            loader.close().unwrap();
            assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        }
    });
}

#[test]
fn row_34_an_interrupt_ends_the_process_at_once_and_silently() {
    const NAME: &str = "row_34_an_interrupt_ends_the_process_at_once_and_silently";
    if is_child(NAME) {
        loop {
            let (device, stream) = device_and_stream();
            let loader = Loader::builder(slow(100, Duration::from_micros(100))).decode(Number).workers(2);
            let loader = loader.build(&device).unwrap();
            assert_eq!(samples(&loader, &stream).len(), 100);
        }
    }
    let shared = || std::fs::read_dir("/dev/shm").map_or(0, Iterator::count);
    let before = shared();
    for run in 0..20 {
        let mut command = again(NAME);
        // A shell starts what it runs in the background with interrupts ignored, and a child inherits that.
        // SAFETY: between fork and exec, one call that may be made there.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_micros(SampleRng::new(34, 0, run).below(30_000)));
        let start = Instant::now();
        // SAFETY: a plain system call, on a child that was not waited for, so that the number is still its own.
        assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > Duration::from_secs(10) {
                child.kill().unwrap();
                panic!("run {run}: still there");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGINT));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("panicked"), "run {run}: {errors}");
    }
    assert_eq!(shared(), before);
}

#[test]
fn row_36_a_timeout_without_workers_is_kept_after_each_sample() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let loader =
            Loader::builder(slow(20, Duration::from_millis(20))).decode(Number).batch_size(10).workers(0);
        let loader = loader.timeout(Duration::from_millis(50)).build(&device).unwrap();
        let (mut seen, mut timeouts) = (Vec::new(), 0);
        for batch in loader.epoch(&stream).unwrap() {
            match batch {
                Ok(batch) => seen.extend(values(&batch)),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Timeout);
                    timeouts += 1;
                }
            }
        }
        assert_eq!(seen, (0..20).collect::<Vec<_>>(), "the epoch goes on after each");
        assert!(timeouts >= 2, "{timeouts}");
        let zero = numbers(5).timeout(Duration::ZERO).build(&device).unwrap_err();
        assert!(zero.kind() == ErrorKind::InvalidConfig && zero.to_string().contains("timeout"));
    });
}

#[test]
fn row_40_a_million_samples_cost_nothing_at_build() {
    alone("row_40_a_million_samples_cost_nothing_at_build", || {
        let (device, stream) = device_and_stream();
        let before = resident();
        let start = Instant::now();
        let loader = numbers(1_000_000).batch_size(64).shuffle(1).workers(2).build(&device).unwrap();
        let (time, grown) = (start.elapsed(), resident().saturating_sub(before));
        assert!(time < Duration::from_secs(1) && grown < 64 << 20, "{time:?}, {grown} bytes");
        drop(loader);
        for workers in [0, 2] {
            let none = numbers(0).workers(workers).build(&device).unwrap();
            assert!(none.is_empty());
            for _ in 0..3 {
                assert!(none.epoch(&stream).unwrap().next().is_none());
            }
        }
    });
}

#[test]
fn row_41_nothing_goes_to_dev_shm() {
    alone("row_41_nothing_goes_to_dev_shm", || {
        // Other processes may use it: what counts is what this one maps or has open.
        let ours = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let fds = std::fs::read_dir("/proc/self/fd").unwrap();
            let open = fds.filter_map(|f| std::fs::read_link(f.unwrap().path()).ok());
            maps.lines().filter(|l| l.contains("/dev/shm")).count()
                + open.filter(|to| to.starts_with("/dev/shm")).count()
        };
        let (device, stream) = device_and_stream();
        let loader = numbers(1000).batch_size(10).workers(2).build(&device).unwrap();
        for batch in loader.epoch(&stream).unwrap() {
            batch.unwrap();
            assert_eq!(ours(), 0);
        }
    });
}

#[test]
fn row_42_ten_thousand_files_need_few_descriptors() {
    alone("row_42_ten_thousand_files_need_few_descriptors", || {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..10_000).map(|i| dir.path().join(format!("{i}"))).collect();
        for (i, path) in paths.iter().enumerate() {
            std::fs::write(path, [(i % 251) as u8]).unwrap();
        }
        let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        // SAFETY: a system call with a pointer to a live struct of its type.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        let (device, stream) = device_and_stream();
        let loader =
            Loader::builder(RecordFile::open_all(&paths, 1).unwrap()).batch_size(100).shuffle(1).workers(4);
        let loader = loader.build(&device).unwrap();
        let mut seen = 0;
        for batch in loader.epoch(&stream).unwrap() {
            let batch = batch.unwrap();
            let wanted: Vec<u8> = batch.indices().iter().map(|i| (i % 251) as u8).collect();
            assert_eq!(*batch.host::<u8>("record").unwrap(), wanted);
            assert!(descriptors() <= 33, "{} with the one that looks", descriptors());
            seen += batch.len();
        }
        assert_eq!(seen, 10_000);
    });
}

#[test]
fn row_44_memory_does_not_grow_with_the_epochs() {
    alone("row_44_memory_does_not_grow_with_the_epochs", || {
        let (device, stream) = device_and_stream();
        let paths: Vec<String> = (0..50_000).map(|i| format!("data/{i:06}.jpg")).collect();
        let text = [Field::host("path"), Field::scalar::<u64>("x")];
        let loader = Loader::builder(from_vec(paths)).decode_with(text, |s, row| {
            let (path, index) = (s.read()?.clone(), s.index());
            row.text("path")?.push_str(&path);
            Ok(row.set("x", index)?)
        });
        let loader = loader.batch_size(500).shuffle(1).workers(2).build(&device).unwrap();
        let mut after = Vec::new();
        for _ in 0..5 {
            for batch in loader.epoch(&stream).unwrap() {
                let batch = batch.unwrap();
                let (first, index) =
                    (batch.text("path").unwrap().next().unwrap().to_string(), batch.indices()[0]);
                assert_eq!(first, format!("data/{index:06}.jpg"));
            }
            after.push(resident());
        }
        assert!(after[4] < after[0] + (16 << 20), "{after:?}");
    });
}

#[test]
fn row_46_a_shuffle_buffer_is_freed_when_it_is_opened_again() {
    alone("row_46_a_shuffle_buffer_is_freed_when_it_is_opened_again", || {
        let (device, stream) = device_and_stream();
        let source = from_iter_fn(|_| (0..10_100).map(|i: u64| vec![i as u8; 1000]))
            .shuffle_buffer(10_000, 1)
            .unwrap();
        let loader = Loader::builder(source).decode_with([Field::new::<u8>("x", &[1000])], |s, row| {
            let index = s.read()?.clone();
            Ok(row.copy("x", &index)?)
        });
        let loader = loader.batch_size(10).workers(1).build(&device).unwrap();
        let mut after = Vec::new();
        for _ in 0..20 {
            assert_eq!(loader.epoch(&stream).unwrap().next().unwrap().unwrap().len(), 10);
            after.push(resident());
        }
        let grown = after[19].saturating_sub(after[1]);
        assert!(grown < 8 << 20, "{grown} bytes more: {after:?}");
    });
}

#[test]
fn row_47_one_huge_sample_leaves_no_memory_behind() {
    alone("row_47_one_huge_sample_leaves_no_memory_behind", || {
        let (device, stream) = device_and_stream();
        let source = from_fn(600, |i| Ok(vec![1u8; if i == 200 { 100_000_000 } else { 100_000 }]));
        let loader = Loader::builder(source).decode_with([Field::ragged::<u8>("x", 100_000)], |s, row| {
            let bytes = s.read()?;
            let (len, from) = (bytes.len(), bytes.as_ptr());
            let to = row.ragged::<u8>("x", len)?;
            assert_ne!(to.as_ptr(), from);
            to.fill(1);
            Ok(())
        });
        let loader =
            loader.batch_size(10).workers(2).on_error(OnError::Skip { limit: 1 }).build(&device).unwrap();
        let (mut before, mut holes) = (0, 0);
        for batch in loader.epoch(&stream).unwrap() {
            let batch = batch.unwrap();
            holes += batch.valid().iter().filter(|v| !**v).count();
            match batch.number() {
                10 => before = resident(),
                50 => assert!(resident() < before + (32 << 20), "{} bytes, {before} before", resident()),
                20 => assert_eq!(batch.valid().iter().position(|v| !v), Some(0)),
                _ => {}
            }
        }
        assert_eq!((holes, loader.stats().failed), (1, 1));
    });
}

#[test]
fn row_52_an_idle_consumer_costs_no_cpu_time() {
    alone("row_52_an_idle_consumer_costs_no_cpu_time", || {
        let used = || {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: a system call with a pointer to a live struct of its type.
            assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        let (device, stream) = device_and_stream();
        let loader = numbers(10_000).batch_size(4).workers(4).build(&device).unwrap();
        // One that is done with prefetching, too.
        let done = numbers(8).batch_size(4).workers(1).epochs(1).build(&device).unwrap();
        let mut running = loader.epoch(&stream).unwrap();
        // With its slots free, with all of them held, and behind the loader's end.
        let mut held = Vec::new();
        for holding in 0..3 {
            held.extend(running.by_ref().take(holding - held.len()).map(Result::unwrap));
            std::thread::sleep(Duration::from_millis(100));
            let before = used();
            std::thread::sleep(Duration::from_millis(700));
            let grown = used() - before;
            assert!(grown < Duration::from_millis(50), "{grown:?} with {} batches held", held.len());
        }
        drop(running);
        drop((loader, done));
        std::thread::sleep(Duration::from_millis(100));
        let before = used();
        std::thread::sleep(Duration::from_millis(500));
        assert!(used() - before < Duration::from_millis(50));
    });
}

#[test]
fn row_53_every_worker_takes_samples_while_the_others_are_at_theirs() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let active = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let seen = active.clone();
        let source = from_fn(8 * 40, move |i| {
            let now = seen[0].fetch_add(1, SeqCst) + 1;
            seen[1].fetch_max(now, SeqCst);
            std::thread::sleep(Duration::from_millis(2));
            seen[0].fetch_sub(1, SeqCst);
            Ok(i)
        });
        let loader = Loader::builder(source).decode(Number).batch_size(8).workers(8).build(&device).unwrap();
        assert_eq!(samples(&loader, &stream).len(), 320);
        let most = active[1].load(SeqCst);
        assert!((6..=8).contains(&most), "at most {most} samples of 8 workers at a time");
    });
}

#[test]
fn row_53_workers_work_at_the_same_time() {
    alone("row_53_workers_work_at_the_same_time", || {
        if std::thread::available_parallelism().unwrap().get() < 2 {
            println!("skipped: one CPU");
            return;
        }
        let (device, stream) = device_and_stream();
        let work = |i: u64| (0..100_000u64).fold(i, |x, k| std::hint::black_box(x.rotate_left(5) ^ k)) & 1;
        let time = |workers| {
            let loader = Loader::builder(from_fn(300, move |i| Ok(work(i)))).decode(Number).batch_size(4);
            let loader = loader.workers(workers).build(&device).unwrap();
            let start = Instant::now();
            assert_eq!(samples(&loader, &stream).len(), 300);
            start.elapsed().as_secs_f64()
        };
        // What the machine gives two bare threads at the same time: nothing where other work fills it.
        let bare = |threads: u64| {
            let start = Instant::now();
            std::thread::scope(|scope| {
                let part = move || (0..300u64 / threads).fold(0, |x, i| x ^ work(i));
                (0..threads).for_each(|_| drop(scope.spawn(part)));
            });
            start.elapsed().as_secs_f64()
        };
        let mut possible = false;
        for _ in 0..10 {
            let (limit, gain) = (bare(1) / bare(2), time(1) / time(8));
            println!("8 workers are {gain:.2} times as fast as 1, 2 bare threads {limit:.2} times");
            if gain >= 1.3 {
                return;
            }
            possible |= limit >= 1.5;
        }
        assert!(!possible, "8 workers are never 1.3 times as fast as 1");
        println!("skipped: this machine is busy with other work");
    });
}

/// Counts the workers that start.
fn count(seen: &Arc<AtomicUsize>) -> impl Fn(usize) + Send + Sync + 'static {
    let seen = seen.clone();
    move |_| {
        seen.fetch_add(1, SeqCst);
    }
}

#[test]
fn row_59_threads_are_counted() {
    alone("row_59_threads_are_counted", || {
        let (device, stream) = device_and_stream();
        let before = threads().len();
        let seen = Arc::new(AtomicUsize::new(0));
        let loader = numbers(1000).batch_size(10).workers(3).worker_init(count(&seen));
        let loader = loader.build(&device).unwrap();
        assert_eq!(samples(&loader, &stream).len(), 1000);
        // The streams of the CPU device are threads; on another device they are not.
        let streams = threads().iter().filter(|t| t.starts_with("warpfeed-stream")).count().saturating_sub(1);
        let more = threads().len() - before - streams;
        assert!(more <= 3 + 4, "{more} threads: {:?}", threads());
        assert_eq!(seen.load(SeqCst), 3);
        drop(loader);

        // SAFETY: a set of CPUs is plain data, for which zero is a value; the pointer is to a live one of this size.
        let bound = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
            let first = (0..1024).find(|&cpu| libc::CPU_ISSET(cpu, &set)).unwrap();
            libc::CPU_ZERO(&mut set);
            libc::CPU_SET(first, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
        };
        assert_eq!(bound, 0);
        let seen = Arc::new(AtomicUsize::new(0));
        let loader = numbers(100).worker_init(count(&seen)).build(&device).unwrap();
        assert_eq!(samples(&loader, &stream).len(), 100);
        assert_eq!(seen.load(SeqCst), 1, "workers for one CPU");
    });
}
