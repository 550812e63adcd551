//! What the member is told: flags and file as the values that the door is opened with.

use crate::etcd::address::Address;
use crate::etcd::compaction::Retention;
use crate::etcd::flags::Said;
use ramekin_base::{Error, Result};
use ramekin_versions::REQUEST_MAX;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

/// etcd's defaults.
const CLIENT_URL: &str = "http://localhost:2379";
const PEER_URL: &str = "http://localhost:2380";
const CLUSTER_TOKEN: &str = "etcd-cluster";
const NAME: &str = "default";
const QUOTA: u64 = 2 << 30;
const PROGRESS_EVERY: Duration = Duration::from_secs(600);
const PROGRESS_LEAST: Duration = Duration::from_millis(100);
const MAX_TXN_OPS: usize = 128;
const TOKEN_TTL: u64 = 300;
const BCRYPT_COST: u32 = 10;

/// How users prove who they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// `simple`, or `jwt` with its options.
    pub token: String,
    pub token_ttl: Duration,
    pub bcrypt_cost: u32,
}

/// Certificate and key, and whose clients may come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Clients show a certificate that one of these signed.
    pub clients: Option<PathBuf>,
    /// The name in a client's certificate is that of a user.
    pub names_users: bool,
    pub has_1_2: bool,
    pub has_1_3: bool,
}

/// A member of a cluster of one.
#[derive(Debug, Clone)]
pub struct Member {
    pub name: String,
    pub data: PathBuf,
    pub clients: Vec<Address>,
    /// Where HTTP alone, and the state of the server alone, are asked for.
    pub http: Vec<Address>,
    pub metrics: Vec<Address>,
    /// Empty: where it listens.
    pub client_urls: Vec<String>,
    pub peer_urls: Vec<String>,
    pub cluster_token: String,
    pub quota: Option<u64>,
    pub max_txn_ops: usize,
    pub max_request_bytes: usize,
    pub progress_every: Duration,
    pub retention: Option<Retention>,
    pub auth: Auth,
    pub tls: Option<Tls>,
    pub gateway: bool,
    pub cors: Vec<String>,
    pub host_whitelist: Vec<String>,
    pub log_level: LevelFilter,
    /// Said at the start.
    pub notes: Vec<String>,
}

impl Member {
    /// Beside vectors, at one address: all else as etcd has it, and no quota but the disk's.
    pub fn beside(address: &str, tls: Option<&(PathBuf, PathBuf)>) -> Result<Self> {
        let tls = tls.map(|(cert, key)| Tls {
            cert: cert.clone(),
            key: key.clone(),
            clients: None,
            names_users: false,
            has_1_2: true,
            has_1_3: true,
        });
        let clients = vec![Address::plain(address, tls.is_some())];
        Ok(Self { clients, tls, quota: None, ..Self::of(&Said::default())? })
    }

    /// As flags, the environment or a file say.
    pub fn of(said: &Said) -> Result<Self> {
        let text = |name: &str, default: &str| said.get(name).unwrap_or(default).to_owned();
        let list = |name: &str| -> Vec<String> {
            let all = said.get(name).unwrap_or_default();
            all.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
        };
        let addresses = |name: &str, default: &str| {
            Address::parse_all(said.get(name).unwrap_or(default)).map_err(|error| error.at(format!("--{name}")))
        };
        let name = text("name", NAME);
        let (advertised, peers) = (list("advertise-client-urls"), list("initial-advertise-peer-urls"));
        check_alone(said)?;
        let member = Self {
            data: text("data-dir", &format!("{name}.etcd")).into(),
            clients: addresses("listen-client-urls", CLIENT_URL)?,
            http: addresses("listen-client-http-urls", "")?,
            metrics: addresses("listen-metrics-urls", "")?,
            client_urls: advertised,
            peer_urls: if peers.is_empty() { vec![PEER_URL.to_owned()] } else { peers },
            cluster_token: text("initial-cluster-token", CLUSTER_TOKEN),
            quota: quota(number(said, "quota-backend-bytes", 0)?),
            max_txn_ops: number(said, "max-txn-ops", MAX_TXN_OPS)?,
            max_request_bytes: number(said, "max-request-bytes", REQUEST_MAX)?,
            progress_every: progress(said)?,
            retention: retention(said)?,
            auth: auth(said)?,
            tls: tls(said)?,
            gateway: said.is_on("enable-grpc-gateway", true),
            cors: list("cors"),
            host_whitelist: list("host-whitelist"),
            log_level: level(said)?,
            notes: notes(said),
            name,
        };
        let listens = member.clients.iter().chain(&member.http).chain(&member.metrics);
        match listens.clone().find(|address| address.is_secured && member.tls.is_none()) {
            // Both begin with etcd's own texts.
            Some(address) if member.metrics.contains(address) => Err(Error::invalid(format!(
                "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url {address}"
            ))),
            Some(address) => Err(Error::invalid(format!(
                "cannot listen on TLS for {}: KeyFile and CertFile are not presented; name them by --key-file and --cert-file",
                address.place()
            ))),
            None => Ok(member),
        }
    }
}

