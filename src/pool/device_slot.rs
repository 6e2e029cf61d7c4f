//! The device side of a batch.

use std::sync::{Arc, Mutex};

use super::{FreeSlot, Manifest, Reservation};
use crate::device::{Device, DeviceBuffer, Event, Stream, reaper};
use crate::error::{Error, ErrorKind, Result};
use crate::spec::BatchSpec;
use crate::sync::lock;

/// A device buffer for one batch. Free, it carries the gate that must have passed before it is written again;
/// loaded, it carries the batch's manifest. Dropped, it frees its memory behind its gate.
#[derive(Debug)]
pub(crate) struct DeviceSlot(Option<Box<Memory>>);

#[derive(Debug)]
struct Memory {
    number: usize,
    device: Device,
    buffer: DeviceBuffer,
    manifest: Manifest,
    /// `copied` of the batch in it: set by the upload, cleared when a gate has taken it in.
    copied: Option<Arc<Event>>,
    users: Mutex<Users>,
    _budget: Reservation,
}

/// The streams that a batch is used on, and the event that will be recorded on each: the k-th event is the
/// k-th stream's, whichever that is.
#[derive(Debug, Default)]
struct Users {
    streams: Vec<Stream>,
    consumed: Vec<Event>,
    /// How many of the `consumed` events belong to the gate.
    gated: usize,
    /// An event could not be recorded: nothing can prove that the memory is free.
    lost: Option<ErrorKind>,
}

impl DeviceSlot {
    /// # Errors
    /// [`ErrorKind::Device`] where the device has no memory or no event.
    pub(crate) fn new(number: usize, device: &Device, spec: &BatchSpec, budget: Reservation) -> Result<Self> {
        let users = Users {
            streams: Vec::with_capacity(2),
            consumed: vec![device.new_untimed_event()?, device.new_untimed_event()?],
            ..Users::default()
        };
        Ok(Self(Some(Box::new(Memory {
            number,
            device: device.clone(),
            buffer: device.device_buffer(spec.bytes())?,
            manifest: Manifest::new(spec),
            copied: None,
            users: Mutex::new(users),
            _budget: budget,
        }))))
    }

    fn memory(&self) -> &Memory {
        self.0.as_ref().unwrap_or_else(|| unreachable!("the memory is taken in drop only"))
    }

    fn memory_mut(&mut self) -> &mut Memory {
        self.0.as_mut().unwrap_or_else(|| unreachable!("the memory is taken in drop only"))
    }

    /// Measures the link by copies out of `host`, which nothing is in yet.
    ///
    /// # Errors
    /// That of the device. Where the copies can't be seen to end, the memory of both is leaked.
    pub(crate) fn measure_link(&mut self, host: FreeSlot, stream: &Stream) -> Result<FreeSlot> {
        let Some(from) = host.buffer() else { return Ok(host) };
        let Err(error) = stream.measure_link(from, self.buffer()) else { return Ok(host) };
        if let Err(again) = stream.synchronize() {
            self.lose(again.kind());
            host.lose(again.kind());
        }
        Err(error)
    }

    pub(crate) fn number(&self) -> usize {
        self.memory().number
    }

    pub(crate) fn buffer(&self) -> &DeviceBuffer {
        &self.memory().buffer
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.memory().manifest
    }

    pub(crate) fn manifest_mut(&mut self) -> &mut Manifest {
        &mut self.memory_mut().manifest
    }

    /// The event behind which the batch in it is there; `None` in a free slot.
    pub(crate) fn copied(&self) -> Option<&Arc<Event>> {
        self.memory().copied.as_ref()
    }

    /// Orders `stream`, on which all copies into the buffer run, behind the gate; from then on it may write the buffer.
    pub(crate) fn wait_for_gate(&mut self, stream: &Stream) -> Result<()> {
        let memory = self.memory_mut();
        // `copied`, of a batch that was never delivered, was recorded on this very stream.
        let mut users = lock(&memory.users);
        for event in &users.consumed[..users.gated] {
            stream.follow(event)?;
        }
        users.gated = 0;
        drop(users);
        memory.copied = None;
        Ok(())
    }

    /// Whether the gate has passed, as the host sees it.
    pub(crate) fn gate_has_passed(&self) -> Result<bool> {
        self.memory().has_passed()
    }

    pub(crate) fn set_copied(&mut self, copied: Arc<Event>) {
        self.memory_mut().copied = Some(copied);
    }

    /// After an error of this kind nothing can prove any more that the device is done with it.
    pub(crate) fn lose(&mut self, kind: ErrorKind) {
        lock(&self.memory().users).lost = Some(kind);
    }

    /// Whether the batch is used on `stream` already.
    pub(crate) fn is_used_on(&self, stream: &Stream) -> bool {
        lock(&self.memory().users).streams.iter().any(|s| s.id() == stream.id())
    }

