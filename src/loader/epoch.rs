//! One pass over the data, as an iterator.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, TryRecvError};

use super::batch::Batch;
use super::config::AllHeld;
use super::control::Start;
use super::copier::Delivery;
use super::feeder::Step;
use super::work::Status;
use super::{Core, Inline};
use crate::device::Stream;
use crate::error::{Error, ErrorKind, Place, Result, Stage};
use crate::pool::{DeviceSlot, Ticket};
use crate::sync::lock;

/// The batches of one epoch, in delivery order.
///
/// It ends at the first `None`. An error that [passes](ErrorKind::is_transient) (no device slot, a timeout) does
/// not end it: the next call goes on. Any other error does; the loader's position then stays at the batch that
/// failed, and the next [`Loader::epoch`](super::Loader::epoch) tries it again.
///
/// Dropping an epoch that did not fail, also by a `break`, moves on to the start of the one after it; to pause instead,
/// iterate with `epoch.by_ref().take(n)`. Only over a source that can be read once does the next epoch go on where
/// this one was left, so that no record is lost.
pub struct Epoch<'l> {
    loader: &'l Core,
    stream: Stream,
    number: u64,
    over: bool,
    /// The consumer has had a batch since `now`.
    given: bool,
    /// The clock as it was last read: it is read once or twice a batch.
    now: Instant,
}

