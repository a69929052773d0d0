//! The authority of a box on disk. It outlives the platform as the box does.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use crate::proxy::CertificateAuthority;

/// The certificate of the authority.
pub(crate) const AUTHORITY_FILE: &str = "authority.pem";
/// The same, behind those that the host trusts.
pub(crate) const BUNDLE_FILE: &str = "bundle.pem";
const KEY_FILE: &str = "authority.key";
/// Where distributions keep the certificates that they trust; the first that exists counts.
const HOST_BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Makes an authority for the life of a box. The key is written last: with it, the rest is there.
pub(super) fn write(folder: &Path) -> io::Result<()> {
    let key = CertificateAuthority::new_key()?;
    let certificate = CertificateAuthority::from_key(&key)?.certificate_pem()?;
    let mut bundle = HOST_BUNDLES
        .iter()
        .find_map(|path| fs::read(path).ok())
        .unwrap_or_default();
    if !bundle.is_empty() && !bundle.ends_with(b"\n") {
        bundle.push(b'\n');
    }
    bundle.extend_from_slice(certificate.as_bytes());
    for (name, content) in [
        (AUTHORITY_FILE, certificate.as_bytes()),
        (BUNDLE_FILE, bundle.as_slice()),
    ] {
        let path = folder.join(name);
        fs::write(&path, content)?;
        // Every user of the box reads it, whatever the umask of the platform.
        fs::set_permissions(&path, Permissions::from_mode(0o644))?;
    }
    let mut file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(folder.join(KEY_FILE))?;
    file.write_all(&key)
}

/// The authority of a life; `None` if it was started without a proxy.
pub(super) fn read(folder: &Path) -> io::Result<Option<CertificateAuthority>> {
    match fs::read(folder.join(KEY_FILE)) {
        Ok(key) => CertificateAuthority::from_key(&key).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
