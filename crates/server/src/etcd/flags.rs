//! The flags of a process that is called `etcd`: one table, with what becomes of each; and how they are said.
//!
//! ```text
//!   --name=value · --name value · -name · ETCD_NAME=value       a flag wins over the environment
//!   --config-file FILE: what stands there, and neither flags nor environment
//!   Used ─► member.rs      Ignored ─► a line in the log      Refused, unknown ─► exit 2
//! ```

use ramekin_base::{Error, Result};
use std::collections::BTreeMap;

/// What becomes of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Used,
    /// It concerns what this server does not have: peers, raft, bbolt, discovery, profiling, tracing.
    Ignored,
    /// To ignore it would do other than what was asked for, for this reason.
    Refused(&'static str),
}
use Role::{Ignored, Refused, Used};

/// A flag.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    pub name: &'static str,
    /// It stands alone, or with true or false.
    pub is_switch: bool,
    pub role: Role,
}

const fn value(name: &'static str, role: Role) -> Flag {
    Flag { name, is_switch: false, role }
}

const fn switch(name: &'static str, role: Role) -> Flag {
    Flag { name, is_switch: true, role }
}

/// Whom a certificate may name is not checked beyond who signed it.
const NOT_CHECKED: Role =
    Refused("clients are let in by who signed their certificate, and nothing else of it is checked");

/// Every flag that etcd has had since 3.4.
pub const FLAGS: &[Flag] = &[
    value("name", Used),
    value("data-dir", Used),
    value("listen-client-urls", Used),
    value("listen-client-http-urls", Used),
    value("listen-metrics-urls", Used),
    value("advertise-client-urls", Used),
    value("initial-advertise-peer-urls", Used),
    value("initial-cluster", Used),
    value("initial-cluster-token", Used),
    value("quota-backend-bytes", Used),
    value("max-txn-ops", Used),
    value("max-request-bytes", Used),
    value("auto-compaction-mode", Used),
    value("auto-compaction-retention", Used),
    value("watch-progress-notify-interval", Used),
    value("experimental-watch-progress-notify-interval", Used),
    value("auth-token", Used),
    value("auth-token-ttl", Used),
    value("bcrypt-cost", Used),
    value("cert-file", Used),
    value("key-file", Used),
    value("trusted-ca-file", Used),
    switch("client-cert-auth", Used),
    value("tls-min-version", Used),
    value("tls-max-version", Used),
    value("cors", Used),
    value("host-whitelist", Used),
    switch("enable-grpc-gateway", Used),
    value("log-level", Used),
    value("config-file", Used),
    switch("version", Used),
    switch("help", Used),
    switch("h", Used),
    switch("auto-tls", Refused("it makes no certificates; name one with --cert-file and --key-file")),
    value("client-crl-file", Refused("lists of revoked certificates are not read")),
    value("client-cert-allowed-hostname", NOT_CHECKED),
    value("client-cert-allowed-cn", NOT_CHECKED),
    switch("unsafe-no-fsync", Ignored),
    value("initial-cluster-state", Ignored),
    value("listen-peer-urls", Ignored),
    switch("force-new-cluster", Ignored),
    switch("strict-reconfig-check", Ignored),
    switch("pre-vote", Ignored),
    switch("initial-election-tick-advance", Ignored),
    value("heartbeat-interval", Ignored),
    value("election-timeout", Ignored),
    value("raft-read-timeout", Ignored),
    value("raft-write-timeout", Ignored),
    value("max-learners", Ignored),
    value("snapshot-count", Ignored),
    value("snapshot-catchup-entries", Ignored),
    value("max-snapshots", Ignored),
    value("max-wals", Ignored),
    value("wal-dir", Ignored),
    value("backend-batch-interval", Ignored),
    value("backend-batch-limit", Ignored),
    value("backend-bbolt-freelist-type", Ignored),
    value("bootstrap-defrag-threshold-megabytes", Ignored),
    value("compaction-batch-limit", Ignored),
    value("compaction-sleep-interval", Ignored),
    value("corrupt-check-time", Ignored),
    switch("compact-hash-check-enabled", Ignored),
    value("compact-hash-check-time", Ignored),
    value("downgrade-check-time", Ignored),
    value("warning-apply-duration", Ignored),
    value("warning-unary-request-duration", Ignored),
    value("max-concurrent-streams", Ignored),
    value("grpc-keepalive-min-time", Ignored),
    value("grpc-keepalive-interval", Ignored),
    value("grpc-keepalive-timeout", Ignored),
    switch("socket-reuse-port", Ignored),
    switch("socket-reuse-address", Ignored),
    switch("memory-mlock", Ignored),
    value("client-cert-file", Ignored),
    value("client-key-file", Ignored),
    value("peer-cert-file", Ignored),
    value("peer-key-file", Ignored),
    value("peer-client-cert-file", Ignored),
    value("peer-client-key-file", Ignored),
    switch("peer-client-cert-auth", Ignored),
    value("peer-trusted-ca-file", Ignored),
    switch("peer-auto-tls", Ignored),
    value("peer-crl-file", Ignored),
    value("peer-cert-allowed-cn", Ignored),
    value("peer-cert-allowed-hostname", Ignored),
    switch("peer-skip-client-san-verification", Ignored),
    value("self-signed-cert-validity", Ignored),
    value("cipher-suites", Ignored),
    value("discovery", Ignored),
    value("discovery-token", Ignored),
    value("discovery-endpoints", Ignored),
    value("discovery-dial-timeout", Ignored),
    value("discovery-request-timeout", Ignored),
    value("discovery-keepalive-time", Ignored),
    value("discovery-keepalive-timeout", Ignored),
    switch("discovery-insecure-transport", Ignored),
    switch("discovery-insecure-skip-tls-verify", Ignored),
    value("discovery-cert", Ignored),
    value("discovery-key", Ignored),
    value("discovery-cacert", Ignored),
    value("discovery-user", Ignored),
    value("discovery-password", Ignored),
    value("discovery-srv", Ignored),
    value("discovery-srv-name", Ignored),
    value("discovery-fallback", Ignored),
    value("discovery-proxy", Ignored),
    value("proxy", Ignored),
    value("v2-deprecation", Ignored),
    switch("enable-v2", Ignored),
    switch("enable-pprof", Ignored),
    value("metrics", Ignored),
    value("logger", Ignored),
    value("log-outputs", Ignored),
    value("log-format", Ignored),
    switch("enable-log-rotation", Ignored),
    value("log-rotation-config-json", Ignored),
    switch("enable-distributed-tracing", Ignored),
    value("distributed-tracing-address", Ignored),
    value("distributed-tracing-service-name", Ignored),
    value("distributed-tracing-instance-id", Ignored),
    value("distributed-tracing-sampling-rate", Ignored),
    value("feature-gates", Ignored),
];

