//! A stream's task, driven by hand.
#![allow(clippy::unwrap_used, reason = "a test stops at any error")]

use super::*;
use crate::tests::{Store, door, new_store, run};
use ramekin_versions::{Command, Event};

fn task(store: &Store) -> Task {
    task_of(&door(store))
}

fn task_of(door: &Door) -> Task {
    Task {
        credentials: Credentials::from(&Request::new(())),
        watchers: Watchers::default(),
        delivery: Delivery::default(),
        out: VecDeque::new(),
        revisions: REVISIONS,
        short: None,
        owes_progress: false,
        _open: Open::new(door, |done| &done.streams),
        door: door.clone(),
    }
}

/// Puts so many keys, and deletes them in one revision: that one.
fn delete_many(store: &Store, keys: usize) -> i64 {
    let names: Vec<String> = (0..keys).map(|number| format!("p/{number:06}")).collect();
    for names in names.chunks(500) {
        store.put_all(&names.iter().map(|name| (name.as_str(), "")).collect::<Vec<_>>());
    }
    let all = KeyRange { key: b"p/".to_vec(), end: b"p0".to_vec() };
    let (deleted, revision) = store.versions.delete_many(&all).unwrap();
    assert_eq!(deleted, keys as i64);
    revision
}

impl Task {
    /// A watcher of a prefix, or of a key alone.
    fn watch(&mut self, key: &str, end: &str, start: i64, fragment: bool) {
        let (key, range_end) = (key.into(), end.into());
        let create = pb::WatchCreateRequest { key, range_end, start_revision: start, fragment, ..Default::default() };
        self.create(create, start - 1);
        assert!(!self.out.pop_back().unwrap().canceled);
    }

    /// All responses that can be sent now.
    fn sent(&mut self) -> Vec<(pb::WatchResponse, u64)> {
        let mut sent = Vec::new();
        while !self.is_idle() {
            match self.next_sent() {
                Next::Sent((response, memory)) => sent.push((response.unwrap(), memory.map_or(0, |held| held.bytes()))),
                Next::Wait => break,
                Next::Refused(id, revision) => self.refuse(id, (revision, revision)),
            }
        }
        sent
    }
}

#[test]
fn a_large_revision_is_booked_as_it_is_and_goes_out_in_fragments_where_asked() {
    run(async {
        let store = new_store();
        let revision = delete_many(&store, 5000);
        let mut task = task(&store);
        task.watch("p/", "p0", revision, true);
        task.watch("p/", "p0", revision, false);
        let before = store.account.used();
        task.read(revision).await;
        let held = store.account.used() - before;
        assert!(held >= 5000 * (size_of::<Event>() as u64 * 2 + 8), "{held} are booked");
        let sent = task.sent();
        let (pieces, whole): (Vec<_>, Vec<_>) = sent.iter().partition(|(response, _)| response.watch_id == 0);
        assert!(pieces.len() > 2 && whole.len() == 1 && whole[0].0.events.len() == 5000);
        assert!(pieces.iter().all(|(response, bytes)| *bytes <= 2 << 20 && response.events.len() < 5000));
        let (last, others) = pieces.split_last().unwrap();
        assert!(!last.0.fragment && others.iter().all(|(response, _)| response.fragment));
        // What is of one watcher comes together.
        assert!(sent.iter().position(|(response, _)| !response.fragment).unwrap() == pieces.len() - 1);
        let events = pieces.iter().flat_map(|(response, _)| &response.events);
        assert!(events.eq(&whole[0].0.events));
    });
}

#[test]
fn a_watcher_whose_response_finds_no_memory_is_ended_and_others_go_on() {
    run(async {
        let store = new_store();
        let revision = delete_many(&store, 2000);
        let mut task = task(&store);
        task.watch("p/", "p0", revision, false);
        task.watch("p/000007", "", revision, false);
        task.read(revision).await;
        let bodies = &task.door.inner.bodies;
        bodies.set_limit(bodies.used() + (256 << 10));
        let first = task.sent();
        assert_eq!(
            first.iter().map(|(response, _)| (response.watch_id, response.events.len())).collect::<Vec<_>>(),
            [(1, 1)]
        );
        assert!(matches!(task.next_sent(), Next::Wait), "it waits");
        task.delivery.age();
        let last = task.sent();
        let [(ended, _)] = &last[..] else { panic!("{last:?}") };
        assert!(ended.canceled && ended.watch_id == 0 && ended.compact_revision == revision + 1);
        assert!(ended.cancel_reason.contains("no memory for the events"), "{}", ended.cancel_reason);
        assert!(task.is_idle() && task.watchers.all.len() == 1);
    });
}