/// With others it would be a cluster that keeps nothing alike.
fn check_alone(said: &Said) -> Result<()> {
    let named = said.get("initial-cluster").unwrap_or_default().split(',');
    let mut names: Vec<&str> = named.filter_map(|one| one.split_once('=')).map(|(name, _)| name.trim()).collect();
    names.sort_unstable();
    names.dedup();
    match names.len() {
        0 | 1 => Ok(()),
        _ => {
            let message = format!("--initial-cluster names {} members; this server is one by itself", names.len());
            Err(Error::unsupported(message))
        }
    }
}

fn notes(said: &Said) -> Vec<String> {
    let mut notes = Vec::new();
    if said.ignored.iter().any(|name| name == "unsafe-no-fsync") {
        notes.push("--unsafe-no-fsync is not followed: what is acknowledged is on the disk".to_owned());
    }
    let ignored: Vec<String> =
        said.ignored.iter().filter(|name| *name != "unsafe-no-fsync").map(|name| format!("--{name}")).collect();
    if !ignored.is_empty() {
        notes.push(format!("of no effect here: {}", ignored.join(", ")));
    }
    notes
}

fn wrong(name: &str, value: &str, what: &str) -> Error {
    Error::invalid(format!("--{name}: '{value}' is {what}"))
}

fn number<T: FromStr>(said: &Said, name: &str, default: T) -> Result<T> {
    said.get(name).map_or(Ok(default), |value| value.parse().map_err(|_| wrong(name, value, "no number")))
}

/// 0 stands for etcd's default, and less for none.
fn quota(bytes: i64) -> Option<u64> {
    match bytes {
        0 => Some(QUOTA),
        bytes => u64::try_from(bytes).ok(),
    }
}

/// 0 and less stand for etcd's default; what is too often becomes as often as may be.
fn progress(said: &Said) -> Result<Duration> {
    let name = "watch-progress-notify-interval";
    let older = "experimental-watch-progress-notify-interval";
    let Some(value) = said.get(name).or_else(|| said.get(older)) else { return Ok(PROGRESS_EVERY) };
    match value.strip_prefix('-').map_or_else(|| duration(value), |size| duration(size).map(|_| Duration::ZERO)) {
        Some(Duration::ZERO) => Ok(PROGRESS_EVERY),
        Some(every) => Ok(every.max(PROGRESS_LEAST)),
        None => Err(wrong(name, value, "no duration, such as 5s")),
    }
}

fn retention(said: &Said) -> Result<Option<Retention>> {
    let name = "auto-compaction-retention";
    let Some(value) = said.get(name).filter(|value| *value != "0") else { return Ok(None) };
    let whole = value.parse::<i64>().ok();
    Ok(match said.get("auto-compaction-mode").unwrap_or("periodic") {
        "periodic" => {
            let hours =
                whole.and_then(|hours| u64::try_from(hours).ok()).map(|hours| Duration::from_secs(3600 * hours));
            let period = hours.or_else(|| duration(value)).ok_or_else(|| wrong(name, value, "no duration"))?;
            (period >= Duration::from_secs(1)).then_some(Retention::Period(period))
        }
        "revision" => Some(Retention::Revisions(
            whole.filter(|kept| *kept > 0).ok_or_else(|| wrong(name, value, "no number of revisions"))?,
        )),
        other => return Err(wrong("auto-compaction-mode", other, "neither periodic nor revision")),
    })
}

fn auth(said: &Said) -> Result<Auth> {
    let bcrypt_cost = number(said, "bcrypt-cost", BCRYPT_COST)?;
    if !(4..=31).contains(&bcrypt_cost) {
        return Err(wrong("bcrypt-cost", &bcrypt_cost.to_string(), "not from 4 to 31"));
    }
    Ok(Auth {
        token: said.get("auth-token").unwrap_or("simple").to_owned(),
        token_ttl: Duration::from_secs(number(said, "auth-token-ttl", TOKEN_TTL)?),
        bcrypt_cost,
    })
}

