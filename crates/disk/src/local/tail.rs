//! The last bytes of a file, which no whole block may hold: of files that others wrote.

use ramekin_base::{Error, Result};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes of a file, and its last `N` of them; `None`: it is shorter.
#[allow(clippy::disallowed_methods, reason = "it is read once, past no page cache, before anything else is")]
pub fn tail<const N: usize>(path: &Path) -> Result<Option<(u64, [u8; N])>> {
    let named = |error: std::io::Error| Error::from(error).at(path.display());
    let mut file = std::fs::File::open(path).map_err(named)?;
    let len = file.metadata().map_err(named)?.len();
    if len < N as u64 {
        return Ok(None);
    }
    let mut bytes = [0; N];
    file.seek(SeekFrom::End(-(N as i64))).and_then(|_| file.read_exact(&mut bytes)).map_err(named)?;
    Ok(Some((len, bytes)))
}

#[cfg(test)]
mod tests {
    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test writes its file")]
    fn the_end_of_a_file_of_any_length_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for len in [0usize, 3, 4, 5, 4096, 5000] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            let expected = bytes.last_chunk::<4>().map(|last| (len as u64, *last));
            assert_eq!(super::tail::<4>(&path).unwrap(), expected);
        }
        assert!(super::tail::<4>(&folder.path().join("none")).is_err());
    }
}
