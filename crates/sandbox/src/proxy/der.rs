//! The few ASN.1 structures that certificates of boxes consist of, in DER.

/// Object identifiers, encoded.
pub(super) const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
pub(super) const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 0x0e];
pub(super) const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
pub(super) const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
pub(super) const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
pub(super) const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
pub(super) const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
pub(super) const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const PRIME256V1: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// `[n]` within a choice, primitive.
const CONTEXT: u8 = 0x80;
/// `[n]` around another element.
const EXPLICIT: u8 = 0xa0;

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    let length = content.len().to_be_bytes();
    let significant: Vec<u8> = length.into_iter().skip_while(|byte| *byte == 0).collect();
    match (significant.as_slice(), content.len()) {
        (_, short @ 0..=0x7f) => bytes.push(u8::try_from(short).unwrap_or_default()),
        (digits, _) => {
            bytes.push(0x80 | u8::try_from(digits.len()).unwrap_or_default());
            bytes.extend_from_slice(digits);
        }
    }
    bytes.extend_from_slice(content);
    bytes
}

pub(super) fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    element(SEQUENCE, &parts.concat())
}

pub(super) fn object_id(id: &[u8]) -> Vec<u8> {
    element(OBJECT_IDENTIFIER, id)
}

/// Of big-endian bytes, the first of which is below 128.
pub(super) fn integer(bytes: &[u8]) -> Vec<u8> {
    element(INTEGER, bytes)
}

pub(super) fn boolean_true() -> Vec<u8> {
    element(BOOLEAN, &[0xff])
}

pub(super) fn bit_string(unused: u8, bytes: &[u8]) -> Vec<u8> {
    let mut content = vec![unused];
    content.extend_from_slice(bytes);
    element(BIT_STRING, &content)
}

pub(super) fn octet_string(bytes: &[u8]) -> Vec<u8> {
    element(OCTET_STRING, bytes)
}

pub(super) fn context(number: u8, bytes: &[u8]) -> Vec<u8> {
    element(CONTEXT | number, bytes)
}

pub(super) fn explicit(number: u8, content: &[u8]) -> Vec<u8> {
    element(EXPLICIT | number, content)
}

/// As `YYMMDDHHMMSSZ`.
pub(super) fn utc_time(text: &str) -> Vec<u8> {
    element(UTC_TIME, text.as_bytes())
}

/// A name with nothing but a common name.
pub(super) fn name(common_name: &str) -> Vec<u8> {
    let pair = sequence(&[object_id(COMMON_NAME), element(UTF8_STRING, common_name.as_bytes())]);
    sequence(&[element(SET, &pair)])
}

pub(super) fn extension(id: &[u8], value: &[u8]) -> Vec<u8> {
    sequence(&[object_id(id), octet_string(value)])
}

/// One that a reader has to know.
pub(super) fn critical_extension(id: &[u8], value: &[u8]) -> Vec<u8> {
    sequence(&[object_id(id), boolean_true(), octet_string(value)])
}

/// A public key of P-256, from its uncompressed point.
pub(super) fn public_key(point: &[u8]) -> Vec<u8> {
    let algorithm = sequence(&[object_id(EC_PUBLIC_KEY), object_id(PRIME256V1)]);
    sequence(&[algorithm, bit_string(0, point)])
}

/// ECDSA with SHA-256.
pub(super) fn signature_algorithm() -> Vec<u8> {
    sequence(&[object_id(ECDSA_WITH_SHA256)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_take_as_many_bytes_as_they_need() {
        assert_eq!(element(OCTET_STRING, &[]), [0x04, 0x00]);
        assert_eq!(element(OCTET_STRING, &[0; 0x7f])[..2], [0x04, 0x7f]);
        assert_eq!(element(OCTET_STRING, &[0; 0x80])[..3], [0x04, 0x81, 0x80]);
        assert_eq!(element(OCTET_STRING, &[0; 0x1234])[..4], [0x04, 0x82, 0x12, 0x34]);
    }
}
