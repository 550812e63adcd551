//! Filters: an empty one is none; one with a condition is refused by name until they are built.

use super::json::{Decoded, Flaw, Reader};

/// Reads a filter that must not filter.
pub fn read_none(reader: &mut Reader<'_>) -> Decoded<()> {
    if reader.null()? {
        return Ok(());
    }
    reader.object(|reader, key| match key {
        "must" | "should" | "must_not" if reader.null()? => Ok(()),
        "must" | "should" | "must_not" => match reader.peek()? {
            b'[' => reader.array(|_, _| Err(Flaw::unbuilt("a filter condition"))).map(|_| ()),
            b'{' => Err(Flaw::unbuilt("a filter condition")),
            _ => Err(reader.expected("a list of conditions")),
        },
        "min_should" if reader.null()? => Ok(()),
        "min_should" => Err(Flaw::unbuilt("a filter condition")),
        _ => Err(Flaw::malformed("unknown field, expected one of `must`, `should`, `must_not`, `min_should`")),
    })
}

/// Reads a field of Qdrant's API that is not built here: only `null` passes.
pub fn read_unbuilt(reader: &mut Reader<'_>) -> Decoded<()> {
    if reader.null()? { Ok(()) } else { Err(Flaw::unbuilt("this field")) }
}
