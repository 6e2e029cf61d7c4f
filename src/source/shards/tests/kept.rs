//! Indices that are kept between runs.

use super::*;

fn open(folder: &Folder) -> Result<Shards> {
    Shards::options().cache_index_beside().open(folder.path("{a,b}.tar"))
}

fn put(folder: &Folder) {
    folder.put("a.tar", &shard(0, 30));
    folder.put("b.tar", &shard(30, 10));
}

#[test]
fn an_index_is_kept_only_when_asked_and_says_the_same() {
    let folder = Folder::new();
    put(&folder);
    let plain = Shards::open(folder.path("{a,b}.tar")).unwrap();
    drop(ShardStream::open(folder.path("{a,b}.tar")).unwrap());
    assert_eq!(folder.names(), ["a.tar", "b.tar"]);
    let made = open(&folder).unwrap();
    let all = ["a.tar", "a.tar.warpfeed-index", "b.tar", "b.tar.warpfeed-index"];
    assert_eq!(folder.names(), all);
    let kept = open(&folder).unwrap();
    for shards in [&made, &kept] {
        assert_eq!(shards.indices_are(), plain.indices_are());
        assert_eq!((shards.report(), shards.fingerprint()), (plain.report(), plain.fingerprint()));
        assert_eq!(kinds(by_index(shards)), bundles(0, 40).into_iter().map(Ok).collect::<Vec<_>>());
    }
    assert_eq!(kept.index_memory(), plain.index_memory());
    let elsewhere = Folder::new();
    let options = || Shards::options().cache_index_in(elsewhere.path("deep/er"));
    options().open(folder.path("{a,b}.tar")).unwrap();
    options().open(folder.path("{a,b}.tar")).unwrap();
    assert_eq!(fs::read_dir(elsewhere.path("deep/er")).unwrap().count(), 2);
    assert_eq!(folder.names(), all);
    let e = Shards::options().cache_index_beside().stream(folder.path("a.tar")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidConfig);
}

#[test]
fn an_index_is_what_is_used() {
    let folder = Folder::new();
    put(&folder);
    open(&folder).unwrap();
    // The same size and time, other bytes: only who reads the headers again notices.
    let (path, time) =
        (folder.path("a.tar"), fs::metadata(folder.path("a.tar")).unwrap().modified().unwrap());
    let len = fs::metadata(&path).unwrap().len();
    fs::write(&path, vec![1; len as usize]).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    assert_eq!(open(&folder).unwrap().len(), Some(40));
    assert_eq!(Shards::open(&path).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn one_that_is_stale_or_damaged_is_made_anew() {
    let folder = Folder::new();
    put(&folder);
    open(&folder).unwrap();
    let kept = folder.path("a.tar.warpfeed-index");
    let good = fs::read(&kept).unwrap();
    let holds = |n: u64| {
        let shards = open(&folder).unwrap();
        assert_eq!(shards.len(), Some(n));
        let all: Vec<Bundle> = by_index(&shards).into_iter().map(Result::unwrap).collect();
        assert_eq!(all[..30], bundles(0, 30));
    };
    for len in [0, 7, 12, 20, good.len() / 2, good.len() - 1] {
        fs::write(&kept, &good[..len]).unwrap();
        holds(40);
        assert_eq!(fs::read(&kept).unwrap(), good, "cut at {len}");
    }
    for at in (0..64).chain((64..good.len()).step_by(31)) {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        fs::write(&kept, &bytes).unwrap();
        assert_eq!(open(&folder).unwrap().len(), Some(40), "byte {at}");
        assert_eq!(fs::read(&kept).unwrap(), good, "byte {at}");
    }
    // Another rule, another size, another time.
    Shards::options().last_dot().cache_index_beside().open(folder.path("a.tar")).unwrap();
    assert_ne!(fs::read(&kept).unwrap(), good);
    holds(40);
    folder.put("b.tar", &shard(30, 12));
    holds(42);
    let file = fs::File::options().write(true).open(folder.path("a.tar")).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    holds(42);
    assert_ne!(fs::read(&kept).unwrap(), good);
}

#[test]
fn one_whose_sums_hold_and_whose_numbers_do_not_is_refused() {
    let folder = Folder::new();
    folder.put("a.tar", &shard(0, 2));
    let path = folder.path("a.tar");
    let open = || Shards::options().cache_index_beside().open(&path).unwrap();
    let good = open().index_memory();
    let kept = folder.path("a.tar.warpfeed-index");
    let bytes = fs::read(&kept).unwrap();
    let body = bytes.len() - 8;
    // Every four bytes of it made huge, the checksum right. Counts of the report aside none may be believed.
    for at in (28..body - 4).step_by(4) {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&[0xff, 0xff, 0xff, 0x0f]);
        let sum = crate::random::key_of_bytes(&bytes[..body]);
        bytes[body..].copy_from_slice(&sum.to_le_bytes());
        fs::write(&kept, &bytes).unwrap();
        let shards = open();
        assert_eq!(shards.index_memory().1, good.1, "byte {at}");
        assert!(by_index(&shards).iter().all(Result::is_ok), "byte {at}");
    }
}

#[test]
fn one_whose_members_lie_backwards_is_made_anew() {
    let folder = Folder::new();
    folder.put("a.tar", &shard(0, 2));
    let path = folder.path("a.tar");
    let open = || Shards::options().cache_index_beside().open(&path).unwrap();
    drop(open());
    let kept = folder.path("a.tar.warpfeed-index");
    let good = fs::read(&kept).unwrap();
    let body = good.len() - 8;
    // The last two members, 12 bytes each, in each other's place.
    let mut bytes = good.clone();
    bytes[body - 24..body].rotate_left(12);
    let sum = crate::random::key_of_bytes(&bytes[..body]);
    bytes[body..].copy_from_slice(&sum.to_le_bytes());
    fs::write(&kept, &bytes).unwrap();
    let shards = open();
    shards.hint(&[0, 1]);
    assert!(fs::read(&kept).unwrap() == good && by_index(&shards).iter().all(Result::is_ok));
}

#[test]
fn where_none_can_be_written_the_shards_open_all_the_same() {
    let folder = Folder::new();
    folder.put("a.tar", &shard(0, 2));
    folder.put("file", b"");
    let options = Shards::options().cache_index_in(folder.path("file/below"));
    assert_eq!(options.open(folder.path("a.tar")).unwrap().len(), Some(2));
    assert_eq!(folder.names(), ["a.tar", "file"]);
}

#[test]
fn a_pipe_in_the_place_of_an_index_is_not_waited_for() {
    within(60, || {
        let folder = Folder::new();
        put(&folder);
        let pipe = folder.path("a.tar.warpfeed-index");
        assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
        assert_eq!(open(&folder).unwrap().len(), Some(40));
    });
}