impl<'l> Epoch<'l> {
    pub(super) fn begin(loader: &'l Core, stream: &Stream) -> Result<Self> {
        loader.shared.life.check_process()?;
        if stream.device() != loader.device {
            let text = "the stream belongs to another device than the loader";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let on_own_worker = loader.shared.pool.as_ref().is_some_and(|p| p.current_thread_index().is_some());
        if on_own_worker || stream.is_running_here() {
            let text = "an epoch can't be taken by a worker of its own runtime, or by work on its own stream: it would wait for itself";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if loader.busy.swap(true, Ordering::AcqRel) {
            let text = "another epoch of this loader is still alive: drop it first, or build a second loader";
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let mut progress = lock(&loader.progress);
        let shared = &loader.shared;
        let here = progress.here(shared);
        let failed = progress.failed;
        if failed && shared.is_read_once() {
            loader.busy.store(false, Ordering::Release);
            let text = "a batch failed, and a source that can be read once can't give its records again";
            return Err(Error::new(ErrorKind::NotResumable, text));
        }
        if (failed || here.epoch != progress.epoch())
            && let Err(error) = progress.begin(shared, here)
        {
            loader.busy.store(false, Ordering::Release);
            return Err(error);
        }
        let number = progress.epoch();
        drop(progress);
        if failed {
            shared.control.restart(here);
        }
        if number >= shared.epochs {
            loader.busy.store(false, Ordering::Release);
            let text = format!("all {} epochs have been delivered", shared.epochs);
            return Err(Error::new(ErrorKind::Finished, text));
        }
        Ok(Self { loader, stream: stream.clone(), number, over: false, given: false, now: Instant::now() })
    }

    /// The epoch's number, from 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Batches that are left of it on this rank; `None` where the source's length is unknown.
    pub fn remaining(&self) -> Option<u64> {
        lock(&self.loader.progress).remaining(&self.loader.shared, self.number)
    }

    fn is_stale(&self, ticket: &Ticket) -> bool {
        ticket.generation != self.loader.shared.control.generation() || ticket.epoch < self.number
    }

    /// The next batch, `None` at the end of the epoch.
    fn advance(&mut self) -> Result<Option<Batch>> {
        self.stream.surface()?;
        if self.stream.is_capturing()? {
            let text = "the epoch's stream is being captured: take the batch before the capture begins";
            return Err(Error::new(ErrorKind::Capturing, text));
        }
        loop {
            match self.receive()? {
                Delivery::Batch(slot) if self.is_stale(&slot.manifest().ticket) => self.give_back(slot),
                Delivery::Batch(slot) => return self.accept(slot).map(Some),
                Delivery::End(ticket) | Delivery::Failed(ticket, _) if self.is_stale(&ticket) => {}
                Delivery::End(_) => return Ok(None),
                Delivery::Failed(_, error) => return Err(error),
            }
        }
    }

    /// Hands a batch to the consumer, or makes the error of it that the fault policy asks for.
    fn accept(&self, mut slot: DeviceSlot) -> Result<Batch> {
        let loader = self.loader;
        let manifest = slot.manifest_mut();
        let ticket = manifest.ticket;
        let place = || Place { epoch: Some(ticket.epoch), batch: Some(ticket.number), ..Place::default() };
        let faults = manifest.faults.len();
        let (retried, replaced) = count(&manifest.faults);
        let verdict = match manifest.error.take() {
            Some(error) => Err(error.at(place())),
            None => loader.tally.deliver(ticket.epoch, &mut manifest.faults),
        };
        if let Err(error) = verdict.and_then(|()| slot.use_on(&self.stream)) {
            self.give_back(slot);
            return Err(error);
        }
        let mut progress = lock(&loader.progress);
        progress.deliver(&loader.shared, ticket.number);
        let state = progress.state(&loader.shared, loader.fingerprint);
        let low = progress.low();
        drop(progress);
        if !loader.shared.in_order {
            loader.shared.control.advance(low);
        }
        let manifest = slot.manifest();
        let metrics = &loader.shared.metrics;
        let valid = match faults {
            0 => manifest.len,
            _ => manifest.rows.valid[..manifest.len].iter().filter(|v| **v).count(),
        };
        metrics.samples.fetch_add(valid as u64, Ordering::Relaxed);
        metrics.batches.fetch_add(1, Ordering::Relaxed);
        metrics.bytes.fetch_add(manifest.bytes as u64, Ordering::Relaxed);
        metrics.failed.fetch_add(faults as u64, Ordering::Relaxed);
        metrics.retried.fetch_add(retried, Ordering::Relaxed);
        metrics.replaced.fetch_add(replaced, Ordering::Relaxed);
        Ok(Batch::new(
            slot,
            loader.free_device.clone(),
            loader.shared.life.clone(),
            loader.spec.clone(),
            state,
        ))
    }

    /// A slot that is not delivered goes back with `copied` as its gate.
    fn give_back(&self, mut slot: DeviceSlot) {
        slot.manifest_mut().faults.clear();
        let result = slot.release();
        self.loader.shared.life.give_back(slot, &self.loader.free_device);
        if let Err(error) = result {
            lock(&self.loader.shared.life.error).get_or_insert(error);
        }
    }

    fn receive(&mut self) -> Result<Delivery> {
        let loader = self.loader;
        match loader.ready.try_recv() {
            Ok(delivery) => return Ok(delivery),
            Err(TryRecvError::Disconnected) => return Err(gone()),
            Err(TryRecvError::Empty) => {}
        }
        let start = self.now;
        let (blame, link) = (self.blame(), loader.link_time());
        let result = match &loader.inline {
            None => self.wait(start),
            Some(inline) => self.work(&mut lock(inline), start),
        };
        self.now = Instant::now();
        let waited = self.now - start;
        let metrics = &loader.shared.metrics;
        // Without workers the wait for a copy is a part of the call; the rest of it is their work.
        let for_copy = match loader.inline {
            None if blame == Some(Stage::Copy) => waited,
            None => Duration::ZERO,
            Some(_) => metrics.take_nap().min(waited),
        };
        // Where copies are the cause the link hardly rests; else they wait for device slots that the consumer's own
        // work on its stream has not left yet.
        let link_is_full = loader.link_time() - link >= for_copy.mul_f64(0.75);
        metrics.stall(if link_is_full { Stage::Copy } else { Stage::Consumer }, for_copy);
        let rest = blame.filter(|&s| s != Stage::Copy).unwrap_or_else(|| self.blame_workers());
        metrics.stall(rest, waited - for_copy);
        result
    }

    /// Waits for the copier.
    fn wait(&self, start: Instant) -> Result<Delivery> {
        let life = &self.loader.shared.life;
        life.hunger.block(true);
        // What was given back so far may not have been worth waking the copier for; now it is.
        life.feed_copier(&self.loader.free_device);
        let result = self.block(start);
        life.hunger.block(false);
        result
    }

    fn block(&self, start: Instant) -> Result<Delivery> {
        let loader = self.loader;
        loop {
            // While all slots are held, look often whether a batch waits for one: nobody sends word of that.
            let (held, slots) = self.held();
            let pause = if held >= slots { Duration::from_millis(1) } else { Duration::from_millis(100) };
            let left = loader.timeout.map(|t| t.saturating_sub(start.elapsed()));
            match loader.ready.recv_timeout(left.map_or(pause, |l| l.min(pause))) {
                Ok(delivery) => return Ok(delivery),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) => self.check_patience(start)?,
            }
        }
    }

    /// Does the threads' work until something is delivered.
    fn work(&self, inline: &mut Inline, start: Instant) -> Result<Delivery> {
        let shared = &self.loader.shared;
        loop {
            while let Some(mut claim) = inline.claims.as_mut().and_then(Iterator::next) {
                let ticket = claim.ticket();
                let rows = claim.rows();
                let last = Place {
                    epoch: Some(ticket.epoch),
                    batch: Some(ticket.number),
                    row: Some(rows.number(0)),
                    ..Place::of_index(rows.index(0))
                };
                drop(shared.work.run(shared, claim, 0, 0));
                self.check_timeout(start, Some(&last))?;
            }
            inline.claims = None;
            let starved = inline.copier.poll();
            match self.loader.ready.try_recv() {
                Ok(delivery) => return Ok(delivery),
                Err(TryRecvError::Disconnected) => return Err(gone()),
                Err(TryRecvError::Empty) => {}
            }
            let retry = inline.copier.next_retry();
            if starved || retry.is_some() {
                self.check_patience(start)?;
                std::thread::sleep(retry.unwrap_or(Duration::from_millis(1)).min(Duration::from_millis(5)));
                continue;
            }
            match inline.feeder.step() {
                Step::Batch(claims) => inline.claims = Some(claims),
                Step::Sent => {}
                // A slot that was not free has been waited for already.
                step @ (Step::Idle | Step::NoSlot(_)) => {
                    self.check_patience(start)?;
                    let nap = Duration::from_micros(200);
                    std::thread::sleep(nap);
                    let waited = if let Step::NoSlot(waited) = step { waited } else { Duration::ZERO };
                    shared.metrics.nap(nap + waited);
                }
            }
        }
    }

    fn held(&self) -> (usize, usize) {
        let life = &self.loader.shared.life;
        let slots =
            self.loader.device_slots - life.lost.load(Ordering::Acquire).min(self.loader.device_slots);
        (life.held.load(Ordering::Acquire), slots)
    }

    /// Whether waiting can go on.
    fn check_patience(&self, start: Instant) -> Result<()> {
        let loader = self.loader;
        // Work on a stream may have dropped a batch meanwhile.
        loader.shared.life.unpark();
        self.check_slots()?;
        let (held, slots) = self.held();
        let starved = loader.shared.life.hunger.is_starving(loader.shared.control.version());
        if held >= slots && starved && loader.ready.is_empty() {
            let patience = match loader.on_all_held {
                AllHeld::Error => Duration::ZERO,
                AllHeld::Wait(t) => t,
            };
            if start.elapsed() >= patience {
                let text = format!(
                    "all {} device slots are held by {held} live batches, and the next batch needs one: drop a batch, raise \
                     device_slots, or let on_all_held wait for another thread to drop one (a batch that was leaked never \
                     comes back)",
                    loader.device_slots
                );
                return Err(Error::new(ErrorKind::Exhausted, text));
            }
        }
        self.check_timeout(start, None)
    }

    /// Slots are lost when the device fails; without any nothing would ever be delivered.
    fn check_slots(&self) -> Result<()> {
        let (loader, life) = (self.loader, &self.loader.shared.life);
        let lost = (life.lost_on_host.load(Ordering::Acquire), life.lost.load(Ordering::Acquire));
        if lost.0 < loader.host_slots && lost.1 < loader.device_slots {
            return Ok(());
        }
        let text = format!(
            "{} of {} host slots and {} of {} device slots are lost, since the device failed: no batch can be delivered \
             any more",
            lost.0, loader.host_slots, lost.1, loader.device_slots
        );
        Err(Error::new(ErrorKind::Device, text))
    }

    /// `last` is the sample that was just decoded in the caller's thread.
    fn check_timeout(&self, start: Instant, last: Option<&Place>) -> Result<()> {
        let Some(timeout) = self.loader.timeout.filter(|t| start.elapsed() >= *t) else { return Ok(()) };
        let what = format!("no batch within {:.3} s", timeout.as_secs_f64());
        let shared = &self.loader.shared;
        let (held, slots) = self.held();
        let (text, place) = if let Some((place, age)) = shared.oldest_unfinished() {
            (format!("the oldest unfinished sample has taken {:.3} s so far", age.as_secs_f64()), place)
        } else if let Some((place, attempt, left)) = shared.oldest_retry() {
            (format!("a sample waits {:.3} s more for attempt {}", left.as_secs_f64(), attempt + 1), place)
        } else if let Some(place) = last {
            ("this sample took the time".to_string(), shared.described(place.clone()))
        } else {
            let stage = self.blame();
            let text = match stage {
                Some(Stage::Sample) => {
                    "the sampler or the source's iterator has not given the next record".to_string()
                }
                Some(Stage::DeviceSlot) => {
                    format!(
                        "all {slots} device slots are held by {held} live batches, and the next batch needs one"
                    )
                }
                Some(Stage::Copy) => {
                    "the device's link, or the work on its stream before a copy, is not done".to_string()
                }
                Some(Stage::Consumer) => "the work on the next device slot is not done".to_string(),
                _ => "no worker is at a sample: the workers may belong to a runtime and be busy elsewhere"
                    .to_string(),
            };
            (text, Place { stage, ..Place::default() })
        };
        Err(Error::new(ErrorKind::Timeout, format!("{what}: {text}")).at(place))
    }

    /// The stage that a wait which begins now is for, where it is not the workers.
    fn blame(&self) -> Option<Stage> {
        let shared = &self.loader.shared;
        let (held, slots) = self.held();
        if shared.copier_at_gate.load(Ordering::Relaxed) {
            return Some(Stage::Consumer);
        }
        // With a slot that is not held the copier has only not come round to it yet.
        if held >= slots && shared.life.hunger.is_starving(shared.control.version()) {
            return Some(Stage::DeviceSlot);
        }
        // The feeder is batches ahead: while workers fill one, what it waits for holds nobody up.
        if shared.statuses.iter().any(Status::is_at_work) { None } else { shared.feeder_waits_for() }
    }

    fn blame_workers(&self) -> Stage {
        self.loader.shared.metrics.dearer_of_read_and_decode()
    }
}

fn count(faults: &[crate::pool::Fault]) -> (u64, u64) {
    use crate::pool::Outcome;
    let n = |outcome| faults.iter().filter(|f| f.outcome == outcome).count() as u64;
    (n(Outcome::Retried), n(Outcome::Replaced))
}

fn gone() -> Error {
    Error::new(ErrorKind::Closed, "the copier's thread has ended: this loader delivers nothing any more")
}

impl Iterator for Epoch<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let before = std::mem::replace(&mut self.now, Instant::now());
        if std::mem::take(&mut self.given) {
            self.loader.shared.metrics.spend(Stage::Consumer, self.now - before);
        }
        let life = &self.loader.shared.life;
        if let Err(error) = life.check_process() {
            // Before any lock: a thread of the parent may hold it for ever.
            self.over = true;
            return Some(Err(error));
        }
        life.unpark();
        match life.take_error().map_or_else(|| self.advance(), Err) {
            Ok(Some(batch)) => {
                self.given = true;
                Some(Ok(batch))
            }
            Ok(None) => {
                self.over = true;
                self.leave();
                None
            }
            Err(error) if error.kind().is_transient() => Some(Err(error)),
            Err(error) => {
                self.over = true;
                lock(&self.loader.progress).failed = true;
                Some(Err(error))
            }
        }
    }
}

impl Epoch<'_> {
    /// The epoch is over for the consumer: it goes on at the start of the next one.
    fn leave(&self) {
        let mut progress = lock(&self.loader.progress);
        let next = Start { epoch: self.number + 1, ..Start::default() };
        // Position 0 is within every epoch.
        if progress.begin(&self.loader.shared, next).is_ok() {
            drop(progress);
            self.loader.shared.control.leave_for(next.epoch);
        }
    }
}

impl Drop for Epoch<'_> {
    fn drop(&mut self) {
        if self.loader.shared.life.process.is_forked() {
            return;
        }
        if !self.over && !self.loader.shared.is_read_once() {
            self.leave();
        }
        self.loader.busy.store(false, Ordering::Release);
    }
}
