//! Histories of a store that is killed and started again while clients use it: each must be one that a store which does one command
//! after the other could have answered (linearizability; J. Wing, C. Gong, Testing and Verifying Concurrent Objects, 1993).
//!
//! ```text
//!   this process: clients ──socket──► the same program again, as a server ◄── kill -9, started again
//!        └─ what was asked when, what was answered when; a command that was under way when it was killed: done, or never
//! ```
//!
//! `LINEAR_HISTORIES=1000` draws so many.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

mod toy;

use ramekin_base::{Rng, SystemClock};
use ramekin_disk::{Engine as DiskEngine, Local};
use ramekin_engine::{Call, Durability};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use toy::{Command, Reply, Setup};

const HISTORIES: u64 = 12;
const CLIENTS: u64 = 4;
/// Commands of a client in one life of the server, and lives.
const COMMANDS: usize = 5;
const LIVES: usize = 3;
const KEYS: u64 = 3;

/// Set in the process that serves: its folder.
const SERVES: &str = "ENGINE_TEST_SERVES";

fn text_of(command: &Command) -> String {
    match command {
        Command::Get(key) => format!("get {key}"),
        Command::Add { key, by, least } => format!("add {key} {by} {least}"),
        Command::Delete(key) => format!("del {key}"),
        Command::Both(all) => all.iter().map(text_of).collect::<Vec<_>>().join(";"),
        other => unreachable!("{other:?}"),
    }
}

fn command_of(text: &str) -> Command {
    if text.contains(';') {
        return Command::Both(text.split(';').map(command_of).collect());
    }
    let words: Vec<&str> = text.split(' ').collect();
    let key = words[1].parse().unwrap();
    match words[0] {
        "get" => Command::Get(key),
        "del" => Command::Delete(key),
        _ => Command::Add { key, by: words[2].parse().unwrap(), least: words[3].parse().unwrap() },
    }
}

/// The server, where this process is one; a test that does nothing in any other.
#[test]
fn serve() {
    let Ok(folder) = std::env::var(SERVES) else { return };
    let folder = Path::new(&folder);
    let data = folder.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let disk = Arc::new(Local::new(DiskEngine::Pread, &data).unwrap());
    let setup = Setup { threads: true, durability: Durability::Each, ..Setup::SMALL };
    let (engine, _) = toy::open(disk, &data, Arc::new(SystemClock::new()), setup).unwrap();
    let socket = folder.join("socket");
    _ = std::fs::remove_file(&socket);
    for client in UnixListener::bind(&socket).unwrap().incoming() {
        let engine = engine.clone();
        std::thread::spawn(move || {
            let client = client.unwrap();
            let mut out = client.try_clone().unwrap();
            for line in BufReader::new(client).lines() {
                let mut call = [Call::new(command_of(&line.unwrap()))];
                engine.run(&mut call);
                let [call] = call;
                let text = match call.reply.unwrap() {
                    Ok(Reply::Count(count)) => format!("{count:?}"),
                    Ok(Reply::Counts(counts)) => format!("{counts:?}"),
                    Err(_) => "refused".to_owned(),
                };
                writeln!(out, "{text}").unwrap();
            }
        });
    }
}

