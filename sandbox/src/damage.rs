//! Damaged documents, for the properties of parsers: noise alone is refused at its
//! first byte and reaches little of a parser.

use proptest::prelude::*;

/// `sample` with a few bytes changed, and cut off somewhere or not.
pub(crate) fn damaged(sample: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((0..sample.len(), any::<u8>()), 0..4);
    let end = prop_oneof![3 => Just(sample.len()), 1 => 0..sample.len()];
    (changes, end).prop_map(move |(changes, end)| {
        let mut bytes = sample.to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(end);
        bytes
    })
}
