//! Tokens that stand for users: random letters that the door remembers, or signed claims (JWT, RFC 7519) that need no memory.

use crate::errors::TOO_MANY_REQUESTS;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use parking_lot::Mutex;
use ramekin_base::{Error, Result};
use ramekin_memory::{Account, Reservation};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

const LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
const LETTERS_OF_A_TOKEN: usize = 16;
/// What a token takes besides the name of its user.
const TOKEN_BYTES: u64 = 256;
/// How long a signed token counts, if nothing says so.
const SIGNED_TTL: Duration = Duration::from_secs(300);

/// How users are known again.
pub(crate) enum Tokens {
    Simple(Simple),
    Signed(Box<Signed>),
}

pub(crate) struct Simple {
    /// From its last use on.
    ttl: Duration,
    account: Account,
    held: Mutex<HashMap<String, Held>>,
}

struct Held {
    user: String,
    until: Instant,
    _memory: Reservation,
}

pub(crate) struct Signed {
    algorithm: Algorithm,
    /// `None`: it only verifies.
    sign: Option<EncodingKey>,
    verify: DecodingKey,
    ttl: Duration,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    username: String,
    revision: u64,
    exp: u64,
}

impl Tokens {
    /// By etcd's option: `simple`, or `jwt,pub-key=FILE,priv-key=FILE,sign-method=RS256,ttl=5m`.
    pub(crate) fn open(option: &str, simple_ttl: Duration, account: Account) -> Result<Self> {
        let mut parts = option.split(',');
        match parts.next() {
            Some("simple" | "") => Ok(Self::Simple(Simple { ttl: simple_ttl, account, held: Mutex::default() })),
            Some("jwt") => Signed::open(parts).map(|signed| Self::Signed(Box::new(signed))),
            other => Err(Error::invalid(format!(
                "auth-token is {:?}; it may be simple, or jwt,pub-key=FILE,priv-key=FILE,sign-method=METHOD,ttl=TIME",
                other.unwrap_or_default()
            ))),
        }
    }

    /// A new token for a user. `index` is a number of the store's that grows.
    pub(crate) fn issue(&self, user: &str, revision: u64, index: u64) -> Result<String> {
        match self {
            Self::Simple(simple) => simple.issue(user, index, Instant::now()),
            Self::Signed(signed) => signed.issue(user, revision),
        }
    }

    /// Whose token it is, and of which revision of users it is if it says so.
    pub(crate) fn user_of(&self, token: &str) -> Option<(String, Option<u64>)> {
        match self {
            Self::Simple(simple) => simple.user_of(token, Instant::now()).map(|user| (user, None)),
            Self::Signed(signed) => signed.claims(token).map(|claims| (claims.username, Some(claims.revision))),
        }
    }

    /// Forgets the tokens of a user.
    pub(crate) fn forget(&self, user: &str) {
        if let Self::Simple(simple) = self {
            simple.held.lock().retain(|_, held| held.user != user);
        }
    }

    /// Forgets one token. What is signed counts by the revision that it names.
    pub(crate) fn take_back(&self, token: &str) {
        if let Self::Simple(simple) = self {
            simple.held.lock().remove(token);
        }
    }

    pub(crate) fn forget_all(&self) {
        if let Self::Simple(simple) = self {
            simple.held.lock().clear();
        }
    }
}

impl Simple {
    fn issue(&self, user: &str, index: u64, now: Instant) -> Result<String> {
        let mut random = [0; LETTERS_OF_A_TOKEN];
        getrandom::fill(&mut random).map_err(|error| Error::bug(format!("no random bytes: {error}")))?;
        let letter =
            |byte: &u8| LETTERS.get(usize::from(*byte) % LETTERS.len()).map_or('a', |letter| char::from(*letter));
        let token = format!("{}.{index}", random.iter().map(letter).collect::<String>());
        let memory = self.account.try_reserve(TOKEN_BYTES + user.len() as u64);
        let memory = memory.map_err(|_| Error::new(ramekin_base::Kind::Busy, TOO_MANY_REQUESTS))?;
        let mut held = self.held.lock();
        held.retain(|_, held| held.until > now);
        held.insert(token.clone(), Held { user: user.to_owned(), until: now + self.ttl, _memory: memory });
        Ok(token)
    }

    fn user_of(&self, token: &str, now: Instant) -> Option<String> {
        let mut all = self.held.lock();
        let held = all.get_mut(token).filter(|held| held.until > now)?;
        held.until = now + self.ttl;
        Some(held.user.clone())
    }
}

fn read(name: &str, path: &str) -> Result<Vec<u8>> {
    // Once, at the start, before anything is served.
    #[allow(clippy::disallowed_methods, reason = "a file of the user, that is no data of the store")]
    let bytes = std::fs::read(Path::new(path));
    bytes.map_err(|error| Error::invalid(format!("{name} of auth-token cannot be read: {error}")).at(path))
}

/// Seconds of a time as Go writes it: whole numbers with the units h, m and s.
fn time(text: &str) -> Option<Duration> {
    let (mut seconds, mut number) = (0u64, String::new());
    for letter in text.chars() {
        let unit = match letter {
            'h' => 3600,
            'm' => 60,
            's' => 1,
            digit if digit.is_ascii_digit() => {
                number.push(digit);
                continue;
            }
            _ => return None,
        };
        seconds = seconds.checked_add(number.parse::<u64>().ok()?.checked_mul(unit)?)?;
        number.clear();
    }
    (number.is_empty() && seconds > 0).then(|| Duration::from_secs(seconds))
}

