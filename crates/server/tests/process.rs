//! The binary as people run it: its exit codes, its messages, its signals, its ledger, its size.
//!
//! Each test starts the real process on a folder and a port of its own.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic in its helpers, and reads the tree"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_ramekin");
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server with the lines that it wrote.
struct Server {
    child: Child,
    lines: Receiver<String>,
    seen: String,
    port: u16,
}

impl Server {
    /// Starts one and waits until it serves.
    fn start(data: &Path, more: &[&str]) -> Self {
        let mut child = serve(data, more).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = sync_channel(10_000);
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut server = Self { child, lines, seen: String::new(), port: 0 };
        let line = server.wait_for("REST on http");
        server.port = line.rsplit(':').next().unwrap().parse().unwrap();
        server
    }

    /// The first line not yet seen that holds `text`.
    fn wait_for(&mut self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        while let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            self.seen += &line;
            self.seen.push('\n');
            if line.contains(text) {
                return line;
            }
        }
        panic!("'{text}' was never written; there was:\n{}", self.seen);
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Waits for the end; all that was written is in `seen`.
    fn end(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "the server does not end:\n{}", self.seen);
            std::thread::sleep(Duration::from_millis(20));
        };
        self.seen.extend(self.lines.iter().map(|line| line + "\n"));
        status
    }

    fn get(&self, path: &str, headers: &str) -> String {
        self.send(&format!("GET {path} HTTP/1.0\r\n{headers}\r\n"))
    }

    fn send(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ramekin() -> Command {
    let mut command = Command::new(BINARY);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RAMEKIN_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

fn serve(data: &Path, more: &[&str]) -> Command {
    let mut command = ramekin();
    command.args(["serve", "--http", "127.0.0.1:0", "--memory", "64MiB", "--data"]).arg(data).args(more);
    command
}

/// Runs to the end: code, standard output, standard error.
fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[test]
fn sub_commands_answer() {
    for name in ["serve", "memory", "limits", "check", "plan", "version"] {
        let (code, out, _) = run(ramekin().args([name, "--help"]));
        assert!(code == 0 && out.contains("Usage: ramekin"), "{name}: {out}");
    }
    let (code, out, _) = run(ramekin().args(["version", "--json"]));
    let version: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, version["api"].as_str()), (0, Some("1.19.0")));
    let (code, out, _) = run(ramekin().args(["limits", "--json", "--memory", "127MiB"]));
    let limits: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(
        code == 0
            && limits.as_array().unwrap().iter().any(|row| row["name"] == "cgroup_least" && row["value"] == 135 << 20)
    );
    let (code, _, error) = run(ramekin().args(["plan", "--json"]));
    assert!(code == 2 && error.contains("--points is needed"), "{error}");
    let (code, _, error) = run(ramekin().args(["lab", "minram", "--synthetic", "9,9,9"]));
    assert!(code == 2 && error.contains("nothing to measure"), "{error}");
}

#[test]
fn wrong_options_are_refused_with_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("r.toml");
    std::fs::write(&config, "memroy = \"64MiB\"").unwrap();
    let config = config.to_str().unwrap();
    for (more, named) in [
        (&["--io", "aio"][..], "uring, pread or mmap"),
        (&["--drain-s", "soon"], "--drain-s"),
        (&["--config", config], "'memroy' is not an option"),
        (&["--config", "/no/such/file"], "/no/such/file"),
        (&["--tls-cert", config], "belong together"),
        (&["--tls-cert", config, "--tls-key", config], "certificate"),
        (&["--no-such-flag"], "--no-such-flag"),
    ] {
        let (code, _, error) = run(&mut serve(&folder.path().join("data"), more));
        // A file that is wrong is found before the data folder is touched.
        assert!(code == 2 && error.contains(named), "{more:?}: {code} {error}");
        assert!(!folder.path().join("data").exists(), "{more:?}");
    }
}

#[test]
fn environment_and_file_are_heard() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("r.toml");
    let data = folder.path().join("data");
    std::fs::write(&config, format!("data = {data:?}\nhttp = \"127.0.0.1:0\"\nmemory = \"1MiB\"")).unwrap();
    let (code, _, error) = run(ramekin().arg("serve").env("RAMEKIN_CONFIG", &config));
    assert!(code == 10 && error.contains("too small") && error.contains("memory in"), "{code} {error}");
    let (code, _, error) = run(ramekin().arg("serve").env("RAMEKIN_CONFIG", &config).env("RAMEKIN_MEMORY", "900GiB"));
    assert!(code == 10 && error.contains("too large") && error.contains("RAMEKIN_MEMORY"), "{code} {error}");
}

#[test]
fn a_signal_ends_it_with_code_0_and_it_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    for signal in ["-TERM", "-INT", "-KILL", "-TERM"] {
        let mut server = Server::start(folder.path(), &[]);
        server.signal(signal);
        let status = server.end();
        assert_eq!(status.code(), (signal != "-KILL").then_some(0), "{}", server.seen);
    }
}

