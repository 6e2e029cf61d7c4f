//! A slot's life without a loader: what miri can run of it.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use super::*;
use crate::device::{CpuOptions, Device};
use crate::row::RowBlock;
use crate::spec::{BatchSpec, Field};

struct Slots {
    device: Device,
    spec: Arc<BatchSpec>,
    host: FreeSlot,
    on_device: DeviceSlot,
    events: EventPool,
    outlet: crossbeam_channel::Sender<Item>,
    items: Receiver<Item>,
}

fn slots(rows: usize) -> Slots {
    let device = Device::cpu_with(CpuOptions::default().lock(false));
    let fields = vec![Field::new::<u16>("x", &[3]), Field::ragged::<u8>("r", 40), Field::host("key")];
    let spec = Arc::new(BatchSpec::new(fields, rows, None).unwrap());
    let budget = Budget::new("host_budget", 1 << 20);
    let reserve = || budget.reserve(spec.bytes(), Duration::ZERO).unwrap();
    let (outlet, items) = bounded(4);
    Slots {
        host: FreeSlot::new(0, &device, &spec, None, reserve()).unwrap(),
        on_device: DeviceSlot::new(0, &device, &spec, reserve()).unwrap(),
        events: EventPool::new(&device, 2).unwrap(),
        device,
        spec,
        outlet,
        items,
    }
}

fn fill(claim: &mut Claim, round: u16) {
    let mut rows = claim.rows();
    for k in 0..rows.len() {
        let number = rows.number(k) as u16;
        rows.set_index(k, u64::from(number));
        let mut row = rows.row(k);
        row.begin();
        row.copy("x", &[round, number, 7]).unwrap();
        row.copy_ragged("r", &vec![round as u8; number as usize]).unwrap();
        row.text("key").unwrap().push_str(&format!("{round}-{number}"));
        row.finish().unwrap();
        rows.set_valid(k, true);
    }
}

fn filled(items: &Receiver<Item>) -> FilledSlot {
    match items.recv_timeout(Duration::from_secs(60)) {
        Ok(Item::Batch(slot)) => slot,
        _ => panic!("no filled slot"),
    }
}

#[test]
fn three_rounds_through_one_slot_of_each_kind_filled_by_two_threads() {
    let Slots { device, spec, mut host, mut on_device, mut events, outlet, items } = slots(5);
    let (copy, consumer) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    for round in 1..=3u16 {
        assert!(host.wait(Duration::from_secs(60)).unwrap());
        let filling = host.fill(Ticket { number: u64::from(round), ..Ticket::default() }, 5).ok().unwrap();
        std::thread::scope(|scope| {
            for mut claim in filling.split(3, outlet.clone()) {
                scope.spawn(move || fill(&mut claim, round));
            }
        });
        let (free, loaded) = upload(filled(&items), on_device, &copy, &mut events).unwrap();
        assert_eq!(loaded.manifest().ticket.number, u64::from(round));
        assert_eq!(loaded.manifest().rows.text[4], format!("{round}-4"));
        loaded.use_on(&consumer).unwrap();
        let address = loaded.buffer().as_ptr() as usize + spec.offset("x").unwrap();
        let (sum_of, sums) = std::sync::mpsc::channel();
        // The consumer's work, late: the slot is free on the host long before.
        consumer
            .enqueue(move || {
                // SAFETY: behind `copied`, and before the next copy, which waits for `consumed`.
                let x = unsafe {
                    std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u16>(address), 15)
                };
                sum_of.send(x.iter().map(|&v| u32::from(v)).sum::<u32>()).unwrap();
            })
            .unwrap();
        let mut released = loaded;
        released.release().unwrap();
        assert!(!released.is_lost());
        (host, on_device) = (free, released);
        assert_eq!(sums.recv().unwrap(), u32::from(round) * 5 + 10 + 35);
    }
}

#[test]
fn a_claim_that_is_dropped_counts_its_rows_and_one_taken_apart_counts_each_part() {
    let Slots { host, outlet, items, .. } = slots(6);
    let filling = host.fill(Ticket::default(), 6).ok().unwrap();
    let mut claims = filling.split(4, outlet);
    let mut first = claims.next().unwrap();
    let (one, rest) = first.split_off(1);
    assert_eq!((first.len(), one.len(), rest.len()), (1, 1, 2));
    drop((first, rest));
    // What is left of the claims counts too: rows 4 and 5.
    drop(claims);
    assert!(items.try_recv().is_err(), "row 1 is still out");
    drop(one);
    let slot = filled(&items);
    assert!(slot.manifest().rows.valid.iter().all(|v| !v));
}

#[test]
fn a_slot_that_is_copied_from_can_not_be_filled() {
    let Slots { device, host, on_device, mut events, outlet, items, .. } = slots(2);
    let copy = device.new_stream().unwrap();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    copy.enqueue(move || assert!(gone.recv().is_err())).unwrap();
    host.fill(Ticket::default(), 2).ok().unwrap().split(2, outlet).for_each(|mut claim| fill(&mut claim, 1));
    let (host, loaded) = upload(filled(&items), on_device, &copy, &mut events).unwrap();
    let mut host = host.fill(Ticket::default(), 2).err().expect("the copy out of it has not passed");
    assert!(!host.wait(Duration::from_millis(1)).unwrap());
    // Dropped now, the memory of both outlives its owners until the copy has passed.
    drop((host, loaded));
    drop(go);
    copy.synchronize().unwrap();
}

#[test]
fn holes_are_closed_from_the_end() {
    let Slots { host, outlet, items, spec, .. } = slots(6);
    for mut claim in host.fill(Ticket::default(), 6).ok().unwrap().split(6, outlet) {
        fill(&mut claim, 1);
        let mut rows = claim.rows();
        for hole in [1, 2, 5] {
            rows.row(hole).clear();
            rows.set_valid(hole, false);
        }
    }
    let mut slot = filled(&items);
    slot.compact();
    let manifest = slot.manifest();
    assert_eq!((manifest.len, &manifest.rows.indices[..3]), (3, &[0, 4, 3][..]));
    assert_eq!(manifest.rows.text[..3], ["1-0", "1-4", "1-3"]);
    assert_eq!(spec.ragged_and_host(), (1, 1));
}

#[test]
fn a_block_writes_all_rows_of_a_claim() {
    let Slots { host, outlet, items, .. } = slots(4);
    for mut claim in host.fill(Ticket::default(), 4).ok().unwrap().split(4, outlet) {
        let mut rows = claim.rows();
        let (_, mut block): (_, RowBlock<'_>) = rows.block();
        assert_eq!((block.rows(), block.column::<u16>("x").unwrap().len()), (4, 12));
        assert!(block.finish().is_err(), "the ragged field is not written");
        assert!(block.column::<u8>("r").is_err() && block.column::<u8>("x").is_err());
        rows.set_all_valid();
    }
    assert_eq!(filled(&items).manifest().rows.valid, [true; 4]);
}