/// What was tried before it became a flag, or never did: none of it is here.
const EXPERIMENTAL: &str = "experimental-";

fn flag(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// What was said: the values of flags that are used, and the names of others.
#[derive(Debug, Default)]
pub struct Said {
    values: BTreeMap<&'static str, String>,
    pub ignored: Vec<String>,
}

impl Said {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a switch is on; `default` where nothing says.
    pub fn is_on(&self, name: &str, default: bool) -> bool {
        self.get(name).map_or(default, |value| value == "true")
    }

    /// Takes a value. False: there is no such flag.
    pub fn take(&mut self, name: &str, value: &str) -> Result<bool> {
        let Some(flag) = flag(name) else {
            let is_known = name.starts_with(EXPERIMENTAL);
            if is_known {
                self.ignored.push(name.to_owned());
            }
            return Ok(is_known);
        };
        let value = if flag.is_switch { of_switch(name, value)? } else { value };
        match flag.role {
            Used => _ = self.values.insert(flag.name, value.to_owned()),
            Ignored => self.ignored.push(name.to_owned()),
            Refused(why) if !value.is_empty() && value != "false" => {
                return Err(Error::unsupported(format!("--{name}: {why}")));
            }
            Refused(_) => {}
        }
        Ok(true)
    }
}

fn of_switch(name: &str, value: &str) -> Result<&'static str> {
    match value {
        "true" | "TRUE" | "True" | "t" | "T" | "1" => Ok("true"),
        "false" | "FALSE" | "False" | "f" | "F" | "0" => Ok("false"),
        _ => Err(Error::invalid(format!("--{name}: '{value}' is neither true nor false"))),
    }
}

/// Reads a command line, without the name of the program, and then the environment for what it does not say.
pub fn read(arguments: &[String], variable: impl Fn(&str) -> Option<String>) -> Result<Said> {
    let mut said = Said::default();
    let mut rest = arguments.iter().peekable();
    let mut named = Vec::new();
    while let Some(argument) = rest.next() {
        let stripped = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-'));
        let Some(text) = stripped.filter(|text| !text.is_empty() && !text.starts_with('-')) else {
            return Err(Error::invalid(format!("'{argument}' is not a flag")));
        };
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => (text, value_after(text, &mut rest)?),
        };
        if !said.take(name, &value)? {
            return Err(Error::invalid(format!("flag provided but not defined: -{name}; `etcd --help` lists all")));
        }
        named.push(name.to_owned());
    }
    for flag in FLAGS.iter().filter(|flag| !named.iter().any(|name| name == flag.name)) {
        if let Some(value) = variable(&variable_of(flag.name)).filter(|value| !value.is_empty()) {
            said.take(flag.name, &value).map_err(|error| error.at(variable_of(flag.name)))?;
        }
    }
    Ok(said)
}