#[test]
fn a_second_process_on_the_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = Server::start(folder.path(), &[]);
    let (code, _, error) = run(&mut serve(folder.path(), &[]));
    assert!(code == 4 && error.contains(&format!("process {}", first.child.id())), "{code} {error}");
    let (code, _, error) = run(ramekin().arg("check").arg(folder.path()));
    assert!(code == 4 && error.contains("in use"), "{code} {error}");
}

#[test]
fn a_port_in_use_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let first = Server::start(&folder.path().join("a"), &[]);
    let address = format!("127.0.0.1:{}", first.port);
    let mut second = ramekin();
    second.args(["serve", "--memory", "64MiB", "--http", &address, "--data"]).arg(folder.path().join("b"));
    let (code, _, error) = run(&mut second);
    assert!(code == 3 && error.contains(&address) && error.contains("--http"), "{code} {error}");
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let (code, _, error) = run(&mut serve(&folder.path().join("file/data"), &[]));
    assert!(code == 5 && error.contains("file/data"), "{code} {error}");
    let (code, _, error) = run(&mut serve(Path::new("/proc/ramekin"), &[]));
    assert!(code == 5 && error.contains("/proc/ramekin"), "{code} {error}");
}

#[test]
fn a_lost_folder_stops_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for lose in [0, 1] {
        let mut server = Server::start(&data, &[]);
        match lose {
            0 => std::fs::rename(&data, folder.path().join("moved")).unwrap(),
            _ => std::fs::remove_dir_all(&data).unwrap(),
        }
        assert_eq!(server.end().code(), Some(9), "{}", server.seen);
        assert!(server.seen.contains(data.to_str().unwrap()), "{}", server.seen);
    }
}

#[test]
fn the_ledger_is_printed_for_people_and_programs() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--api-key", "full", "--read-only-api-key", "read"]);
    assert!(server.get("/memory", "").contains(" 401 "));
    let (code, _, error) = run(ramekin().args(["memory", &server.url()]));
    assert!(code == 11 && error.contains("--api-key"), "{code} {error}");
    let (code, out, error) = run(ramekin().args(["memory", &server.url(), "--api-key", "read"]));
    assert!(code == 0 && out.starts_with("budget 64.0 MiB") && out.contains("\nbase "), "{out} {error}");
    let (_, out, _) = run(ramekin().args(["memory", &server.url(), "--json"]).env("RAMEKIN_API_KEY", "full"));
    let ledger: serde_json::Value = serde_json::from_str(&out).unwrap();
    let base = ledger["result"]["accounts"].as_array().unwrap().iter().find(|line| line["name"] == "base").unwrap();
    assert_eq!(base["bytes"], base["predicted_bytes"]);
    drop(server);
    let (code, _, error) = run(ramekin().args(["memory", "http://127.0.0.1:1"]));
    assert!(code == 11 && error.contains("is the server up"), "{code} {error}");
}

#[test]
fn a_budget_moves_and_is_kept_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let put = |server: &Server, body: &str| {
        let head = "PUT /memory HTTP/1.0\r\ncontent-type: application/json";
        server.send(&format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
    };
    let mut server = Server::start(folder.path(), &[]);
    for (body, status) in
        [(r#"{"budget": "1MiB"}"#, " 422 "), (r#"{"budget": "900TiB"}"#, " 422 "), (r#"{"budget": "48MiB"}"#, " 200 ")]
    {
        let answer = put(&server, body);
        assert!(answer.contains(status), "{body}: {answer}");
    }
    assert!(server.get("/memory", "").contains(&format!("\"budget_bytes\":{}", 48 << 20)));
    server.signal("-TERM");
    server.end();
    let mut server = Server::start(folder.path(), &[]);
    assert!(server.get("/memory", "").contains(&format!("\"budget_bytes\":{}", 64 << 20)));
    assert!(put(&server, r#"{"budget": "40MiB", "persist": true}"#).contains(" 200 "));
    server.signal("-TERM");
    server.end();
    let mut server = Server::start(folder.path(), &[]);
    assert!(server.seen.contains("budget 40.0 MiB, kept"), "{}", server.seen);
    assert!(server.get("/memory", "").contains(&format!("\"budget_bytes\":{}", 40 << 20)));
    server.signal("-TERM");
    server.end();
    // Whoever changes the configuration wins.
    let server = Server::start(folder.path(), &["--memory", "50MiB"]);
    assert!(server.get("/memory", "").contains(&format!("\"budget_bytes\":{}", 50 << 20)));
}

#[test]
fn a_full_disk_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4k", "tmpfs"]).arg(folder.path()).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: mounting needs root");
        return;
    }
    let (code, _, error) = run(&mut serve(&folder.path().join("data"), &[]));
    assert!(Command::new("umount").arg(folder.path()).status().unwrap().success());
    assert!(code == 8 && error.contains("No space left"), "{code} {error}");
}

/// The goal is 10 MiB for a release build; other builds carry more code.
#[test]
fn an_empty_server_is_small() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    let most = if cfg!(debug_assertions) { 32 << 10 } else { 10 << 10 };
    assert!(kib <= most, "an empty server holds {kib} KiB");
}