impl Signed {
    fn open<'o>(options: impl Iterator<Item = &'o str>) -> Result<Self> {
        let wrong = |what: &str| Error::invalid(format!("auth-token is a jwt whose {what}"));
        let (mut public, mut private, mut algorithm, mut ttl) = (None, None, None, SIGNED_TTL);
        for option in options {
            let (name, value) = option.split_once('=').ok_or_else(|| wrong("options are not name=value"))?;
            match name {
                "pub-key" => public = Some(read(name, value)?),
                "priv-key" => private = Some(read(name, value)?),
                "sign-method" => algorithm = value.parse::<Algorithm>().ok(),
                "ttl" => ttl = time(value).ok_or_else(|| wrong("ttl is no time, such as 5m"))?,
                _ => return Err(wrong("options are pub-key, priv-key, sign-method and ttl, and there is another")),
            }
        }
        let algorithm = algorithm.ok_or_else(|| {
            wrong("sign-method is not one of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, HS256, HS384, HS512, EdDSA")
        })?;
        let (sign, verify) = keys(algorithm, public.as_deref(), private.as_deref())?;
        Ok(Self { algorithm, sign, verify, ttl })
    }

    fn issue(&self, username: &str, revision: u64) -> Result<String> {
        let key = self.sign.as_ref().ok_or_else(|| Error::invalid("etcdserver: verification only"))?;
        #[allow(clippy::disallowed_methods, reason = "whoever reads a token elsewhere has the time of the world")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let claims = Claims { username: username.to_owned(), revision, exp: (now + self.ttl).as_secs() };
        jsonwebtoken::encode(&Header::new(self.algorithm), &claims, key)
            .map_err(|error| Error::bug(format!("a token could not be signed: {error}")))
    }

    fn claims(&self, token: &str) -> Option<Claims> {
        let mut validation = Validation::new(self.algorithm);
        validation.leeway = 0;
        jsonwebtoken::decode::<Claims>(token, &self.verify, &validation).ok().map(|token| token.claims)
    }
}

/// The keys that sign and verify, out of files in PEM; with HS the bytes of a file are the secret.
fn keys(
    algorithm: Algorithm,
    public: Option<&[u8]>,
    private: Option<&[u8]>,
) -> Result<(Option<EncodingKey>, DecodingKey)> {
    let wrong =
        |error: jsonwebtoken::errors::Error| Error::invalid(format!("a key of auth-token does not fit: {error}"));
    let missing = || Error::invalid("auth-token is a jwt that has no pub-key (no priv-key, where the method is HS)");
    type Sign = fn(&[u8]) -> Result<EncodingKey, jsonwebtoken::errors::Error>;
    type Verify = fn(&[u8]) -> Result<DecodingKey, jsonwebtoken::errors::Error>;
    let (sign, verify): (Sign, Verify) = match algorithm {
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => {
            let secret = private.or(public).ok_or_else(missing)?;
            return Ok((Some(EncodingKey::from_secret(secret)), DecodingKey::from_secret(secret)));
        }
        Algorithm::ES256 | Algorithm::ES384 => (EncodingKey::from_ec_pem, DecodingKey::from_ec_pem),
        Algorithm::EdDSA => (EncodingKey::from_ed_pem, DecodingKey::from_ed_pem),
        _ => (EncodingKey::from_rsa_pem, DecodingKey::from_rsa_pem),
    };
    let verify = verify(public.ok_or_else(missing)?).map_err(wrong)?;
    Ok((private.map(sign).transpose().map_err(wrong)?, verify))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_memory::Budget;

    #[test]
    fn a_token_lives_from_its_last_use_on() {
        let account = Budget::new(1 << 20).root().child("tokens", "");
        let tokens = Simple { ttl: Duration::from_secs(300), account, held: Mutex::default() };
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let token = tokens.issue("ann", 7, begin).unwrap();
        assert!(token.len() == 18 && token.ends_with(".7"), "{token}");
        assert_eq!(tokens.user_of(&token, begin + 200 * second).as_deref(), Some("ann"));
        assert!(tokens.user_of(&token, begin + 400 * second).is_some());
        assert!(tokens.user_of(&token, begin + 701 * second).is_none());
        tokens.issue("bob", 8, begin + 701 * second).unwrap();
        assert_eq!(tokens.held.lock().len(), 1, "what nobody can use is not held");
        let tokens = Tokens::Simple(tokens);
        let token = tokens.issue("bob", 1, 9).unwrap();
        assert_eq!(tokens.user_of(&token), Some(("bob".to_owned(), None)));
        tokens.forget("bob");
        assert_eq!(tokens.user_of(&token), None);
    }

    #[test]
    fn claims_that_are_signed_come_back_and_others_do_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file.as_file(), b"a secret").unwrap();
        let account = Budget::new(1 << 20).root().child("tokens", "");
        let option = format!("jwt,priv-key={},sign-method=HS256,ttl=1m", file.path().display());
        let tokens = Tokens::open(&option, Duration::ZERO, account.clone()).unwrap();
        let token = tokens.issue("ann", 5, 0).unwrap();
        assert_eq!(tokens.user_of(&token), Some(("ann".to_owned(), Some(5))));
        assert!(tokens.user_of(&format!("{token}x")).is_none());
        for wrong in ["jwt,sign-method=RS256", "jwt,sign-method=none", "jwt,ttl=1", "other", "jwt,x"] {
            assert!(Tokens::open(wrong, Duration::ZERO, account.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_read_as_go_writes_them() {
        assert_eq!(time("1h2m3s"), Some(Duration::from_secs(3723)));
        assert!(time("5").is_none() && time("").is_none() && time("5x").is_none() && time("m").is_none());
    }
}