/// What stands behind a flag without `=`.
fn value_after<'a>(name: &str, rest: &mut std::iter::Peekable<impl Iterator<Item = &'a String>>) -> Result<String> {
    let known = flag(name);
    if known.is_some_and(|flag| flag.is_switch) {
        return Ok("true".to_owned());
    }
    // Of one that is not in the table nobody knows whether it is a switch.
    let is_open = known.is_none() && rest.peek().is_none_or(|next| next.starts_with('-'));
    match rest.next() {
        _ if is_open => Ok(String::new()),
        Some(value) => Ok(value.clone()),
        None => Err(Error::invalid(format!("flag needs an argument: -{name}"))),
    }
}

fn variable_of(name: &str) -> String {
    format!("ETCD_{}", name.replace('-', "_").to_uppercase())
}

/// The flags for people: what each is for stands in etcd's manual.
pub fn help() -> String {
    let mut text = "\
etcd, served by ramekin: a member by itself, within a budget of memory.

RAMEKIN_MEMORY is the budget, such as 64MiB; RAMEKIN_HTTP the address of the door that shows what it is spent on.
Each flag may also stand in the environment: ETCD_NAME for --name.\n"
        .to_owned();
    let mut part = |title: &str, flags: &[&Flag]| {
        text += &format!("\nFlags that are {title}:\n");
        for flag in flags.iter().filter(|flag| flag.name != "h") {
            text += &match flag.role {
                Refused(why) => format!("  --{} ({why})\n", flag.name),
                _ => format!("  --{}\n", flag.name),
            };
        }
    };
    let (used, others): (Vec<&Flag>, Vec<&Flag>) = FLAGS.iter().partition(|flag| flag.role == Used);
    let (ignored, refused): (Vec<&Flag>, Vec<&Flag>) = others.iter().partition(|flag| flag.role == Ignored);
    part("used", &used);
    part("taken, and of no effect (so is each --experimental-*)", &ignored);
    part("refused", &refused);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(arguments: &[&str]) -> Result<Said> {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        read(&arguments, |_| None)
    }

    #[test]
    fn names_stand_once() {
        let mut names = std::collections::BTreeSet::new();
        assert!(FLAGS.iter().all(|flag| names.insert(flag.name)));
    }

    #[test]
    fn a_flag_is_said_in_any_of_its_forms() {
        for line in [&["--name=a"][..], &["-name=a"], &["--name", "a"], &["-name", "a"], &["--name=b", "--name=a"]] {
            assert_eq!(said(line).unwrap().get("name"), Some("a"), "{line:?}");
        }
        let all = said(&["--client-cert-auth", "--name", "a", "--enable-grpc-gateway=false"]).unwrap();
        assert!(all.is_on("client-cert-auth", false) && !all.is_on("enable-grpc-gateway", true));
        assert_eq!(all.get("name"), Some("a"));
        assert!(said(&["--client-cert-auth=perhaps"]).is_err());
    }

    #[test]
    fn what_is_not_here_is_ignored_refused_or_unknown() {
        let all =
            said(&["--snapshot-count", "5", "--experimental-initial-corrupt-check=true", "--experimental-a", "b"]);
        assert_eq!(all.unwrap().ignored, ["snapshot-count", "experimental-initial-corrupt-check", "experimental-a"]);
        assert!(said(&["--auto-tls=false"]).is_ok());
        for (line, named) in [
            (&["--auto-tls"][..], "auto-tls"),
            (&["--client-crl-file=x"], "client-crl-file"),
            (&["--no-such-flag=1"], "no-such-flag"),
            (&["name"], "'name'"),
            (&["--"], "'--'"),
            (&["---name=a"], "'---name=a'"),
            (&["--name"], "-name"),
        ] {
            let error = said(line).unwrap_err();
            assert!(error.message().contains(named), "{line:?}: {error}");
        }
    }

    #[test]
    fn the_environment_says_what_flags_do_not() {
        let variable = |name: &str| match name {
            "ETCD_NAME" => Some("of-environment".to_owned()),
            "ETCD_QUOTA_BACKEND_BYTES" => Some("5".to_owned()),
            _ => None,
        };
        let all = read(&["--name=of-flag".to_owned()], variable).unwrap();
        assert_eq!((all.get("name"), all.get("quota-backend-bytes")), (Some("of-flag"), Some("5")));
    }

    #[test]
    fn the_page_on_etcd_names_each_flag() {
        let page = include_str!("../../../../docs/ETCD.md");
        for flag in FLAGS.iter().filter(|flag| flag.name != "h") {
            assert!(page.contains(&format!("`--{}`", flag.name)), "docs/ETCD.md says nothing of --{}", flag.name);
        }
    }
}