    /// Orders `stream` behind the batch and remembers that it uses it.
    pub(crate) fn use_on(&self, stream: &Stream) -> Result<()> {
        let memory = self.memory();
        let mut users = lock(&memory.users);
        if users.streams.iter().any(|s| s.id() == stream.id()) {
            return Ok(());
        }
        if stream.device() != memory.device {
            let text = "this batch lies on another device than the stream's";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if users.consumed.len() == users.streams.len() {
            let event = memory.device.new_untimed_event()?;
            users.consumed.push(event);
        }
        if let Some(copied) = &memory.copied {
            stream.follow(copied)?;
        }
        users.streams.push(stream.clone());
        Ok(())
    }

    /// Whether the caller's thread may [release](DeviceSlot::release) it: work on a stream may not where the device takes
    /// no calls from there.
    pub(crate) fn may_release_here(&self) -> bool {
        self.memory().device.takes_calls_here()
    }

    /// The batch in it is done with: records `consumed` on each stream that used it. From here on the slot is
    /// free, gated by those events. Where one can't be recorded the slot is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Capturing`]: nothing has been done, since a record now would become a part of a graph.
    pub(crate) fn release(&mut self) -> Result<()> {
        let memory = self.memory_mut();
        let result = memory.release();
        if lock(&memory.users).gated > 0 {
            // Every user's stream waits for `copied`, so `consumed` lies behind it.
            memory.copied = None;
        }
        result
    }

    pub(crate) fn is_lost(&self) -> bool {
        lock(&self.memory().users).lost.is_some()
    }
}

impl Memory {
    /// See [`DeviceSlot::release`].
    fn release(&self) -> Result<()> {
        let mut users = lock(&self.users);
        let Users { streams, consumed, gated, lost } = &mut *users;
        if streams.is_empty() {
            return Ok(());
        }
        // A stream that can't tell can't record either.
        if streams.iter().any(|s| matches!(s.is_capturing(), Ok(true))) {
            let text = format!(
                "a batch in device slot {} was dropped while a stream that it is used on was being captured: the slot \
                 counts as held until a call of `next` finds the capture ended; hold the batch until then",
                self.number
            );
            return Err(Error::new(ErrorKind::Capturing, text));
        }
        let mut result = Ok(());
        for (stream, consumed) in streams.iter().zip(consumed) {
            if let Err(e) = stream.mark(consumed) {
                *lost = Some(e.kind());
                result = Err(e);
            }
        }
        *gated = streams.len();
        streams.clear();
        result
    }

    /// Nobody will release it any more: a batch that was parked is released now, or lost.
    fn settle(&self) {
        if let Err(error) = self.release() {
            lock(&self.users).lost = Some(error.kind());
        }
    }

    fn has_passed(&self) -> Result<bool> {
        let users = lock(&self.users);
        if let Some(kind) = users.lost {
            return Err(Error::new(kind, "an event of this device slot could not be recorded"));
        }
        let mut passed = match &self.copied {
            Some(copied) => copied.query()?,
            None => true,
        };
        for event in &users.consumed[..users.gated] {
            passed &= event.query()?;
        }
        Ok(passed)
    }
}

impl reaper::Reapable for Box<Memory> {
    fn passed(&self) -> Result<bool> {
        // In work on a stream nothing can be asked: the reaper's thread does.
        if !self.device.takes_calls_here() {
            return Ok(false);
        }
        self.settle();
        Ok(self.has_passed()? && self.buffer.may_free_here())
    }

    fn bytes(&self) -> usize {
        self.buffer.len()
    }
}

impl Drop for DeviceSlot {
    fn drop(&mut self) {
        if let Some(memory) = self.0.take() {
            // In work on a stream, where the device takes no calls, the reaper does it.
            if memory.device.takes_calls_here() {
                memory.settle();
            }
            reaper::reap(Box::new(memory));
        }
    }
}

/// The `copied` events of a loader: a fixed number, each recorded again only when nobody refers to its last
/// record.
pub(crate) struct EventPool(Vec<Arc<Event>>);

impl EventPool {
    pub(crate) fn new(device: &Device, count: usize) -> Result<Self> {
        (0..count).map(|_| Ok(Arc::new(device.new_untimed_event()?))).collect::<Result<_>>().map(Self)
    }

    /// An event that no slot, batch or gate refers to.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] where all are referred to, which the pool's size rules out.
    pub(crate) fn take(&mut self) -> Result<Arc<Event>> {
        let free = self.0.iter_mut().find_map(|e| Arc::get_mut(e).is_some().then(|| e.clone()));
        free.ok_or_else(|| Error::new(ErrorKind::Device, "every `copied` event is referred to"))
    }
}
