//! How a body is written.

use crate::errors::{HttpError, Outcome};
use axum::http::{HeaderMap, StatusCode, header};

/// How a body is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    Plain,
    Gzip,
}

/// How a body is written, by its headers: as it is, or by gzip.
pub fn encoding(headers: &HeaderMap) -> Outcome<Encoding> {
    let mut encoding = Encoding::Plain;
    for line in headers.get_all(header::CONTENT_ENCODING) {
        for name in line.to_str().unwrap_or("?").split(',').map(str::trim) {
            let is = |known: &str| name.eq_ignore_ascii_case(known);
            match encoding {
                _ if name.is_empty() || is("identity") => {}
                Encoding::Plain if is("gzip") || is("x-gzip") => encoding = Encoding::Gzip,
                _ => {
                    return Err(HttpError::new(
                        StatusCode::UNSUPPORTED_MEDIA_TYPE,
                        format!("{}: only gzip is understood, and once", header::CONTENT_ENCODING),
                    ));
                }
            }
        }
    }
    Ok(encoding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_body_is_written() {
        let cases: &[(&[&str], Option<Encoding>)] = &[
            (&[], Some(Encoding::Plain)),
            (&["identity"], Some(Encoding::Plain)),
            (&["", "Identity, identity"], Some(Encoding::Plain)),
            (&["gzip"], Some(Encoding::Gzip)),
            (&["GZIP"], Some(Encoding::Gzip)),
            (&["gzip, identity"], Some(Encoding::Gzip)),
            (&["identity", "X-Gzip"], Some(Encoding::Gzip)),
            (&["gzip, gzip"], None),
            (&["gzip", "gzip"], None),
            (&["identity", "br"], None),
            (&["gzip", "br"], None),
        ];
        for (lines, expected) in cases {
            let mut headers = HeaderMap::new();
            for line in *lines {
                headers.append(header::CONTENT_ENCODING, line.parse().unwrap());
            }
            assert_eq!(encoding(&headers).ok(), *expected, "{lines:?}");
        }
    }
}
