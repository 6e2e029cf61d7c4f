//! Batches that the consumer keeps, and epochs that it leaves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use warpfeed::{AllHeld, Batch, CpuOptions, Device, ErrorKind, HostBatch, Order};

#[path = "support/watch.rs"]
mod watch;
use watch::{LONG, device_and_stream, device_with, numbers, samples, values, within};

#[test]
fn when_all_slots_are_held_the_next_call_says_so_and_the_one_after_a_drop_goes_on() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 1, 3] {
            let loader = numbers(60).batch_size(2).device_slots(3).workers(workers).build(&device).unwrap();
            let mut running = loader.epoch(&stream).unwrap();
            let mut held: Vec<Batch> = running.by_ref().take(3).map(Result::unwrap).collect();
            let mut next = 6;
            for k in [1, 0, 2, 2, 1] {
                for _ in 0..2 {
                    let e = running.next().unwrap().unwrap_err();
                    assert_eq!(e.kind(), ErrorKind::Exhausted);
                    assert!(e.to_string().contains("3 device slots"), "{e}");
                }
                assert_eq!(values(&held[k])[0], 2 * held[k].number());
                held.remove(k);
                held.push(running.next().unwrap().unwrap());
                assert_eq!(values(held.last().unwrap()), [next, next + 1]);
                next += 2;
            }
            let kept: Vec<u64> = held.iter().map(Batch::number).collect();
            assert_eq!(held.iter().map(|b| values(b)[0] / 2).collect::<Vec<_>>(), kept);
            drop(held);
            assert_eq!(
                running.flat_map(|b| values(&b.unwrap())).collect::<Vec<_>>(),
                (next..60).collect::<Vec<_>>()
            );
        }
    });
}

#[test]
fn the_end_of_an_epoch_needs_no_slot() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let loader = numbers(6).batch_size(2).device_slots(3).workers(workers).build(&device).unwrap();
            let mut running = loader.epoch(&stream).unwrap();
            let held: Vec<Batch> = running.by_ref().take(3).map(Result::unwrap).collect();
            assert!(running.next().is_none());
            drop(running);
            let mut second = loader.epoch(&stream).unwrap();
            assert_eq!(second.next().unwrap().unwrap_err().kind(), ErrorKind::Exhausted);
            drop(held);
            assert_eq!(
                second.flat_map(|b| values(&b.unwrap())).collect::<Vec<_>>(),
                (0..6).collect::<Vec<_>>()
            );
        }
    });
}

#[test]
fn a_wait_for_another_thread_to_drop_a_batch_is_bounded() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let wait = |t| numbers(40).workers(workers).device_slots(1).on_all_held(AllHeld::Wait(t));
            let loader = wait(LONG).build(&device).unwrap();
            let (give, take) = channel::<Batch>();
            let other = std::thread::spawn(move || {
                for batch in take {
                    std::thread::sleep(Duration::from_millis(3));
                    assert_eq!(values(&batch), [batch.number()]);
                }
            });
            for batch in loader.epoch(&stream).unwrap() {
                give.send(batch.unwrap()).unwrap();
            }
            drop(give);
            other.join().unwrap();

            let loader = wait(Duration::from_millis(60)).build(&device).unwrap();
            let mut running = loader.epoch(&stream).unwrap();
            let held = running.next().unwrap().unwrap();
            let start = Instant::now();
            assert_eq!(running.next().unwrap().unwrap_err().kind(), ErrorKind::Exhausted);
            assert!(start.elapsed() >= Duration::from_millis(60));
            drop(held);
            assert_eq!(values(&running.next().unwrap().unwrap()), [1]);
        }
    });
}

#[test]
fn an_epoch_that_is_left_takes_nothing_from_the_next_one() {
    within(LONG, || {
        for (workers, order) in
            [(0, Order::InOrder), (1, Order::InOrder), (4, Order::InOrder), (4, Order::AsReady)]
        {
            let late = CpuOptions::default().copy_delay(5, Duration::from_millis(2));
            let device = device_with(late);
            let stream = device.new_stream().unwrap();
            let loader =
                numbers(50).batch_size(4).shuffle(3).device_slots(3).workers(workers).order(order.clone());
            let loader = loader.build(&device).unwrap();
            let mut held: Vec<(Batch, Vec<u64>)> = Vec::new();
            for left_after in [0, 1, 5, 12, 13, 2] {
                let mut running = loader.epoch(&stream).unwrap();
                let number = running.number();
                for batch in running.by_ref().take(left_after) {
                    let batch = batch.unwrap();
                    assert_eq!(batch.epoch(), number);
                    let values = values(&batch);
                    assert_eq!(values, batch.indices());
                    held.push((batch, values));
                    if held.len() > 2 {
                        held.remove(0);
                    }
                }
                drop(running);
                // With batches of the left epoch, or of the one before it, still alive.
                let mut whole = Vec::new();
                for batch in loader.epoch(&stream).unwrap() {
                    let batch = batch.unwrap();
                    assert_eq!(batch.epoch(), number + 1);
                    whole.extend(values(&batch));
                }
                whole.sort_unstable();
                assert_eq!(whole, (0..50).collect::<Vec<_>>());
                assert!(held.iter().all(|(batch, wanted)| values(batch) == *wanted));
            }
        }
    });
}

