//! A row is lent to the decoder for one sample: neither it nor its bytes can be kept and written after the submit.
use std::sync::Mutex;
use warpfeed::{Field, Loader, Row, source};

static BYTES: Mutex<Vec<&'static mut [u8]>> = Mutex::new(Vec::new());

fn main() {}

fn keep(_: &'static mut Row<'static>) {}

fn fixed() {
    let _ = Loader::builder(source::from_fn(4, Ok)).decode_with([Field::new::<u8>("x", &[9])], |s, row| {
        BYTES.lock().unwrap().push(row.slice::<u8>("x")?);
        Ok(drop(s.read()?))
    });
}

fn ragged() {
    let _ = Loader::builder(source::from_fn(4, Ok)).decode_with([Field::ragged::<u8>("x", 9)], |s, row| {
        BYTES.lock().unwrap().push(row.ragged::<u8>("x", 3)?);
        Ok(drop(s.read()?))
    });
}

fn whole() {
    let _ = Loader::builder(source::from_fn(4, Ok)).decode_with([Field::new::<u8>("x", &[9])], |s, row| {
        keep(row);
        Ok(drop(s.read()?))
    });
}
