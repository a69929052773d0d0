//! Decoding of request bodies.
//!
//! Limits apply while decoding, so a small body that decompresses to gigabytes costs no more than the limit.

use std::io::Read;

use bytes::Bytes;

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    Identity,
    /// RFC 1952, one or several members.
    Gzip,
    /// RFC 8878, one or several frames, with or without a content size.
    Zstd,
}

impl Encoding {
    /// Parses a `Content-Encoding` header; none means identity.
    ///
    /// # Errors
    /// [`BodyError::Unknown`] for other encodings, or several at once.
    pub fn parse(header: Option<&str>) -> Result<Self, BodyError> {
        match header.map(str::trim) {
            None | Some("") => Ok(Self::Identity),
            Some(name) if name.eq_ignore_ascii_case("identity") => Ok(Self::Identity),
            Some(name) if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") => Ok(Self::Gzip),
            Some(name) if name.eq_ignore_ascii_case("zstd") => Ok(Self::Zstd),
            Some(name) => Err(BodyError::Unknown(name.chars().take(64).collect())),
        }
    }
}

/// How much a body may unpack to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes after decoding.
    pub decoded_bytes: usize,
    /// Ratio of decoded to encoded bytes. Only checked above [`Limits::FREE`], since short texts compress well.
    pub ratio: usize,
    /// Operations, feedback and attachments together.
    pub parts: usize,
    /// Size limit of a field of a trace run, such as its inputs, as JSON text.
    pub field_bytes: usize,
}

impl Limits {
    /// Up to this many decoded bytes no ratio is asked for.
    pub const FREE: usize = 16 * 1024 * 1024;

    /// For bodies that were accepted before: a lowered limit must not lose them.
    pub const NONE: Self = Self {
        decoded_bytes: usize::MAX - 1,
        ratio: usize::MAX,
        parts: usize::MAX,
        field_bytes: usize::MAX,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            decoded_bytes: 256 * 1024 * 1024,
            ratio: 400,
            parts: 100_000,
            field_bytes: 64 * 1024 * 1024,
        }
    }
}

/// Why a body could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// An encoding no one offered.
    #[error("content encoding `{0}` is not supported: send identity, gzip or zstd")]
    Unknown(String),
    /// It is not what its encoding says.
    #[error("the body is not valid {encoding}: {why}")]
    Broken {
        /// What it should have been.
        encoding: &'static str,
        /// What the decoder says.
        why: String,
    },
    /// It unpacks to more than is accepted.
    #[error("the decoded body is larger than {limit} bytes")]
    TooLarge {
        /// What is accepted for this body.
        limit: usize,
    },
}

/// Decodes `body`. Identity costs nothing.
///
/// # Errors
/// [`BodyError::Broken`] if it is not valid in `encoding`, [`BodyError::TooLarge`] beyond `limits`.
pub fn decode(encoding: Encoding, body: &Bytes, limits: &Limits) -> Result<Bytes, BodyError> {
    let limit = limits
        .decoded_bytes
        .min(body.len().saturating_mul(limits.ratio).max(Limits::FREE));
    match encoding {
        Encoding::Identity if body.len() > limits.decoded_bytes => Err(BodyError::TooLarge {
            limit: limits.decoded_bytes,
        }),
        Encoding::Identity => Ok(body.clone()),
        Encoding::Gzip => read(
            flate2::bufread::MultiGzDecoder::new(&body[..]),
            "gzip",
            body.len(),
            limit,
        ),
        Encoding::Zstd => {
            let broken = |error: std::io::Error| BodyError::Broken {
                encoding: "zstd",
                why: error.to_string(),
            };
            let mut decoder = zstd::stream::read::Decoder::with_buffer(&body[..]).map_err(broken)?;
            // 128 MiB is the largest window of `--ultra` without further options; larger ones must not be allocated.
            decoder.window_log_max(27).map_err(broken)?;
            read(decoder, "zstd", body.len(), limit)
        }
    }
}

fn read(decoder: impl Read, encoding: &'static str, sent: usize, limit: usize) -> Result<Bytes, BodyError> {
    // Trace runs compress about eightfold; a good estimate avoids most reallocations.
    let mut plain = Vec::with_capacity(sent.saturating_mul(8).min(limit).min(Limits::FREE));
    let ceiling = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    decoder
        .take(ceiling)
        .read_to_end(&mut plain)
        .map_err(|error| BodyError::Broken {
            encoding,
            why: error.to_string(),
        })?;
    if plain.len() > limit {
        return Err(BodyError::TooLarge { limit });
    }
    Ok(plain.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        to.write_all(text).unwrap();
        to.finish().unwrap()
    }

    /// A frame without content size, as the official client writes it.
    fn zstd(text: &[u8]) -> Vec<u8> {
        let mut to = ::zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
        to.write_all(text).unwrap();
        to.finish().unwrap()
    }

    #[test]
    fn decodes_what_clients_send() {
        let limits = Limits::default();
        for (encoding, packed) in [
            (Encoding::Identity, b"canal".to_vec()),
            (Encoding::Gzip, gzip(b"canal")),
            (Encoding::Zstd, zstd(b"canal")),
        ] {
            assert_eq!(decode(encoding, &packed.into(), &limits).unwrap(), "canal");
        }
        let frames = [zstd(b"ca"), zstd(b"nal")].concat();
        assert_eq!(decode(Encoding::Zstd, &frames.into(), &limits).unwrap(), "canal");
        let members = [gzip(b"ca"), gzip(b"nal")].concat();
        assert_eq!(decode(Encoding::Gzip, &members.into(), &limits).unwrap(), "canal");
    }

    #[test]
    fn reads_the_header() {
        assert_eq!(Encoding::parse(None).unwrap(), Encoding::Identity);
        assert_eq!(Encoding::parse(Some(" ZSTD ")).unwrap(), Encoding::Zstd);
        assert_eq!(Encoding::parse(Some("gzip")).unwrap(), Encoding::Gzip);
        assert!(matches!(Encoding::parse(Some("br")), Err(BodyError::Unknown(_))));
        assert!(matches!(
            Encoding::parse(Some("gzip, zstd")),
            Err(BodyError::Unknown(_))
        ));
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let zeros = vec![0; 40 * 1024 * 1024];
        let small = Limits {
            decoded_bytes: 1024 * 1024,
            ..Limits::default()
        };
        for (encoding, packed) in [(Encoding::Gzip, gzip(&zeros)), (Encoding::Zstd, zstd(&zeros))] {
            let packed = Bytes::from(packed);
            assert!(matches!(
                decode(encoding, &packed, &small),
                Err(BodyError::TooLarge { limit: 1_048_576 })
            ));
        }
        // Below the hard limit, but no honest text packs like this.
        let packed = Bytes::from(zstd(&zeros));
        assert!(matches!(
            decode(Encoding::Zstd, &packed, &Limits::default()),
            Err(BodyError::TooLarge { .. })
        ));
        assert!(decode(Encoding::Identity, &zeros.into(), &small).is_err());
    }

    #[test]
    fn truncated_or_wrong_bodies_are_broken() {
        let limits = Limits::default();
        for (encoding, packed) in [(Encoding::Gzip, gzip(b"canal")), (Encoding::Zstd, zstd(b"canal"))] {
            let cut = Bytes::from(packed[..packed.len() - 3].to_vec());
            assert!(
                matches!(decode(encoding, &cut, &limits), Err(BodyError::Broken { .. })),
                "{encoding:?}"
            );
            assert!(matches!(
                decode(encoding, &Bytes::from_static(b"plain"), &limits),
                Err(BodyError::Broken { .. })
            ));
        }
    }
}
