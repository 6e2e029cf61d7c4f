//! What must stay possible: the state inside the loop, a batch on another thread and past its loader, a loader shared
//! between threads, an epoch that moves.
use warpfeed::{Batch, Device, Epoch, Field, Loader, State, Stream, source};

fn send<T: Send>(_: &T) {}
fn sync<T: Sync>(_: &T) {}
fn is_static<T: 'static>(_: &T) {}

fn main() -> warpfeed::Result<()> {
    let device = Device::cpu();
    let stream = device.new_stream()?;
    let loader = Loader::builder(source::from_fn(4, Ok))
        .decode_with([Field::scalar::<u64>("x"), Field::host("key")], |s, row| {
            row.text("key")?.push('k');
            Ok(row.set("x", s.index())?)
        })
        .workers(1)
        .build(&device)?;
    send(&loader);
    sync(&loader);
    let mut saved: Option<State> = None;
    let mut last: Option<Batch> = None;
    for batch in loader.epoch(&stream)? {
        let batch = batch?;
        send(&batch);
        sync(&batch);
        is_static(&batch);
        saved = Some(loader.state());
        println!("{} {}", loader.stats(), batch.view::<u64>("x")?.elements());
        let copy = batch.host::<u64>("x")?.into_owned();
        batch.enqueue(&stream, move |b| assert_eq!(b.get::<u64>("x").unwrap(), copy))?;
        last = Some(batch);
    }
    assert_eq!(saved, Some(loader.state()));
    std::thread::scope(|scope| {
        scope.spawn(|| println!("{:?} {}", loader.state(), loader.stats()));
        let epoch: Epoch<'_> = loader.epoch(&stream).unwrap();
        scope.spawn(move || epoch.count());
    });
    loader.close()?;
    std::thread::spawn(move || -> warpfeed::Result<()> {
        let batch = last.unwrap();
        assert_eq!(*batch.host::<u64>("x")?, [3]);
        Ok(())
    })
    .join()
    .unwrap()
}

#[allow(dead_code)]
fn views_are_copied_and_shared<'b>(batch: &'b Batch, stream: &Stream) -> warpfeed::Result<warpfeed::View<'b, f32>> {
    let view = batch.view::<f32>("x")?;
    let (a, b) = (view, view);
    batch.record_stream(stream)?;
    assert_eq!(a.shape(), b.shape());
    Ok(view)
}
