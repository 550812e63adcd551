//! Vectors in files, read a range of rows at a time.
//!
//! ```text
//!   .npy      \x93NUMPY, header, rows x dim            NumPy; '<f4' or '<i4', C order, two dimensions
//!   .fvecs    [dim u32, dim x f32] x rows              .ivecs the same with i32
//!   .fbin     rows u32, dim u32, rows x dim x f32      .ibin the same with i32
//!
//!   all are   start + row x stride + skip -> dim x 4 bytes, little-endian
//! ```

use crate::files::{self, File};
use ramekin_base::{Error, Result};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Dimensions beyond this are taken for a damaged header.
const DIM_MAX: usize = 1 << 20;
/// A header of a .npy file is a line of text.
const NPY_HEADER_MAX: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Element {
    F32,
    I32,
}

/// Where the rows of a file lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RowLayout {
    start: u64,
    /// Bytes from one row to the next.
    stride: u64,
    /// Bytes of a row before its elements.
    skip: u64,
    rows: usize,
    dim: usize,
    element: Element,
}

/// A file of vectors, open.
#[derive(Debug)]
pub struct VectorFile {
    file: File,
    path: PathBuf,
    layout: RowLayout,
}

impl VectorFile {
    /// Opens by the ending of the name and checks the header against the length of the file.
    pub fn open(path: &Path) -> Result<Self> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let known = ["npy", "fvecs", "ivecs", "fbin", "ibin"];
        if !known.contains(&ending) {
            let text = "is of no kind that is read here; allowed are .npy, .fvecs, .ivecs, .fbin and .ibin \
                        (bench/hdf5_to_npy.py converts .hdf5)";
            return Err(Error::invalid(text).at(path.display()));
        }
        let (file, bytes) = files::open_plain(path)?;
        let layout = match ending {
            "npy" => npy(&file, bytes),
            "fvecs" => vecs(&file, bytes, Element::F32),
            "ivecs" => vecs(&file, bytes, Element::I32),
            "fbin" => bin(&file, bytes, Element::F32),
            _ => bin(&file, bytes, Element::I32),
        };
        let layout = layout.map_err(|error| error.at(path.display()))?;
        Ok(Self { file, path: path.to_owned(), layout })
    }

    pub fn rows(&self) -> usize {
        self.layout.rows
    }

    pub fn dim(&self) -> usize {
        self.layout.dim
    }

    /// Rows `from` to `to` as floats.
    pub fn floats(&self, from: usize, to: usize) -> Result<Vec<f32>> {
        let values: Vec<f32> = self.words(from, to, Element::F32)?.map(f32::from_le_bytes).collect();
        match values.iter().position(|value| !value.is_finite()) {
            Some(at) => {
                let text = format!("row {} holds {}; all must be finite", from + at / self.layout.dim, values[at]);
                Err(Error::invalid(text).at(self.path.display()))
            }
            None => Ok(values),
        }
    }

    /// Rows `from` to `to` as numbers of rows.
    pub fn numbers(&self, from: usize, to: usize) -> Result<Vec<u32>> {
        Ok(self.words(from, to, Element::I32)?.map(u32::from_le_bytes).collect())
    }

    fn words(&self, from: usize, to: usize, element: Element) -> Result<impl Iterator<Item = [u8; 4]>> {
        let layout = self.layout;
        let wrong = |text: String| Error::invalid(text).at(self.path.display());
        if layout.element != element {
            return Err(wrong(format!("holds {:?}, and {element:?} is wanted", layout.element)));
        }
        if from > to || to > layout.rows {
            return Err(wrong(format!("rows {from} to {to} are asked of {}", layout.rows)));
        }
        let mut bytes = vec![0; (to - from) * layout.stride as usize];
        self.file
            .read_exact_at(&mut bytes, layout.start + from as u64 * layout.stride)
            .map_err(|error| Error::from(error).at(self.path.display()))?;
        let mut words = Vec::with_capacity((to - from) * layout.dim);
        for row in bytes.chunks_exact(layout.stride as usize) {
            let (head, row) = row.split_at(layout.skip as usize);
            if !head.is_empty() && head != (layout.dim as u32).to_le_bytes() {
                return Err(wrong(format!("a row has another dimension than the first one's {}", layout.dim)));
            }
            words.extend(row.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]));
        }
        Ok(words.into_iter())
    }
}

fn wrong(text: impl Into<String>) -> Error {
    Error::malformed(text)
}

