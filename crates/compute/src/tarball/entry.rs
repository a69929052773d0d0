//! Metadata in front of archive entries: long names of GNU tar, and pax records.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use tar::{Entry, EntryType, PaxExtensions};

use crate::error;

/// Size limit of an entry's metadata. Names are much shorter; pax records also contain file attributes.
const LONGEST: u64 = 256 * 1024;

/// What was said about the next entry.
#[derive(Debug, Default)]
pub(super) struct EntryHeaders {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Option<Vec<u8>>,
}

/// Where an entry is to be, and where it leads if it is a link.
#[derive(Debug)]
pub(super) struct EntryPaths {
    pub(super) path: PathBuf,
    pub(super) link: PathBuf,
}

/// Why there is no description.
#[derive(Debug)]
pub(super) enum Error {
    /// It says what it may not.
    Refused(String),
    /// The archive breaks off, or is none.
    Unreadable(io::Error),
}

impl EntryHeaders {
    /// Reads the entry if it is metadata for others or the next one, and returns whether it was.
    pub(super) fn take<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<bool, Error> {
        let place = match entry.header().entry_type() {
            EntryType::XGlobalHeader => return Ok(true),
            EntryType::GNULongName => &mut self.name,
            EntryType::GNULongLink => &mut self.link,
            EntryType::XHeader => &mut self.records,
            _ => return Ok(false),
        };
        let refused = |why: &str| Err(Error::Refused(format!("the source archive {why}")));
        if place.is_some() {
            return refused("describes one entry twice");
        }
        if entry.size() > LONGEST {
            return refused("has more than 256 KB of metadata for one entry");
        }
        let mut text = Vec::new();
        entry.take(LONGEST).read_to_end(&mut text).map_err(Error::Unreadable)?;
        *place = Some(text);
        Ok(true)
    }

    /// What is known of the entry that was described.
    pub(super) fn of<R: Read>(self, entry: &Entry<'_, R>) -> error::Result<EntryPaths> {
        let header = entry.header();
        let mut path = header.path_bytes().into_owned();
        let mut link = header.link_name_bytes().unwrap_or_default().into_owned();
        for record in PaxExtensions::new(self.records.as_deref().unwrap_or_default()) {
            let refused = |why: &str| error::Error::Refused(format!("the source archive {why}"));
            let record = record.map_err(|_| refused("has a pax record that cannot be read"))?;
            match record.key_bytes() {
                b"path" => path = record.value_bytes().to_vec(),
                b"linkpath" => link = record.value_bytes().to_vec(),
                // Two readers would see two archives.
                b"size" if record.value() != Ok(entry.size().to_string().as_str()) => {
                    return Err(refused("has two sizes for one entry"));
                }
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(refused("has a sparse file; pack it as a regular file"));
                }
                _ => {}
            }
        }
        let text = |long: Option<Vec<u8>>, short: Vec<u8>| {
            let mut text = long.unwrap_or(short);
            let end = text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            text.truncate(end);
            PathBuf::from(OsStr::from_bytes(&text))
        };
        Ok(EntryPaths {
            path: text(self.name, path),
            link: text(self.link, link),
        })
    }
}
