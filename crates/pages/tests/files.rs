//! Writing, opening, reading, checking and closing page files.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests stop at any error and damage files")]

mod common;

use common::{World, content};
use proptest::prelude::*;
use ramekin_base::Kind;
use ramekin_base::limits::PAGE;
use ramekin_pages::{PageFile, Priority, RESERVE};
use std::io::Write;
use std::os::unix::fs::FileExt;

#[test]
fn what_was_written_comes_back_in_every_way() {
    let world = World::new(64 << 20);
    let mut writer = world.writer("a");
    let long: Vec<u8> = (0..900_001u32).map(|i| (i * 7 % 251) as u8).collect();
    for (tag, bytes) in [(3, &long[..]), (1, b""), (9, b"short")] {
        writer.begin(tag, Priority::Vectors).unwrap();
        for part in bytes.chunks(10_007) {
            writer.write(part).unwrap();
        }
        assert_eq!(writer.end().unwrap(), bytes.len() as u64);
    }
    writer.finish(b"the meta bytes").unwrap();

    let file = world.open("a");
    assert_eq!(file.meta(), b"the meta bytes");
    assert_eq!(file.bytes(), std::fs::metadata(file.path()).unwrap().len());
    assert_eq!(file.sections().map(|section| section.tag()).collect::<Vec<_>>(), [3, 1, 9]);
    assert!(file.section(2).is_none());
    file.check().unwrap();

    for (tag, bytes) in [(3, &long[..]), (1, b""), (9, b"short")] {
        let section = file.section(tag).unwrap();
        assert_eq!(section.len(), bytes.len() as u64);
        let mut fetch = world.pages.fetch();
        let all = fetch.want(&section, 0, bytes.len()).unwrap();
        let end = fetch.want(&section, bytes.len() as u64, 0).unwrap();
        let middle = fetch.want(&section, bytes.len() as u64 / 3, bytes.len() / 3).unwrap();
        assert_eq!(fetch.want(&section, 1, bytes.len()).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(fetch.want(&section, u64::MAX, 2).unwrap_err().kind(), Kind::Corrupt);
        let pinned = fetch.run().unwrap();
        assert!(pinned.bytes(all) == bytes && pinned.bytes(end).is_empty());
        assert!(pinned.bytes(middle) == &bytes[bytes.len() / 3..][..bytes.len() / 3]);
        drop(pinned);

        assert!(section.resident().is_none());
        section.load().unwrap();
        assert!(*section.resident().unwrap() == *bytes);
        section.unload();
        assert!(section.resident().is_none());

        let mut stream = section.stream(&world.account, 50_000).unwrap();
        let mut seen = Vec::new();
        while let Some(piece) = stream.next().unwrap() {
            seen.extend_from_slice(piece);
        }
        assert!(seen == bytes && stream.next().unwrap().is_none());
    }
}

#[test]
fn a_stream_reads_skips_and_ends() {
    let world = World::new(64 << 20);
    let file = world.file("a", &[(40, Priority::Payload)]);
    let section = file.section(0).unwrap();
    for resident in [false, true] {
        if resident {
            section.load().unwrap();
        }
        let before = world.pages.stats();
        let mut stream = section.stream(&world.account, 5 * PAGE).unwrap();
        let mut page = vec![0; PAGE];
        stream.skip(3 * PAGE as u64 - 8).unwrap();
        stream.read_exact(&mut page[..8]).unwrap();
        assert_eq!(page[..8], content(0, 2)[PAGE - 8..]);
        for number in 3..20 {
            stream.read_exact(&mut page).unwrap();
            assert_eq!(page, content(0, number));
        }
        stream.skip(19 * PAGE as u64).unwrap();
        assert_eq!(stream.left(), PAGE as u64);
        assert_eq!(stream.read_exact(&mut [0; PAGE + 1]).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(stream.next().unwrap().unwrap(), content(0, 39));
        assert_eq!(stream.next().unwrap(), None);
        assert_eq!(world.pages.stats(), before, "a stream leaves the cache alone");
    }
}

#[test]
fn mistakes_of_the_writer_are_refused() {
    let world = World::new(64 << 20);
    let mut writer = world.writer("a");
    assert_eq!(writer.write(b"x").unwrap_err().kind(), Kind::Bug);
    assert_eq!(writer.end().unwrap_err().kind(), Kind::Bug);
    writer.begin(1, Priority::Ids).unwrap();
    assert_eq!(writer.begin(2, Priority::Ids).unwrap_err().kind(), Kind::Bug);
    writer.end().unwrap();
    assert_eq!(writer.begin(1, Priority::Ids).unwrap_err().kind(), Kind::Bug);
    assert!(world.pages.create(&world.path("a"), &world.account).is_err(), "names are never reused");
    writer.begin(2, Priority::Ids).unwrap();
    assert_eq!(writer.finish(b"").unwrap_err().kind(), Kind::Bug);
    assert!(!world.path("a").exists(), "an unfinished file is removed");

    let writer = world.writer("empty");
    writer.finish(b"").unwrap();
    let empty = world.open("empty");
    empty.check().unwrap();
    assert_eq!((empty.sections().count(), empty.bytes()), (0, PAGE as u64));
}

/// One byte after the other is flipped, in every part of the file: opening or reading says so.
#[test]
fn any_changed_byte_is_found_and_never_served() {
    let world = World::new(64 << 20);
    drop(world.file("a", &[(2, Priority::Ids), (3, Priority::Payload)]));
    let raw = std::fs::OpenOptions::new().read(true).write(true).open(world.path("a")).unwrap();
    let bytes = raw.metadata().unwrap().len();
    assert_eq!(bytes, 8 * PAGE as u64);
    // Every byte of the footer's and the directory's head, and a grid over all the rest.
    let heads = (6 * PAGE as u64..6 * PAGE as u64 + 40).chain(7 * PAGE as u64..7 * PAGE as u64 + 48);
    for at in (0..bytes).step_by(61).chain(heads).chain(bytes - 4..bytes) {
        let mut byte = [0];
        raw.read_exact_at(&mut byte, at).unwrap();
        raw.write_all_at(&[byte[0] ^ 1 << (at % 8)], at).unwrap();
        let opened = world.pages.open(&world.path("a"), &world.account);
        let error = match opened {
            Err(error) => {
                assert!(at >= 5 * PAGE as u64, "a damaged page does not keep the file from opening");
                error
            }
            Ok(file) => {
                let page = at as usize / PAGE;
                assert!(page < 5);
                let error = file.check().unwrap_err();
                assert!(error.message().contains(&format!("page {page} ")), "{error}");
                for number in 0..5 {
                    let (tag, within) = if number < 2 { (0, number) } else { (1, number - 2) };
                    let section = file.section(tag).unwrap();
                    // Twice: what was refused once is not served from memory later.
                    for _ in 0..2 {
                        let outcome = world.check(&section, within).map_err(|error| error.kind());
                        assert_eq!(outcome, if number == page { Err(Kind::Corrupt) } else { Ok(()) });
                    }
                    let mut stream = section.stream(&world.account, PAGE).unwrap();
                    stream.skip((within * PAGE) as u64).unwrap();
                    assert_eq!(stream.next().is_err(), number == page);
                }
                let bad = file.section(u32::from(page >= 2)).unwrap();
                assert_eq!(bad.load().unwrap_err().kind(), Kind::Corrupt);
                assert!(bad.resident().is_none());
                assert_eq!(world.pages.stats().resident_bytes, 0);
                error
            }
        };
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.message().contains(world.path("a").to_str().unwrap()), "{error}");
        raw.write_all_at(&byte, at).unwrap();
    }
    world.open("a").check().unwrap();
}

#[test]
fn cut_lengthened_and_foreign_files_are_refused() {
    let world = World::new(64 << 20);
    drop(world.file("a", &[(2, Priority::Ids)]));
    let whole = std::fs::read(world.path("a")).unwrap();
    let mut others: Vec<Vec<u8>> = (0..whole.len()).step_by(PAGE / 2).map(|len| whole[..len].to_vec()).collect();
    others.push([&whole[..], &[0; PAGE]].concat());
    others.push([&whole[..], b"x"].concat());
    others.push(vec![b'x'; PAGE]);
    for (number, bytes) in others.iter().enumerate() {
        let path = world.path(&format!("other{number}"));
        std::fs::OpenOptions::new().create_new(true).write(true).open(&path).unwrap().write_all(bytes).unwrap();
        let error = world.pages.open(&path, &world.account).err().unwrap();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    }
    assert_eq!(world.pages.open(&world.path("none"), &world.account).err().unwrap().kind(), Kind::NotFound);
}

#[test]
fn memory_and_addresses_come_back() {
    let world = World::new(64 << 20);
    assert_eq!(world.cache_account.used(), RESERVE);
    for round in 0..5 {
        let name = format!("f{round}");
        // A third of all addresses: they would run out in the fourth round.
        let file = world.file(&name, &[(2000, Priority::Ids), (500, Priority::Vectors)]);
        assert!(world.account.used() >= PageFile::open_cost(2500 * PAGE as u64, 2, 4));
        let (ids, vectors) = (file.section(0).unwrap(), file.section(1).unwrap());
        for page in 0..500 {
            world.check(&vectors, page).unwrap();
        }
        ids.load().unwrap();
        let stats = world.pages.stats();
        assert_eq!((stats.cached_bytes, stats.resident_bytes), (500 * PAGE as u64, 2000 * PAGE as u64));
        // The reserve's pages are among them, its bypass buffers are not.
        assert_eq!(world.cache_account.used(), RESERVE + (2500 - 256) * ramekin_pages::PAGE_COST);
        file.remove_on_drop();
        drop((file, ids));
        assert!(world.path(&name).exists(), "a section keeps its file");
        drop(vectors);
        assert!(!world.path(&name).exists());
        assert_eq!((world.cache_account.used(), world.account.used()), (RESERVE, 0));
    }
    let World { pages, cache_account, .. } = world;
    drop(pages);
    assert_eq!(cache_account.used(), 0);
}

#[test]
fn too_many_open_files_say_so() {
    let world = World::new(64 << 20);
    let path = world.path("a");
    drop(world.file("a", &[(5000, Priority::Ids)]));
    let mut open = Vec::new();
    let error = loop {
        match world.pages.open(&path, &world.account) {
            Ok(file) => open.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), open.len()), (Kind::Busy, (1 << 18) / 5000));
    open.remove(7);
    open.push(world.pages.open(&path, &world.account).unwrap());
    open.clear();
    assert_eq!(world.account.used(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any sections, written in any pieces, come back whole through fetches of any shape.
    #[test]
    fn sections_come_back(
        sections in proptest::collection::vec((any::<u32>(), 0..7u8, 0..70_000usize, 1..9_000usize), 0..12),
        meta in proptest::collection::vec(any::<u8>(), 0..6_000),
        wants in proptest::collection::vec((any::<u32>(), any::<u32>(), 0..40_000usize), 0..30),
    ) {
        let world = World::new(8 << 20);
        let mut writer = world.writer("a");
        let mut tags = std::collections::BTreeMap::new();
        for (tag, priority, len, piece) in sections {
            if tags.contains_key(&tag) {
                continue;
            }
            let bytes: Vec<u8> = (0..len).map(|at| (at as u32).wrapping_mul(tag | 1).to_le_bytes()[2]).collect();
            writer.begin(tag, Priority::from_u8(priority).unwrap()).unwrap();
            bytes.chunks(piece).for_each(|part| writer.write(part).unwrap());
            writer.end().unwrap();
            tags.insert(tag, (priority, bytes));
        }
        writer.finish(&meta).unwrap();
        let file = world.open("a");
        prop_assert_eq!(file.meta(), &meta[..]);
        file.check().unwrap();
        let sections: Vec<_> = file.sections().collect();
        prop_assert_eq!(sections.len(), tags.len());
        let mut fetch = world.pages.fetch();
        let mut asked = Vec::new();
        for (which, at, len) in wants {
            let Some(section) = sections.get(which as usize % sections.len().max(1)) else { break };
            let (priority, bytes) = &tags[&section.tag()];
            prop_assert_eq!(section.priority() as u8, *priority);
            let at = at as usize % (bytes.len() + 1);
            let len = len.min(bytes.len() - at);
            asked.push((fetch.want(section, at as u64, len).unwrap(), &bytes[at..at + len]));
        }
        let pinned = fetch.run().unwrap();
        for (want, bytes) in asked {
            prop_assert!(pinned.bytes(want) == bytes);
        }
    }
}

/// Two pages of a file change places, a page of another file stands in it, or a whole file stands under another's name.
#[test]
fn a_page_of_another_place_or_file_is_refused() {
    let world = World::new(64 << 20);
    let paths = ["a", "b"].map(|name| world.file(name, &[(8, Priority::Payload)]).path().to_owned());
    let [a, b] = paths.each_ref().map(|path| std::fs::read(path).unwrap());
    let page = |number: usize| number * PAGE..(number + 1) * PAGE;
    let refused = |bytes: &[u8], number: usize| {
        std::fs::write(&paths[0], bytes).unwrap();
        let file = world.open("a");
        let section = file.section(0).unwrap();
        let mut fetch = world.pages.fetch();
        fetch.want(&section, (number * PAGE) as u64, PAGE).unwrap();
        let error = fetch.run().err().unwrap();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        assert!(error.message().contains(&format!("page {number} ")), "{error}");
        assert_eq!(file.check().unwrap_err().kind(), Kind::Corrupt);
    };
    let mut moved = a.clone();
    moved.copy_within(page(2), page(5).start);
    // The table says what page 2 holds: it is right there, but not for place 5.
    let table = 8 * PAGE;
    moved.copy_within(table + 8..table + 12, table + 20);
    let end = moved.len() - PAGE;
    let crc = crc32c::crc32c(&moved[page(8)]);
    moved[end + 32..end + 36].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&moved[end..end + PAGE - 4]);
    moved[end + PAGE - 4..].copy_from_slice(&crc.to_le_bytes());
    refused(&moved, 5);
    // The two files hold the same bytes, and other checksums.
    assert_eq!(a[..table], b[..table]);
    assert_ne!(a[page(8)], b[page(8)]);
    std::fs::write(&paths[0], &b).unwrap();
    let error = world.pages.open(&paths[0], &world.account).err().unwrap();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.message().contains("another file"), "{error}");
}

#[test]
fn a_file_whose_last_reader_leaves_goes_when_somebody_sees_to_it() {
    let world = World::new(16 << 20);
    let file = world.file("now", &[(3, Priority::Payload)]);
    file.remove_on_drop();
    drop(file);
    assert!(!world.path("now").exists());
    world.pages.defer_removals();
    let file = world.file("later", &[(3, Priority::Payload)]);
    file.remove_on_drop();
    drop(file);
    assert!(world.path("later").exists(), "who drops it may be a query, and does not wait for the disk");
    world.pages.remove_dropped();
    assert!(!world.path("later").exists());
}
