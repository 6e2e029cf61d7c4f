//! The fields of a row are written one after the other: two exclusive borrows of it can't overlap.
use warpfeed::Row;

fn main() {}

fn both(row: &mut Row<'_>) -> warpfeed::Result<()> {
    let a = row.slice::<u8>("x")?;
    let b = row.overwrite("x")?;
    a.copy_from_slice(b);
    Ok(())
}