fn head<const N: usize>(file: &File, bytes: u64, at: u64) -> Result<[u8; N]> {
    if at + N as u64 > bytes {
        return Err(wrong(format!("is cut off: {bytes} bytes, and the header needs {}", at + N as u64)));
    }
    let mut head = [0; N];
    file.read_exact_at(&mut head, at).map_err(Error::from)?;
    Ok(head)
}

fn word(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

/// The grid, if it agrees with the length of the file.
fn checked(layout: RowLayout, bytes: u64) -> Result<RowLayout> {
    if layout.dim == 0 || layout.dim > DIM_MAX || layout.rows == 0 {
        let text = format!(
            "states {} rows of {} dimensions; 1 to {DIM_MAX} dimensions and one row at least are allowed",
            layout.rows, layout.dim
        );
        return Err(wrong(text));
    }
    let wanted = (layout.rows as u64).checked_mul(layout.stride).and_then(|all| all.checked_add(layout.start));
    match wanted {
        Some(wanted) if wanted == bytes => Ok(layout),
        _ => {
            let wanted = wanted.map_or("more than there can be".to_owned(), |wanted| wanted.to_string());
            Err(wrong(format!(
                "has {bytes} bytes, and {} rows of {} dimensions need {wanted}",
                layout.rows, layout.dim
            )))
        }
    }
}

fn vecs(file: &File, bytes: u64, element: Element) -> Result<RowLayout> {
    let dim = word(&head::<4>(file, bytes, 0)?);
    if dim == 0 || dim > DIM_MAX {
        return Err(wrong(format!("begins with a dimension of {dim}; allowed are 1 to {DIM_MAX}")));
    }
    let stride = 4 + 4 * dim as u64;
    let rows = (bytes / stride).max(1) as usize;
    checked(RowLayout { start: 0, stride, skip: 4, rows, dim, element }, bytes)
}

fn bin(file: &File, bytes: u64, element: Element) -> Result<RowLayout> {
    let head = head::<8>(file, bytes, 0)?;
    let (rows, dim) = (word(&head[..4]), word(&head[4..]));
    checked(RowLayout { start: 8, stride: 4 * dim as u64, skip: 0, rows, dim, element }, bytes)
}

fn npy(file: &File, bytes: u64) -> Result<RowLayout> {
    let start = head::<12>(file, bytes, 0)?;
    if &start[..6] != b"\x93NUMPY" {
        return Err(wrong("is no .npy file: it does not begin with \\x93NUMPY"));
    }
    let (from, len) = match start[6] {
        1 => (10, word(&start[8..10])),
        2 | 3 => (12, word(&start[8..12])),
        other => return Err(wrong(format!("is a .npy file of version {other}; 1 to 3 are read"))),
    };
    if len > NPY_HEADER_MAX || from + len as u64 > bytes {
        return Err(wrong(format!("is cut off: {bytes} bytes, and its header alone states {len}")));
    }
    let mut text = vec![0; len];
    file.read_exact_at(&mut text, from).map_err(Error::from)?;
    let text = String::from_utf8_lossy(&text);
    let field = |name: &str| text.split(&format!("'{name}':")).nth(1).map(str::trim_start);
    let element = match field("descr") {
        Some(found) if found.starts_with("'<f4'") => Element::F32,
        Some(found) if found.starts_with("'<i4'") => Element::I32,
        _ => return Err(wrong(format!("holds neither '<f4' nor '<i4'; convert it with astype. Its header: {text}"))),
    };
    if !field("fortran_order").is_some_and(|found| found.starts_with("False")) {
        return Err(wrong("is in Fortran order; save it with numpy.ascontiguousarray"));
    }
    let shape = field("shape").and_then(|found| found.strip_prefix('(')?.split(')').next());
    let shape: Option<Vec<usize>> = shape.map(|list| list.split(',').filter_map(|n| n.trim().parse().ok()).collect());
    let Some([rows, dim]) = shape.as_deref() else {
        return Err(wrong(format!("has not two dimensions (rows, dim). Its header: {text}")));
    };
    let (rows, dim) = (*rows, *dim);
    checked(RowLayout { start: from + len as u64, stride: 4 * dim as u64, skip: 0, rows, dim, element }, bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test writes its files")]
    use super::*;

    fn npy_bytes(descr: &str, order: &str, shape: &str, body: &[u8]) -> Vec<u8> {
        let mut text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
        while !(text.len() + 11).is_multiple_of(64) {
            text.push(' ');
        }
        text.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(body);
        bytes
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn try_open(name: &str, bytes: &[u8]) -> Result<VectorFile> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        VectorFile::open(&path)
    }

    fn fvecs(rows: &[&[f32]]) -> Vec<u8> {
        rows.iter().flat_map(|row| [(row.len() as u32).to_le_bytes().to_vec(), floats(row)].concat()).collect()
    }

    fn fbin(rows: u32, dim: u32, body: &[u8]) -> Vec<u8> {
        [&rows.to_le_bytes()[..], &dim.to_le_bytes()[..], body].concat()
    }

    #[test]
    fn the_same_rows_come_out_of_every_kind() {
        let body = [1.0, 2.0, 3.0, -4.0, 5.5, 6.0];
        let kinds = [
            ("a.npy", npy_bytes("<f4", "False", "(2, 3)", &floats(&body))),
            ("a.fvecs", fvecs(&[&body[..3], &body[3..]])),
            ("a.fbin", fbin(2, 3, &floats(&body))),
        ];
        for (name, bytes) in kinds {
            let file = try_open(name, &bytes).unwrap();
            assert_eq!((file.rows(), file.dim()), (2, 3), "{name}");
            assert_eq!(file.floats(0, 2).unwrap(), body, "{name}");
            assert_eq!(file.floats(1, 2).unwrap(), body[3..], "{name}");
            assert!(file.floats(1, 3).is_err() && file.numbers(0, 1).is_err(), "{name}");
        }
        let numbers = try_open("t.ivecs", &[2u32, 7, 9].map(u32::to_le_bytes).concat()).unwrap();
        assert_eq!(numbers.numbers(0, 1).unwrap(), [7, 9]);
    }

    #[test]
    fn every_cut_is_found() {
        let body = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let kinds = [
            ("a.npy", npy_bytes("<f4", "False", "(2, 3)", &body)),
            ("a.fvecs", fvecs(&[&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]])),
            ("a.fbin", fbin(2, 3, &body)),
        ];
        for (name, bytes) in kinds {
            for cut in 0..bytes.len() {
                // A whole number of .fvecs rows is a shorter file, not a damaged one.
                if name == "a.fvecs" && cut == bytes.len() / 2 {
                    continue;
                }
                let error = try_open(name, &bytes[..cut]).unwrap_err();
                assert!(error.message().contains(name), "{error}");
            }
            assert!(try_open(name, &[&bytes[..], b"x"].concat()).is_err(), "{name}");
        }
    }

    #[test]
    fn wrong_headers_are_refused_with_what_is_allowed() {
        let body = floats(&[1.0; 6]);
        let cases = [
            ("a.npy", npy_bytes("<f8", "False", "(2, 3)", &body), "'<f4'"),
            ("a.npy", npy_bytes("<f4", "True", "(2, 3)", &body), "Fortran"),
            ("a.npy", npy_bytes("<f4", "False", "(6,)", &body), "two dimensions"),
            ("a.npy", npy_bytes("<f4", "False", "(9999999999999, 9999999999)", &body), "dimensions"),
            ("a.npy", b"PK\x03\x04 something else".to_vec(), "NUMPY"),
            ("a.npy", b"\x93NUMPY\x09\x00\x10\x00                ".to_vec(), "version 9"),
            ("a.fbin", fbin(0, 3, &[]), "one row"),
            ("a.fbin", fbin(u32::MAX, u32::MAX, &body), "dimensions"),
            ("a.fvecs", fbin(0, 0, &body), "dimension of 0"),
            ("a.hdf5", body.clone(), ".fvecs"),
        ];
        for (name, bytes, wanted) in cases {
            let error = try_open(name, &bytes).unwrap_err();
            assert!(error.message().contains(wanted), "{name}: {error}");
        }
        let ragged = fvecs(&[&[1.0, 2.0], &[1.0, 2.0]]);
        let mut changed = ragged.clone();
        changed[12] = 1;
        assert!(try_open("a.fvecs", &changed).unwrap().floats(0, 2).is_err());
        let nan = try_open("a.fbin", &fbin(1, 2, &floats(&[1.0, f32::NAN]))).unwrap();
        assert!(nan.floats(0, 1).unwrap_err().message().contains("finite"));
        assert!(VectorFile::open(Path::new("/nowhere/a.npy")).is_err());
    }

    #[test]
    fn what_is_no_plain_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        // Nobody writes to the pipe: whoever opened it as a file would wait for good.
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe.npy"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("device.fbin")).unwrap();
        std::os::unix::fs::symlink(path("pipe.npy"), path("link.fvecs")).unwrap();
        std::fs::create_dir(path("folder.npy")).unwrap();
        for name in ["pipe.npy", "device.fbin", "link.fvecs", "folder.npy"] {
            let error = VectorFile::open(&path(name)).unwrap_err();
            assert!(error.message().contains("is no plain file"), "{name}: {error}");
        }
    }
}