fn tls(said: &Said) -> Result<Option<Tls>> {
    let path = |name: &str| said.get(name).map(PathBuf::from);
    let clients = path("trusted-ca-file");
    let (least, most) = (said.get("tls-min-version"), said.get("tls-max-version"));
    let is_version = |version: &Option<&str>| matches!(version, None | Some("TLS1.2" | "TLS1.3"));
    if !is_version(&least) || !is_version(&most) {
        return Err(Error::invalid("--tls-min-version and --tls-max-version are TLS1.2 or TLS1.3"));
    }
    let (has_1_2, has_1_3) = (least != Some("TLS1.3"), most != Some("TLS1.2"));
    if !has_1_2 && !has_1_3 {
        return Err(Error::invalid("--tls-min-version is above --tls-max-version"));
    }
    match (path("cert-file"), path("key-file")) {
        (Some(_), Some(_)) if said.is_on("client-cert-auth", false) && clients.is_none() => {
            Err(Error::invalid("--client-cert-auth needs --trusted-ca-file: who may sign certificates of clients"))
        }
        (Some(cert), Some(key)) => {
            Ok(Some(Tls { cert, key, clients, names_users: said.is_on("client-cert-auth", false), has_1_2, has_1_3 }))
        }
        (None, None) => Ok(None),
        _ => Err(Error::invalid("--cert-file and --key-file belong together; give both or none")),
    }
}

fn level(said: &Said) -> Result<LevelFilter> {
    match said.get("log-level").unwrap_or("info") {
        "debug" => Ok(LevelFilter::DEBUG),
        "info" => Ok(LevelFilter::INFO),
        "warn" => Ok(LevelFilter::WARN),
        "error" | "dpanic" | "panic" | "fatal" => Ok(LevelFilter::ERROR),
        other => Err(wrong("log-level", other, "not debug, info, warn, error, panic or fatal")),
    }
}

/// A duration as Go writes it: `1h30m`, `1.5s`, `100ms`.
fn duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 7] =
        [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let (mut rest, mut seconds) = (if text == "0" { "0s" } else { text }, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, more) = rest.split_at(digits);
        let end = more.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(more.len());
        let (unit, more) = more.split_at(end);
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
        seconds += number.parse::<f64>().ok()? * factor;
        rest = more;
    }
    Duration::try_from_secs_f64(seconds).ok().filter(|_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(arguments: &[&str]) -> Result<Member> {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        Member::of(&crate::etcd::flags::read(&arguments, |_| None)?)
    }

    #[test]
    fn defaults_are_those_of_etcd() {
        let one = member(&[]).unwrap();
        assert_eq!((one.name.as_str(), one.data.to_str()), ("default", Some("default.etcd")));
        assert_eq!(one.clients, Address::parse_all(CLIENT_URL).unwrap());
        assert_eq!((one.quota, one.max_txn_ops, one.max_request_bytes), (Some(QUOTA), 128, 1_572_864));
        assert_eq!((one.retention, one.tls, one.gateway), (None, None, true));
        let two = member(&["--name=m", "--quota-backend-bytes=-1"]).unwrap();
        assert_eq!((two.data.to_str(), two.quota), (Some("m.etcd"), None));
        let beside = Member::beside("127.0.0.1:5", None).unwrap();
        assert_eq!((beside.clients[0].to_string().as_str(), beside.quota), ("http://127.0.0.1:5", None));
    }

    #[test]
    fn durations_are_those_of_go() {
        for (text, millis) in
            [("5s", 5000), ("1h30m", 5_400_000), ("100ms", 100), ("1.5s", 1500), ("2000000ns", 2), ("0", 0)]
        {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "5 s", "5d"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn progress_has_a_default_and_a_least_interval() {
        let of = |text: &str| member(&[&format!("--watch-progress-notify-interval={text}")]).unwrap().progress_every;
        for (text, millis) in [("5s", 5000), ("10ms", 100), ("0s", 600_000), ("0", 600_000), ("-1s", 600_000)] {
            assert_eq!(of(text), Duration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn compaction_by_itself_has_two_modes() {
        let of = |mode: &str, kept: &str| {
            let (mode, kept) =
                (format!("--auto-compaction-mode={mode}"), format!("--auto-compaction-retention={kept}"));
            member(&[&mode, &kept]).map(|member| member.retention)
        };
        assert_eq!(of("periodic", "2").unwrap(), Some(Retention::Period(Duration::from_secs(7200))));
        assert_eq!(of("periodic", "10m").unwrap(), Some(Retention::Period(Duration::from_secs(600))));
        assert_eq!(of("revision", "1000").unwrap(), Some(Retention::Revisions(1000)));
        assert_eq!(of("revision", "0").unwrap(), None);
        assert!(of("revision", "1h").is_err() && of("other", "1").is_err() && of("periodic", "x").is_err());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for line in [
            &["--initial-cluster=a=http://x:1,b=http://y:1"][..],
            &["--listen-client-urls=https://127.0.0.1:1"],
            &["--cert-file=c"],
            &["--cert-file=c", "--key-file=k", "--client-cert-auth"],
            &["--tls-min-version=TLS1.0"],
            &["--max-txn-ops=many"],
            &["--watch-progress-notify-interval=often"],
            &["--bcrypt-cost=3"],
            &["--log-level=loud"],
        ] {
            assert!(member(line).is_err(), "{line:?}");
        }
        assert!(
            member(&["--initial-cluster=a=http://x:1,a=http://y:1", "--unsafe-no-fsync"]).unwrap().notes.len() == 1
        );
    }
}