fn start(folder: &Path) -> Child {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["serve", "--exact", "--nocapture"])
        .env(SERVES, folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns when the server takes connections; it may take as long as the machine lets it.
fn wait_until_it_serves(server: &mut Child, folder: &Path) {
    while UnixStream::connect(folder.join("socket")).is_err() {
        assert!(server.try_wait().unwrap().is_none(), "the server ended at its start");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A command, when it was asked and when it was answered; `None`: the server was killed before.
#[derive(Debug, Clone)]
struct Event {
    command: Command,
    asked: u64,
    answered: Option<(u64, String)>,
    /// When its server was gone: what it did not do by then it never does.
    until: u64,
}

type State = [Option<i64>; KEYS as usize];

/// What a command answers in a state, and what it makes of that.
fn apply(command: &Command, state: &State) -> (String, State) {
    let mut next = *state;
    let mut one = |command: &Command| match command {
        Command::Get(key) => Some(next[*key as usize]),
        Command::Delete(key) => Some(next[*key as usize].take()),
        Command::Add { key, by, least } => {
            let sum = next[*key as usize].unwrap_or(0) + by;
            (sum >= *least).then(|| {
                next[*key as usize] = Some(sum);
                Some(sum)
            })
        }
        _ => None,
    };
    let reply = match command {
        Command::Both(all) => all.iter().map(one).collect::<Option<Vec<_>>>().map(|counts| format!("{counts:?}")),
        command => one(command).map(|count| format!("{count:?}")),
    };
    match reply {
        Some(reply) => (reply, next),
        None => ("refused".to_owned(), *state),
    }
}

/// Whether some order explains every answer: each command takes its place between question and answer.
fn is_linearizable(history: &[Event]) -> bool {
    assert!(history.len() <= 128);
    let mut seen = HashSet::new();
    let mut left = vec![(0u128, State::default())];
    while let Some((done, state)) = left.pop() {
        let open = (0..history.len()).filter(|at| done & 1 << at == 0);
        // No command may come after one whose answer came before it was asked.
        let first = open.clone().filter_map(|at| history[at].answered.as_ref().map(|(when, _)| *when)).min();
        let Some(first) = first else { return true };
        let latest = (0..history.len()).filter(|at| done & 1 << at != 0).map(|at| history[at].asked).max().unwrap_or(0);
        for at in open.filter(|at| history[*at].asked < first && latest <= history[*at].until) {
            let (reply, next) = apply(&history[at].command, &state);
            let fits = history[at].answered.as_ref().is_none_or(|(_, answer)| *answer == reply);
            if fits && seen.insert((done | 1 << at, next)) {
                left.push((done | 1 << at, next));
            }
        }
    }
    false
}

fn draw(rng: &mut Rng) -> Command {
    let one = |rng: &mut Rng| {
        let key = rng.below(KEYS);
        match rng.below(8) {
            0 => Command::Get(key),
            1 => Command::Delete(key),
            _ => Command::Add { key, by: rng.below(5) as i64 - 1, least: rng.below(4) as i64 },
        }
    };
    match rng.below(3) {
        0 => Command::Both((0..2).map(|_| one(rng)).collect()),
        _ => one(rng),
    }
}

fn history(seed: u64) -> Vec<Event> {
    let temp = tempfile::tempdir().unwrap();
    let (moment, answers) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut rng = Rng::new(seed);
    let mut events = Vec::new();
    for life in 0..LIVES {
        let mut server = start(temp.path());
        wait_until_it_serves(&mut server, temp.path());
        let kill_at = answers.load(Ordering::SeqCst) + 1 + rng.below(CLIENTS * COMMANDS as u64);
        let is_last = life + 1 == LIVES;
        // Before anybody is answered: then the server may be killed.
        let connect = |client| (client, UnixStream::connect(temp.path().join("socket")).unwrap());
        let streams: Vec<_> = (0..CLIENTS).map(connect).collect();
        let told: Vec<Vec<Event>> = std::thread::scope(|scope| {
            let clients: Vec<_> = streams
                .into_iter()
                .map(|(client, mut stream)| {
                    let (moment, answers) = (&moment, &answers);
                    scope.spawn(move || {
                        let mut rng = Rng::new(seed ^ (client + 1) << 32 ^ (life as u64) << 48);
                        let mut own = Vec::new();
                        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                        for _ in 0..COMMANDS {
                            let command = draw(&mut rng);
                            let asked = moment.fetch_add(1, Ordering::SeqCst);
                            let sent = writeln!(stream, "{}", text_of(&command));
                            let line = sent.ok().and_then(|()| lines.next()).and_then(Result::ok);
                            let is_over = line.is_none();
                            let answered = line.map(|text| (moment.fetch_add(1, Ordering::SeqCst), text));
                            answers.fetch_add(1, Ordering::SeqCst);
                            own.push(Event { command, asked, answered, until: u64::MAX });
                            if is_over {
                                break;
                            }
                        }
                        own
                    })
                })
                .collect();
            while !is_last && answers.load(Ordering::SeqCst) < kill_at && !clients.iter().all(|it| it.is_finished()) {
                std::thread::yield_now();
            }
            if !is_last {
                server.kill().unwrap();
            }
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        _ = server.kill();
        server.wait().unwrap();
        let until = moment.fetch_add(1, Ordering::SeqCst);
        events.extend(told.into_iter().flatten().map(|event| Event { until, ..event }));
    }
    events
}

#[test]
fn every_history_could_have_been_one_after_the_other() {
    if std::env::var(SERVES).is_ok() {
        return;
    }
    let histories = std::env::var("LINEAR_HISTORIES").ok().and_then(|text| text.parse().ok()).unwrap_or(HISTORIES);
    let mut under_way = 0;
    for seed in 0..histories {
        let events = history(seed);
        under_way += events.iter().filter(|event| event.answered.is_none()).count();
        assert!(is_linearizable(&events), "history {seed}: {events:#?}");
    }
    println!("{histories} histories, {under_way} commands were under way when the server was killed");
    assert!(under_way > 0);
}

#[test]
fn a_wrong_history_is_rejected() {
    let event = |text: &str, asked, answered: Option<(u64, &str)>| Event {
        command: command_of(text),
        asked,
        answered: answered.map(|(when, text)| (when, text.to_owned())),
        until: u64::MAX,
    };
    let lost = [event("add 0 1 0", 0, Some((1, "Some(1)"))), event("get 0", 2, Some((3, "None")))];
    assert!(!is_linearizable(&lost));
    // Under way when the server was killed: done or not, but not first and then not.
    let maybe = [event("add 0 1 0", 0, None), event("get 0", 2, Some((3, "None")))];
    assert!(is_linearizable(&maybe));
    let flaps =
        [event("add 0 1 0", 0, None), event("get 0", 2, Some((3, "Some(1)"))), event("get 0", 4, Some((5, "None")))];
    assert!(!is_linearizable(&flaps));
    let late = [
        Event { until: 1, ..event("add 0 1 0", 0, None) },
        event("get 0", 2, Some((3, "None"))),
        event("get 0", 4, Some((5, "Some(1)"))),
    ];
    assert!(!is_linearizable(&late));
    let half = [event("add 0 1 0;add 1 1 0", 0, None), event("get 0;get 1", 2, Some((3, "[Some(1), None]")))];
    assert!(!is_linearizable(&half));
    let beside = [
        event("add 0 1 0", 0, Some((5, "Some(2)"))),
        event("add 0 1 0", 1, Some((4, "Some(1)"))),
        event("get 0", 2, Some((3, "None"))),
    ];
    assert!(is_linearizable(&beside));
}