#[test]
fn a_batch_outlives_its_loader_stream_and_device() {
    within(LONG, || {
        let slow = CpuOptions::default().copy_time(Duration::from_millis(30));
        for workers in [0, 2] {
            let device = device_with(slow.clone());
            let stream = device.new_stream().unwrap();
            let loader = numbers(64).batch_size(16).workers(workers).build(&device).unwrap();
            let mut running = loader.epoch(&stream).unwrap();
            let batches: Vec<Batch> = running.by_ref().take(2).map(Result::unwrap).collect();
            drop(running);
            let start = Instant::now();
            drop(loader);
            drop((stream, device));
            assert!(start.elapsed() < Duration::from_secs(1), "nothing waits for the device");
            let seen = std::thread::spawn(move || batches.iter().flat_map(values).collect::<Vec<_>>());
            assert_eq!(seen.join().unwrap(), (0..32).collect::<Vec<_>>());
        }
    });
}

#[test]
fn one_epoch_of_a_loader_lives_at_a_time() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let loader = numbers(10).workers(1).epochs(3).build(&device).unwrap();
        let first = loader.epoch(&stream).unwrap();
        assert_eq!(loader.epoch(&stream).err().unwrap().kind(), ErrorKind::Busy);
        drop(first);
        let elsewhere = Device::cpu().new_stream().unwrap();
        assert_eq!(loader.epoch(&elsewhere).err().unwrap().kind(), ErrorKind::InvalidArgument);
        // An epoch may be taken on another thread.
        std::thread::scope(|scope| {
            let running = loader.epoch(&stream).unwrap();
            let seen = scope.spawn(move || running.map(|b| values(&b.unwrap())[0]).collect::<Vec<_>>());
            assert_eq!(seen.join().unwrap(), (0..10).collect::<Vec<_>>());
        });
        assert_eq!(samples(&loader, &stream).len(), 10);
        let e = loader.epoch(&stream).err().unwrap();
        assert!(e.kind() == ErrorKind::Finished && e.to_string().contains("3 epochs"), "{e}");
        assert_eq!((loader.state().epoch(), loader.state().position()), (3, 0));
    });
}

#[test]
fn a_panic_in_work_on_a_batch_surfaces_and_no_batch_is_lost() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        for workers in [0, 2] {
            let loader = numbers(12).workers(workers).build(&device).unwrap();
            let (mut errors, mut seen) = (0, Vec::new());
            // An error that is late comes in the second epoch.
            while loader.state().epoch() < 2 {
                let mut running = loader.epoch(&stream).unwrap();
                while let Some(next) = running.next() {
                    match next {
                        Ok(batch) => {
                            if let (0, 3 | 7) = (batch.epoch(), batch.number()) {
                                let boom = |_: HostBatch<'_>| -> () { panic!("boom on the stream") };
                                batch.enqueue(&stream, boom).unwrap();
                            }
                            if batch.number() == 3 {
                                // So that the drop of the batch is the first to meet it; else maybe the next batch.
                                std::thread::sleep(Duration::from_millis(30));
                            }
                            seen.push((batch.epoch(), batch.number()));
                        }
                        Err(e) => {
                            assert!(
                                e.kind() == ErrorKind::Panic && e.to_string().contains("on the stream"),
                                "{e}"
                            );
                            errors += 1;
                            assert!(running.next().is_none(), "it ends the epoch, as any such error");
                        }
                    }
                }
            }
            assert_eq!(seen, (0..2).flat_map(|e| (0..12).map(move |n| (e, n))).collect::<Vec<_>>());
            assert!(
                (1..=2).contains(&errors),
                "{errors}: a second panic before the first was told is not told"
            );
            assert_eq!(loader.stats().lost_slots, 0);
            loader.close().unwrap();
        }
    });
}

#[test]
fn an_error_of_work_is_never_lost_to_the_end_of_a_batch() {
    within(LONG, || {
        let (device, stream) = device_and_stream();
        let loader = numbers(100).batch_size(10).workers(2).build(&device).unwrap();
        let mut epoch = loader.epoch(&stream).unwrap();
        for (number, batch) in epoch.by_ref().take(3).enumerate() {
            let batch = batch.unwrap();
            batch
                .enqueue(&stream, move |_| if number == 2 { Err(anyhow::anyhow!("third")) } else { Ok(()) })
                .unwrap();
            // It has run before the batch is dropped, whose own records must not swallow it.
            std::thread::sleep(Duration::from_millis(20));
            drop(batch);
        }
        drop(epoch);
        drop(loader);
        let error = stream.synchronize().unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Work, "third"));
        stream.synchronize().unwrap();
    });
}
