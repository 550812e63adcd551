//! The configuration file of a process that is called `etcd`: YAML, with the names of the flags, and TLS in a part of its own.
//!
//! ```text
//!   name: a                            ─► --name=a
//!   client-transport-security:
//!     cert-file: c.pem                 ─► --cert-file=c.pem        of peers: ignored
//! ```

use crate::etcd::flags::Said;
use ramekin_base::{Error, Result};
use yaml_rust2::yaml::Hash;
use yaml_rust2::{Yaml, YamlLoader};

const CLIENTS: &str = "client-transport-security";
const PEERS: &str = "peer-transport-security";

/// Names of the part on TLS that are not those of flags.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("crl-file", "client-crl-file"),
    ("allowed-hostname", "client-cert-allowed-hostname"),
    ("allowed-hostnames", "client-cert-allowed-hostname"),
    ("allowed-cn", "client-cert-allowed-cn"),
    ("allowed-cns", "client-cert-allowed-cn"),
];

/// What a file says.
pub fn read(text: &str) -> Result<Said> {
    let wrong = |error: &dyn std::fmt::Display| Error::malformed(format!("it is no YAML: {error}"));
    let documents = YamlLoader::load_from_str(text).map_err(|error| wrong(&error))?;
    let mut said = Said::default();
    match documents.into_iter().next() {
        None | Some(Yaml::Null) => {}
        Some(Yaml::Hash(all)) => take_all(&mut said, &all)?,
        Some(_) => return Err(Error::malformed("it is no list of names with values")),
    }
    Ok(said)
}

fn take_all(said: &mut Said, all: &Hash) -> Result<()> {
    for (name, value) in all {
        let Some(name) = name.as_str() else { return Err(Error::malformed("a name is no text")) };
        match (name, value) {
            (CLIENTS, Yaml::Hash(parts)) => take_tls(said, parts)?,
            (PEERS, _) => said.ignored.push(PEERS.to_owned()),
            _ => take(said, name, value)?,
        }
    }
    Ok(())
}

fn take_tls(said: &mut Said, parts: &Hash) -> Result<()> {
    for (name, value) in parts {
        let Some(name) = name.as_str() else { return Err(Error::malformed("a name is no text")) };
        let other = OTHER_NAMES.iter().find(|(it, _)| *it == name).map(|(_, flag)| *flag);
        take(said, other.unwrap_or(name), value)?;
    }
    Ok(())
}

/// etcd passes over names that it does not know.
fn take(said: &mut Said, name: &str, value: &Yaml) -> Result<()> {
    let Some(mut text) = text_of(value) else {
        said.ignored.push(name.to_owned());
        return Ok(());
    };
    if name.ends_with("-interval") && text.bytes().all(|digit| digit.is_ascii_digit()) {
        // A duration as a number counts nanoseconds.
        text.push_str("ns");
    }
    if !said.take(name, &text)? {
        said.ignored.push(name.to_owned());
    }
    Ok(())
}

/// A value as a flag would say it; several are separated by commas.
fn text_of(value: &Yaml) -> Option<String> {
    match value {
        Yaml::String(text) | Yaml::Real(text) => Some(text.clone()),
        Yaml::Integer(number) => Some(number.to_string()),
        Yaml::Boolean(is_on) => Some(is_on.to_string()),
        Yaml::Null => Some(String::new()),
        Yaml::Array(all) => all.iter().map(text_of).collect::<Option<Vec<_>>>().map(|all| all.join(",")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_flags_and_tls_has_a_part_of_its_own() {
        let said = read(concat!(
            "name: a\nquota-backend-bytes: 5\nenable-grpc-gateway: false\nwatch-progress-notify-interval: 5000000000\n",
            "log-outputs: [stderr]\nheartbeat-interval: 500\nno-such-name: 1\n",
            "client-transport-security:\n  cert-file: c.pem\n  client-cert-auth: true\n",
            "peer-transport-security:\n  cert-file: p.pem\n",
        ));
        let said = said.unwrap();
        assert_eq!((said.get("name"), said.get("quota-backend-bytes")), (Some("a"), Some("5")));
        assert_eq!(said.get("watch-progress-notify-interval"), Some("5000000000ns"));
        assert_eq!(said.get("cert-file"), Some("c.pem"));
        assert!(said.is_on("client-cert-auth", false) && !said.is_on("enable-grpc-gateway", true));
        assert_eq!(said.ignored, ["log-outputs", "heartbeat-interval", "no-such-name", PEERS]);
    }

    #[test]
    fn json_is_yaml_and_other_files_are_refused() {
        assert_eq!(read(r#"{"name": "a"}"#).unwrap().get("name"), Some("a"));
        assert!(read("").is_ok());
        for text in ["- a", "a: [", "client-transport-security:\n  auto-tls: true", "1: 2"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
