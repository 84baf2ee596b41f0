//! Frames of a client, byte by byte: also those that the encoder would not write. The integration tests use them, too.

/// A frame with that first byte and this payload, masked.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let (mask, length) = ([9, 8, 7, 6], payload.len());
    let mut frame = vec![first];
    match length {
        ..126 => frame.push(0x80 | u8::try_from(length).unwrap()),
        126..65_536 => frame.extend([&[0x80 | 126][..], &u16::try_from(length).unwrap().to_be_bytes()].concat()),
        _ => frame.extend([&[0x80 | 127][..], &(length as u64).to_be_bytes()].concat()),
    }
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}