#[test]
fn a_revision_that_cannot_be_read_for_want_of_memory_ends_who_wants_most_of_it() {
    run(async {
        let store = new_store();
        let revision = delete_many(&store, 2000);
        store.put("q", "");
        let mut task = task(&store);
        task.watch("p/", "p0", revision, false);
        task.watch("q", "", revision, false);
        store.account.set_limit(store.account.used() + (256 << 10));
        while task.revisions > 1 {
            task.read(revision + 1).await;
        }
        task.read(revision + 1).await;
        assert!(task.is_idle() && task.watchers.all.len() == 2 && task.short.is_some());
        task.short.as_mut().unwrap().since -= PATIENCE;
        task.read(revision + 1).await;
        let ended = task.sent();
        assert!(ended.len() == 1 && ended[0].0.canceled && ended[0].0.watch_id == 0, "{ended:?}");
        while task.watchers.all.values().any(|watcher| watcher.next <= revision + 1) {
            task.read(revision + 1).await;
        }
        let sent = task.sent();
        assert!(sent.len() == 1 && sent[0].0.watch_id == 1 && sent[0].0.events.len() == 1, "{sent:?}");
    });
}

#[test]
fn watchers_of_compacted_revisions_are_ended_some_at_a_time() {
    run(async {
        let store = new_store();
        (0..10).for_each(|_| store.put("a", ""));
        let mut task = task(&store);
        (0..300).for_each(|_| task.watch("a", "", 2, false));
        store.execute(Command::Compact(8));
        let mut ended = 0;
        while !task.watchers.all.is_empty() {
            task.read(11).await;
            assert!(task.out.len() <= WAITING);
            ended += task.sent().iter().filter(|(response, _)| response.compact_revision == 8).count();
        }
        assert_eq!(ended, 300);
    });
}

#[test]
fn ranges_that_touch_are_one() {
    let range = |from: &str, end: &str| (from.as_bytes().to_vec(), end.as_bytes().to_vec());
    let all = [
        range("a", ""),
        range("b", "d"),
        range("c", ""),
        range("c", "f"),
        range("f", ""),
        range("x", "\0"),
        range("y", "z"),
    ];
    let wanted = Wanted::new(all.iter().cloned());
    assert_eq!(wanted.0, [range("a", ""), range("b", "f"), range("f", ""), range("x", "\0")]);
    for key in ["", "a", "aa", "b", "c", "d", "e", "f", "fa", "w", "x", "zz"] {
        let is_in = all.iter().any(|(from, end)| contains(from, end, key.as_bytes()));
        assert_eq!(wanted.contains(key.as_bytes()), is_in, "{key}");
    }
}

#[test]
fn streams_share_what_they_read_and_see_what_they_would_have_read() {
    run(async {
        let store = new_store();
        let own = task(&store);
        let mut tasks: Vec<Task> = (0..6).map(|_| task_of(&own.door)).collect();
        for (number, task) in tasks.iter_mut().enumerate() {
            let (key, end) = [("a", "z"), ("b", ""), ("a", "c")][number % 3];
            task.watch(key, end, 2, number == 4);
            task.watchers.all.values_mut().for_each(|watcher| watcher.prev_kv = number == 5);
        }
        if let Some(watcher) = tasks[5].watchers.all.values().next() {
            assert!(watcher.prev_kv && watcher.is_under_way);
            own.door.inner.recent.want_prev();
        }
        let mut got = vec![Vec::new(); tasks.len()];
        let keys = ["a", "b", "c", "b", "d", "a", "b", "y", "zz", "b"];
        for (round, pair) in keys.chunks(2).enumerate() {
            pair.iter().for_each(|key| store.put(key, &round.to_string()));
            store.delete(pair[0]);
            let newest = store.versions.revision().unwrap();
            for (place, task) in tasks.iter_mut().enumerate() {
                // Some fall behind, and come from within what is held.
                if (round + place) % 3 == 0 && round != 4 {
                    continue;
                }
                while task.is_behind(newest) {
                    task.read(newest).await;
                    got[place].extend(task.sent().into_iter().flat_map(|(response, _)| response.events));
                }
            }
        }
        assert!(own.door.inner.recent.is_held(), "what was read is kept for others");
        for (place, task) in tasks.iter().enumerate() {
            let watcher = task.watchers.all.values().next().unwrap();
            let read = store.versions.events(2, (1000, 1 << 20), true, &mut |key| watcher.keys.contains(key)).unwrap();
            let prev = |prev: Option<_>| prev.filter(|_| watcher.prev_kv);
            let wanted = read.value.events.into_iter().map(|event| Event { prev: prev(event.prev), ..event });
            assert_eq!(got[place], wanted.map(crate::convert::event).collect::<Vec<_>>(), "stream {place}");
        }
        drop(tasks);
        assert!(!own.door.inner.recent.is_held(), "few streams keep nothing");
    });
}

#[test]
fn a_revision_of_many_keys_is_not_shared() {
    run(async {
        let store = new_store();
        let mut tasks = vec![task(&store)];
        (0..5).for_each(|_| tasks.push(task_of(&tasks[0].door)));
        let revision = delete_many(&store, 3000);
        tasks.iter_mut().for_each(|task| task.watch("p/000003", "", revision, false));
        for task in &mut tasks {
            task.watchers.all.values_mut().for_each(|watcher| watcher.is_under_way = true);
            task.read(revision).await;
            assert!(task.sent().iter().map(|(response, _)| response.events.len()).eq([1]));
            assert!(!task.door.inner.recent.is_held());
        }
    });
}
