//! Reads the expiry date of a certificate, which the TLS library does not expose.

use chrono::NaiveDateTime;
use towpath_domain::Timestamp;

const CONTEXT_0: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The end of validity of a certificate in DER; `None` if it is not a certificate.
pub fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    let signed = element(certificate)?.value;
    let mut fields = element(signed)?.value;
    // The optional version.
    if fields.first() == Some(&CONTEXT_0) {
        fields = element(fields)?.rest;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        fields = element(fields)?.rest;
    }
    let validity = element(fields)?.value;
    let from = element(validity)?;
    let until = element(from.rest)?;
    time(until.tag, until.value)
}

struct Element<'d> {
    tag: u8,
    value: &'d [u8],
    rest: &'d [u8],
}

fn element(bytes: &[u8]) -> Option<Element<'_>> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let length = if first < 0x80 {
        usize::from(first)
    } else {
        let digits = usize::from(first & 0x7f);
        if !(1..=4).contains(&digits) {
            return None;
        }
        let (digits, after) = rest.split_at_checked(digits)?;
        rest = after;
        digits.iter().fold(0, |sum, digit| (sum << 8) | usize::from(*digit))
    };
    let (value, rest) = rest.split_at_checked(length)?;
    Some(Element { tag, value, rest })
}

fn time(tag: u8, text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let text = match tag {
        UTC_TIME => {
            let year: u8 = text.get(..2)?.parse().ok()?;
            let century = if year < 50 { "20" } else { "19" };
            format!("{century}{text}")
        }
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let time = NaiveDateTime::parse_from_str(&text, "%Y%m%d%H%M%SZ").ok()?;
    Some(time.and_utc().into())
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn both_forms_of_time_are_read() {
        for (pem, ends) in [
            (
                include_str!("../../../testing/certificates/first.pem"),
                "2120-01-01T00:00:00Z",
            ),
            (
                include_str!("../../../testing/certificates/expired.pem"),
                "2020-02-01T00:00:00Z",
            ),
        ] {
            let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
            assert_eq!(not_after(&certificate), Some(ends.parse().unwrap()));
        }
    }

    #[test]
    fn other_bytes_are_no_certificate() {
        let pem = include_str!("../../../testing/certificates/first.pem");
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        for length in 0..100 {
            assert_eq!(not_after(&certificate[..length]), None, "{length} bytes");
        }
        assert_eq!(not_after(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
